"""DDPG and TD3: deterministic policies for Box actions. Their settings and their records."""

from dataclasses import dataclass
from typing import ClassVar

from drl.algorithms.algorithm_record import REPLAY, AlgorithmRecord
from drl.algorithms.off_policy import SEARCH_ALL, SEARCH_BASE, SWITCHES, OffPolicyConfig
from drl.algorithms.search_dimensions import Real
from drl.core.configs import ActionNoiseConfig, ActorCriticConfig
from drl.core.setting_rules import FROM_0, Rules


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(OffPolicyConfig):
    """Settings of DDPG."""

    learning_rate: float = 1e-3  # initial learning rate
    actor_q: str = "first"  # min · mean · first: Q-value that the actor maximizes
    target_noise: float = 0.0  # standard deviation of the noise on target actions; 0: none
    target_noise_clip: float = 0.5  # clip this noise to ± this value

    RULES: ClassVar[Rules] = {FROM_0: "target_noise target_noise_clip"}


@dataclass(frozen=True, kw_only=True)
class DDPGModelConfig(ActorCriticConfig):
    """Networks of DDPG: one critic."""

    num_critics: int = 1  # critics in the ensemble


@dataclass(frozen=True, kw_only=True)
class TD3Config(DDPGConfig):
    """Settings of TD3."""

    policy_delay: int = 2  # critic updates per actor update
    target_every: int = 2  # updates between target updates
    target_noise: float = 0.2  # standard deviation of the noise on target actions; 0: none


DDPG_RECORD = AlgorithmRecord(
    name="ddpg",
    summary="deterministic policy gradient through a learned Q(s, a), from replay",
    config=DDPGConfig,
    model_config=DDPGModelConfig,
    variant=lambda config: "deterministic_actor_critic",
    buffer=REPLAY,
    exploration=ActionNoiseConfig,
    action_spaces=("box",),
    engines={"torch": "drl.engines.torch.algorithms.td3:TD3", "jax": "drl.engines.jax.algorithms.td3:TD3"},
    fused="drl.engines.jax.fused.fused_off_policy:FusedOffPolicy",
    search_base=SEARCH_BASE | {"noise_sigma": Real(0.01, 1.0)},
    search_all=SEARCH_ALL,
    switches=SWITCHES | {"smoothing": ({"target_noise": 0.2}, {"target_noise": 0.0})},
)
TD3_RECORD = AlgorithmRecord(
    name="td3",
    summary="DDPG with twin critics, target smoothing and a delayed policy",
    config=TD3Config,
    model_config=ActorCriticConfig,
    variant=DDPG_RECORD.variant,
    buffer=REPLAY,
    exploration=ActionNoiseConfig,
    action_spaces=("box",),
    engines=DDPG_RECORD.engines,
    fused=DDPG_RECORD.fused,
    search_base=DDPG_RECORD.search_base,
    search_all=SEARCH_ALL,
    switches={
        "twin": ({"num_critics": 2}, {"num_critics": 1}),
        "smoothing": ({"target_noise": 0.2}, {"target_noise": 0.0}),
        "delay": ({"policy_delay": 2}, {"policy_delay": 1}),
        **SWITCHES,
    },
)
