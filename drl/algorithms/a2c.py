"""A2C: its settings and its record."""

from dataclasses import dataclass
from typing import ClassVar

from drl.algorithms.algorithm_record import ROLLOUT, AlgorithmRecord
from drl.algorithms.search_dimensions import ACTIVATION, ENTROPY, GAMMA, GRAD_NORM, LEARNING_RATE, SWITCH, WIDTH, Choice
from drl.core.configs import settle_optimizer
from drl.core.schedules import settle_rates
from drl.core.setting_rules import ABOVE_0, FROM_0, FROM_0_TO_1, WHOLE_FROM_1, Rules, check_fields


@dataclass(frozen=True, kw_only=True)
class A2CConfig:
    """Settings of A2C."""

    rollout_length: int = 8  # steps per environment and rollout
    gamma: float = 0.99  # discount per step
    gae_lambda: float = 1.0  # λ of GAE; 1: n-step returns up to the end of the rollout
    learning_rate: float = 7e-4  # initial learning rate
    learning_rate_end: float | None = None  # value at the end of the budget; None: constant, or 0 with a schedule
    learning_rate_schedule: str = "auto"  # constant · linear · cosine, or a function; auto: linear if an end is set
    # sgd · adam · adamw · rmsprop · muon, torch.optim.NAME or optax.NAME; in Python also a function that returns one.
    optimizer: str = "rmsprop"
    optimizer_kwargs: tuple[str, ...] = ()  # arguments: NAME=VALUE pairs with YAML values; in Python also a dict
    optimizer_eps: float = 1e-5  # epsilon of rmsprop, adam and adamw, added to the denominator
    entropy_coef: float = 0.0  # weight of the entropy bonus
    entropy_coef_end: float | None = None  # value at the end of the budget; None: constant, or 0 with a schedule
    entropy_coef_schedule: str = "auto"  # constant · linear · cosine, or a function; auto: linear if an end is set
    value_coef: float = 0.5  # weight of the value loss
    normalize_advantage: bool = False  # to mean 0 and standard deviation 1 over the rollout
    max_grad_norm: float | None = 0.5  # clip gradients to this global norm; None: no clipping

    RULES: ClassVar[Rules] = {
        WHOLE_FROM_1: "rollout_length",
        FROM_0_TO_1: "gamma gae_lambda",
        ABOVE_0: "learning_rate optimizer_eps max_grad_norm",
        FROM_0: "learning_rate_end entropy_coef entropy_coef_end value_coef",
    }

    def __post_init__(self) -> None:
        settle_rates(self, "learning_rate", "entropy_coef")
        settle_optimizer(self)
        check_fields(self)


RECORD = AlgorithmRecord(
    name="a2c",
    summary="one policy gradient step with a critic on each short rollout",
    config=A2CConfig,
    variant=lambda config: "policy_value",
    buffer=ROLLOUT,
    recurrent=True,
    engines={"torch": "drl.engines.torch.algorithms.a2c:A2C", "jax": "drl.engines.jax.algorithms.a2c:A2C"},
    fused="drl.engines.jax.fused.fused_on_policy:FusedOnPolicy",
    search_base={"learning_rate": LEARNING_RATE, "gamma": GAMMA, "entropy_coef": ENTROPY},
    search_all={
        "rollout_length": Choice((5, 8, 16, 32, 64, 128)),
        "gae_lambda": Choice((0.8, 0.9, 0.95, 0.98, 1.0)),
        "optimizer": Choice(("rmsprop", "adam")),
        "normalize_advantage": SWITCH,
        "max_grad_norm": GRAD_NORM,
        "activation": ACTIVATION,
        "width": WIDTH,
    },
)
