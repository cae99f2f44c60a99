"""DQN and the six parts of Rainbow: its settings and its record."""

from dataclasses import dataclass
from typing import ClassVar

from drl.algorithms.algorithm_record import REPLAY, AlgorithmRecord
from drl.algorithms.search_dimensions import GAMMA, LEARNING_RATE, SWITCH, WIDTH, Choice, Real
from drl.core.configs import EpsilonGreedyConfig, QModelConfig, settle_optimizer
from drl.core.schedules import settle_rates
from drl.core.setting_rules import ABOVE_0, FROM_0, FROM_0_TO_1, WHOLE_FROM_1, Rules, check_fields, one_of


@dataclass(frozen=True, kw_only=True)
class DQNConfig:
    """Settings of DQN."""

    gamma: float = 0.99  # discount per step
    learning_rate: float = 1e-4  # initial learning rate
    learning_rate_end: float | None = None  # value at the end of the budget; None: constant, or 0 with a schedule
    learning_rate_schedule: str = "auto"  # constant · linear · cosine, or a function; auto: linear if an end is set
    double: bool = False  # double DQN: the online network selects the action, the target network evaluates it
    tau: float = 0.005  # Polyak factor of a target update; 1: copy the online network
    target_every: int = 1  # updates between target updates
    loss: str = "huber"  # huber · squared (times ½) loss of the TD error, also for quantiles; c51 uses cross-entropy
    # sgd · adam · adamw · rmsprop · muon, torch.optim.NAME or optax.NAME; in Python also a function that returns one.
    optimizer: str = "adamw"
    optimizer_kwargs: tuple[str, ...] = ()  # arguments: NAME=VALUE pairs with YAML values; in Python also a dict
    amsgrad: bool = True  # of adam and adamw: use the largest second moment so far
    weight_decay: float = 0.01  # weight decay of adamw
    adam_eps: float = 1e-8  # epsilon of adam, adamw and rmsprop, added to the denominator
    max_grad_norm: float | None = 10.0  # clip gradients to this global norm; None: no clipping
    max_grad_value: float | None = None  # clip each gradient entry to ± this value; None: no clipping

    RULES: ClassVar[Rules] = {
        WHOLE_FROM_1: "target_every",
        FROM_0_TO_1: "gamma tau",
        ABOVE_0: "learning_rate adam_eps max_grad_norm max_grad_value tau",
        FROM_0: "learning_rate_end weight_decay",
        one_of("huber", "squared"): "loss",
    }

    def __post_init__(self) -> None:
        settle_rates(self, "learning_rate")
        settle_optimizer(self)
        check_fields(self)


RECORD = AlgorithmRecord(
    name="dqn",
    summary="action values from replay; double, dueling, prioritized, n-step, distributional and noisy are switches",
    config=DQNConfig,
    model_config=QModelConfig,
    variant=lambda config: "q_value",
    buffer=REPLAY,
    exploration=EpsilonGreedyConfig,
    action_spaces=("discrete",),
    engines={"torch": "drl.engines.torch.algorithms.dqn:DQN", "jax": "drl.engines.jax.algorithms.dqn:DQN"},
    fused="drl.engines.jax.fused.fused_off_policy:FusedOffPolicy",
    search_base={"learning_rate": LEARNING_RATE, "gamma": GAMMA, "tau": Real(1e-3, 1.0)},
    search_all={
        "double": SWITCH,
        "dueling": SWITCH,
        "prioritized": SWITCH,
        "noisy": SWITCH,
        "distributional": Choice(("none", "c51", "qr")),
        "n_step": Choice((1, 2, 3, 5)),
        "batch_size": Choice((32, 64, 128, 256)),
        "width": WIDTH,
    },
    switches={
        "double": ({"double": True}, {"double": False}),
        "dueling": ({"dueling": True}, {"dueling": False}),
        "prioritized": ({"prioritized": True}, {"prioritized": False}),
        "n-step": ({"n_step": 3}, {"n_step": 1}),
        "distributional": ({"distributional": "c51"}, {"distributional": "none"}),
        "noisy": ({"noisy": True}, {"noisy": False}),
    },
)
