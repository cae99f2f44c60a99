"""SAC, TQC and CrossQ: soft actor-critics. Their settings and their records."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from drl.algorithms.algorithm_record import REPLAY, AlgorithmRecord
from drl.algorithms.off_policy import SEARCH_ALL, SEARCH_BASE, SWITCHES, OffPolicyConfig
from drl.algorithms.search_dimensions import Choice
from drl.core.configs import ActorCriticConfig, PolicyNoiseConfig, ReplayConfig
from drl.core.errors import BadInput
from drl.core.setting_rules import ABOVE_0, WHOLE_FROM_0, Rules
from drl.core.specs import ActionSpec

LIKELY = 0.98  # target entropy of Discrete actions, as a share of the largest


@dataclass(frozen=True, kw_only=True)
class SACConfig(OffPolicyConfig):
    """Settings of SAC."""

    temperature: float = 1.0  # α, the entropy coefficient; the initial value if it is learned
    learn_temperature: bool = True  # tune α to keep the entropy near `target_entropy`
    temperature_learning_rate: float | None = None  # initial learning rate of α; None: learning_rate
    target_entropy: float | None = None  # None: −1 per dimension of a Box action, 0.98 · log(legal actions) if Discrete
    quantiles_to_drop: int = 0  # qr: number of largest target quantiles to drop per critic

    RULES: ClassVar[Rules] = {
        ABOVE_0: "temperature temperature_learning_rate",
        WHOLE_FROM_0: "quantiles_to_drop",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.learn_temperature and (self.target_entropy, self.temperature_learning_rate) != (None, None):
            raise BadInput(
                "target_entropy and temperature_learning_rate are for a learned temperature; leave them out, or use "
                "--learn-temperature"
            )

    def entropy_goal(self, spec: ActionSpec) -> float:
        """Return the target entropy of a learned temperature."""
        if self.target_entropy is not None:
            return self.target_entropy
        return LIKELY * math.log(spec.sizes[0]) if spec.kind == "discrete" else -float(spec.entries)


@dataclass(frozen=True, kw_only=True)
class TQCConfig(SACConfig):
    """Settings of TQC."""

    actor_q: str = "mean"  # min · mean · first: Q-value that the actor maximizes
    loss: str = "huber"  # huber · squared (times ½) loss of the TD error, also for quantiles; c51 uses cross-entropy
    quantiles_to_drop: int = 2  # qr: number of largest target quantiles to drop per critic


@dataclass(frozen=True, kw_only=True)
class TQCModelConfig(ActorCriticConfig):
    """Networks of TQC: five critics with quantiles."""

    num_critics: int = 5  # critics in the ensemble
    distributional: str = "qr"  # critics: none · c51 (fixed support, cross-entropy) · qr (quantiles)
    num_atoms: int = 25  # atoms of the support, or quantiles


@dataclass(frozen=True, kw_only=True)
class CrossQConfig(SACConfig):
    """Settings of CrossQ."""

    learning_rate: float = 1e-3  # initial learning rate
    target_network: bool = False  # False: the online critics evaluate the next state, batched with the current state
    policy_delay: int = 3  # critic updates per actor update
    adam_beta1: float = 0.5  # β₁ of adam and adamw: decay of the first moment


@dataclass(frozen=True, kw_only=True)
class CrossQModelConfig(ActorCriticConfig):
    """Networks of CrossQ: wide critics with batch renormalization."""

    critic_hidden_sizes: tuple[int, ...] | None = (1024, 1024)  # the same for each critic; None: hidden_sizes
    batch_renorm: bool = True  # batch renormalization in the critics' MLPs


@dataclass(frozen=True, kw_only=True)
class NormalizedSACConfig(CrossQConfig):
    """Settings of normalized SAC."""

    learning_rate: float = 3e-4  # initial learning rate
    temperature: float = 0.01  # α, the entropy coefficient; the initial value if it is learned
    weight_norm: bool = True  # scale the critics' hidden weights to norm 1 per feature after each update


@dataclass(frozen=True, kw_only=True)
class NormalizedSACModelConfig(ActorCriticConfig):
    """Networks of normalized SAC."""

    batch_renorm: bool = True  # batch renormalization in the critics' MLPs
    distributional: str = "c51"  # critics: none · c51 (fixed support, cross-entropy) · qr (quantiles)
    num_atoms: int = 51  # atoms of the support, or quantiles


@dataclass(frozen=True, kw_only=True)
class TwoUpdatesReplayConfig(ReplayConfig):
    """Replay of normalized SAC: two updates per environment step."""

    batch_size: int = 256  # transitions per update
    warmup: int = 5000  # environment steps before the first update, which also needs a full batch
    gradient_steps: int = 2  # updates per round


SAC_RECORD = AlgorithmRecord(
    name="sac",
    summary="soft actor-critic from replay: the return plus the policy's entropy; Box or Discrete actions",
    config=SACConfig,
    model_config=ActorCriticConfig,
    variant=lambda config: "actor_critic",
    buffer=REPLAY,
    exploration=PolicyNoiseConfig,
    action_spaces=("box", "discrete"),
    engines={"torch": "drl.engines.torch.algorithms.sac:SAC", "jax": "drl.engines.jax.algorithms.sac:SAC"},
    fused="drl.engines.jax.fused.fused_off_policy:FusedOffPolicy",
    search_base=SEARCH_BASE,
    search_all=SEARCH_ALL | {"target_q": Choice(("min", "mean"))},
    switches={
        "twin": ({"num_critics": 2}, {"num_critics": 1}),
        "learned-temperature": ({"learn_temperature": True}, {"learn_temperature": False}),
        **SWITCHES,
    },
)
TQC_RECORD = replace(
    SAC_RECORD,
    name="tqc",
    summary="SAC with critics of quantiles, the largest of which are dropped from the target",
    config=TQCConfig,
    model_config=TQCModelConfig,
    action_spaces=("box",),
    search_base=SEARCH_BASE | {"quantiles_to_drop": Choice((0, 1, 2, 3, 5))},
    search_all=SEARCH_ALL,
    switches={
        "truncation": ({"quantiles_to_drop": 2}, {"quantiles_to_drop": 0}),
        "five-critics": ({"num_critics": 5}, {"num_critics": 2}),
        **SWITCHES,
    },
)
CROSSQ_RECORD = replace(
    SAC_RECORD,
    name="crossq",
    summary="SAC with batch renormalization in the critics in place of target networks",
    config=CrossQConfig,
    model_config=CrossQModelConfig,
    search_base={name: SEARCH_BASE[name] for name in ("learning_rate", "gamma")},
    search_all={name: space for name, space in SEARCH_ALL.items() if name != "layer_norm"},
    switches={
        "batch-renorm": ({"batch_renorm": True}, {"batch_renorm": False}),
        "no-target": ({"target_network": False}, {"target_network": True}),
        "delay": ({"policy_delay": 3}, {"policy_delay": 1}),
        **{name: pair for name, pair in SWITCHES.items() if name != "layer-norm"},
    },
)
NORMALIZED_SAC_RECORD = replace(
    SAC_RECORD,
    name="normalized_sac",
    summary="CrossQ with normalized weights and rewards, critics with a distribution over returns, two updates a step",
    config=NormalizedSACConfig,
    model_config=NormalizedSACModelConfig,
    buffer=replace(REPLAY, config=TwoUpdatesReplayConfig),
    normalize_reward=True,
    action_spaces=("box",),
    search_base=CROSSQ_RECORD.search_base,
    search_all=CROSSQ_RECORD.search_all,
    switches={
        "batch-norm": ({"batch_renorm": True, "layer_norm": False}, {"batch_renorm": False, "layer_norm": True}),
        "weight-norm": ({"weight_norm": True}, {"weight_norm": False}),
        "distributional": ({"distributional": "c51"}, {"distributional": "none"}),
        "reward-scaling": ({"normalize_reward": True}, {"normalize_reward": False}),
        "two-updates": ({"gradient_steps": 2}, {"gradient_steps": 1}),
        "no-target": CROSSQ_RECORD.switches["no-target"],
        "delay": CROSSQ_RECORD.switches["delay"],
    },
)
