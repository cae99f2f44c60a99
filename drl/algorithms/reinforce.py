"""REINFORCE: its settings and its record."""

from dataclasses import dataclass
from typing import ClassVar

from drl.algorithms.algorithm_record import EPISODES, AlgorithmRecord
from drl.algorithms.search_dimensions import ACTIVATION, ENTROPY, GAMMA, GRAD_NORM, SWITCH, WIDTH, Choice, Real
from drl.core.configs import settle_optimizer
from drl.core.schedules import settle_rates
from drl.core.setting_rules import ABOVE_0, FROM_0, FROM_0_TO_1, WHOLE_FROM_1, Rules, check_fields, one_of


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig:
    """Settings of REINFORCE."""

    episodes_per_step: int = 8  # complete episodes per learning step
    gamma: float = 0.99  # discount per step
    baseline: str = "value"  # none · mean (running mean of returns) · value (a critic)
    mean_momentum: float = 0.9  # baseline mean: weight of the old mean in the running mean
    learning_rate: float = 1e-3  # initial learning rate
    learning_rate_end: float | None = None  # value at the end of the budget; None: constant, or 0 with a schedule
    learning_rate_schedule: str = "auto"  # constant · linear · cosine, or a function; auto: linear if an end is set
    entropy_coef: float = 0.0  # weight of the entropy bonus
    entropy_coef_end: float | None = None  # value at the end of the budget; None: constant, or 0 with a schedule
    entropy_coef_schedule: str = "auto"  # constant · linear · cosine, or a function; auto: linear if an end is set
    value_coef: float = 0.5  # weight of the value loss with `baseline` value
    normalize_advantage: bool = True  # to mean 0 and standard deviation 1 over the batch
    max_grad_norm: float | None = 0.5  # clip gradients to this global norm; None: no clipping
    # sgd · adam · adamw · rmsprop · muon, torch.optim.NAME or optax.NAME; in Python also a function that returns one.
    optimizer: str = "adam"
    optimizer_kwargs: tuple[str, ...] = ()  # arguments: NAME=VALUE pairs with YAML values; in Python also a dict
    adam_eps: float = 1e-5  # epsilon of adam, adamw and rmsprop, added to the denominator

    RULES: ClassVar[Rules] = {
        WHOLE_FROM_1: "episodes_per_step",
        one_of("none", "mean", "value"): "baseline",
        FROM_0_TO_1: "gamma mean_momentum",
        ABOVE_0: "learning_rate adam_eps max_grad_norm",
        FROM_0: "learning_rate_end entropy_coef entropy_coef_end value_coef",
    }

    def __post_init__(self) -> None:
        settle_rates(self, "learning_rate", "entropy_coef")
        settle_optimizer(self)
        check_fields(self)


RECORD = AlgorithmRecord(
    name="reinforce",
    summary="policy gradient on whole episodes, with a choice of baseline",
    config=ReinforceConfig,
    variant=lambda config: "policy_value" if config.baseline == "value" else "policy_only",
    buffer=EPISODES,
    engines={
        "torch": "drl.engines.torch.algorithms.reinforce:Reinforce",
        "jax": "drl.engines.jax.algorithms.reinforce:Reinforce",
    },
    fused="drl.engines.jax.fused.fused_on_policy:FusedEpisodes",
    search_base={"learning_rate": Real(1e-5, 3e-2), "gamma": GAMMA, "entropy_coef": ENTROPY},
    search_all={
        "episodes_per_step": Choice((1, 2, 4, 8, 16)),
        "baseline": Choice(("none", "mean", "value")),
        "normalize_advantage": SWITCH,
        "max_grad_norm": GRAD_NORM,
        "activation": ACTIVATION,
        "width": WIDTH,
    },
)
