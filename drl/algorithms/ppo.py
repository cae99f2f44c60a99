"""PPO-clip: its settings and its record."""

from dataclasses import dataclass
from typing import ClassVar

from drl.algorithms.algorithm_record import ROLLOUT, AlgorithmRecord
from drl.algorithms.search_dimensions import ACTIVATION, ENTROPY, GAMMA, GRAD_NORM, LEARNING_RATE, WIDTH, Choice
from drl.core.configs import settle_optimizer
from drl.core.schedules import settle_rates
from drl.core.setting_rules import ABOVE_0, FROM_0, FROM_0_TO_1, WHOLE_FROM_1, Rule, Rules, check_fields


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Settings of PPO."""

    rollout_length: int = 128  # steps per environment and rollout
    gamma: float = 0.99  # discount per step
    gae_lambda: float = 0.95  # λ of GAE; 0: one-step advantages, 1: Monte Carlo
    learning_rate: float = 3e-4  # initial learning rate
    learning_rate_end: float | None = None  # value at the end of the budget; None: constant, or 0 with a schedule
    learning_rate_schedule: str = "auto"  # constant · linear · cosine, or a function; auto: linear if an end is set
    critic_learning_rate: float | None = None  # of the critic, with the same schedule; None: learning_rate
    clip_range: float = 0.2  # clip the probability ratio to 1 ± this value
    clip_range_end: float | None = None  # value at the end of the budget; None: constant, or 0 with a schedule
    clip_range_schedule: str = "auto"  # constant · linear · cosine, or a function; auto: linear if an end is set
    value_clip: float | None = None  # clip new values to the old value ± this; None: no value clipping
    epochs: int = 4  # passes over the rollout
    minibatches: int = 4  # per epoch
    entropy_coef: float = 0.0  # weight of the entropy bonus
    entropy_coef_end: float | None = None  # value at the end of the budget; None: constant, or 0 with a schedule
    entropy_coef_schedule: str = "auto"  # constant · linear · cosine, or a function; auto: linear if an end is set
    value_coef: float = 0.5  # weight of the value loss
    normalize_advantage: bool = True  # to mean 0 and standard deviation 1 in each minibatch
    max_grad_norm: float | None = 0.5  # clip gradients to this global norm; None: no clipping
    target_kl: float | None = None  # stop updating after an epoch that ends with approx_kl above 1.5 times this
    # sgd · adam · adamw · rmsprop · muon, torch.optim.NAME or optax.NAME; in Python also a function that returns one.
    optimizer: str = "adam"
    optimizer_kwargs: tuple[str, ...] = ()  # arguments: NAME=VALUE pairs with YAML values; in Python also a dict
    adam_eps: float = 1e-5  # epsilon of adam, adamw and rmsprop, added to the denominator

    RULES: ClassVar[Rules] = {
        WHOLE_FROM_1: "rollout_length epochs minibatches",
        FROM_0_TO_1: "gamma gae_lambda",
        ABOVE_0: "learning_rate critic_learning_rate clip_range value_clip",
        Rule("a number above 0, or None", lambda x: x > 0): "max_grad_norm target_kl adam_eps",
        FROM_0: "learning_rate_end clip_range_end entropy_coef entropy_coef_end value_coef",
    }

    def __post_init__(self) -> None:
        settle_rates(self, "learning_rate", "clip_range", "entropy_coef")
        settle_optimizer(self)
        check_fields(self)


RECORD = AlgorithmRecord(
    name="ppo",
    summary="clipped policy gradient on rollouts, several epochs of minibatches",
    config=PPOConfig,
    variant=lambda config: "policy_value",
    buffer=ROLLOUT,
    recurrent=True,
    engines={"torch": "drl.engines.torch.algorithms.ppo:PPO", "jax": "drl.engines.jax.algorithms.ppo:PPO"},
    fused="drl.engines.jax.fused.fused_on_policy:FusedOnPolicy",
    search_base={"learning_rate": LEARNING_RATE, "gamma": GAMMA, "entropy_coef": ENTROPY},
    search_all={
        "rollout_length": Choice((32, 64, 128, 256, 512, 1024, 2048)),
        "epochs": Choice((1, 4, 10, 20)),
        "minibatches": Choice((1, 4, 8, 32)),
        "gae_lambda": Choice((0.8, 0.9, 0.95, 0.98, 1.0)),
        "clip_range": Choice((0.1, 0.2, 0.3)),
        "max_grad_norm": GRAD_NORM,
        "activation": ACTIVATION,
        "width": WIDTH,
    },
)
