"""Settings shared by the off-policy actor-critic algorithms, and the parts that `drl ablate` turns off in them."""

from dataclasses import dataclass
from typing import ClassVar

from drl.algorithms.search_dimensions import GAMMA, LEARNING_RATE, SWITCH, Choice, Real, Space
from drl.core.configs import settle_optimizer
from drl.core.errors import BadInput
from drl.core.schedules import settle_rates
from drl.core.setting_rules import (
    ABOVE_0,
    FROM_0,
    FROM_0_BELOW_1,
    FROM_0_TO_1,
    WHOLE_FROM_1,
    Rules,
    check_fields,
    one_of,
)
from drl.core.specs import ActionSpec, PlainDict


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """Settings shared by the off-policy actor-critic algorithms."""

    gamma: float = 0.99  # discount per step
    learning_rate: float = 3e-4  # initial learning rate
    learning_rate_end: float | None = None  # value at the end of the budget; None: constant, or 0 with a schedule
    learning_rate_schedule: str = "auto"  # constant · linear · cosine, or a function; auto: linear if an end is set
    actor_learning_rate: float | None = None  # initial learning rate of the actor; None: learning_rate
    tau: float = 0.005  # Polyak factor of a target update; 1: copy the online networks
    target_every: int = 1  # updates between target updates
    target_network: bool = True  # False: the online critics evaluate the next state, batched with the current state
    policy_delay: int = 1  # critic updates per actor update
    critic_subset: int | None = None  # number of critics drawn at random for the target of each update; None: all
    target_q: str = "min"  # min · mean of these critics for the target
    actor_q: str = "min"  # min · mean · first: Q-value that the actor maximizes
    reward_scale: float = 1.0  # factor on every reward
    loss: str = "squared"  # huber · squared (times ½) loss of the TD error, also for quantiles; c51 uses cross-entropy
    # sgd · adam · adamw · rmsprop · muon, torch.optim.NAME or optax.NAME; in Python also a function that returns one.
    optimizer: str = "adam"
    optimizer_kwargs: tuple[str, ...] = ()  # arguments: NAME=VALUE pairs with YAML values; in Python also a dict
    weight_decay: float = 0.01  # weight decay of adamw
    weight_norm: bool = False  # scale the critics' hidden weights to norm 1 per feature after each update
    adam_beta1: float = 0.9  # β₁ of adam and adamw: decay of the first moment
    adam_eps: float = 1e-8  # epsilon of adam, adamw and rmsprop, added to the denominator
    max_grad_norm: float | None = None  # clip the critics' and the actor's gradients to this norm; None: no clipping

    RULES: ClassVar[Rules] = {
        WHOLE_FROM_1: "target_every policy_delay critic_subset",
        FROM_0_TO_1: "gamma tau",
        FROM_0_BELOW_1: "adam_beta1",
        ABOVE_0: "learning_rate actor_learning_rate adam_eps max_grad_norm tau reward_scale",
        FROM_0: "learning_rate_end weight_decay",
        one_of("min", "mean"): "target_q",
        one_of("min", "mean", "first"): "actor_q",
        one_of("huber", "squared"): "loss",
    }

    def __post_init__(self) -> None:
        settle_rates(self, "learning_rate")
        settle_optimizer(self)
        check_fields(self)


def check_critics(config: OffPolicyConfig, critics: int, kind: str, atoms: int, normed: bool, spec: ActionSpec) -> None:
    """Raise if settings do not fit the model's critics: their number, kind, atoms, and normalization layers."""
    subset, to_drop = config.critic_subset, getattr(config, "quantiles_to_drop", 0)
    if subset is not None and subset > critics:
        raise BadInput(f"critic_subset is {subset}, but there are {critics} critics; use --num-critics {subset}")
    if to_drop and kind != "qr":
        raise BadInput(f"quantiles_to_drop is {to_drop}, but the critics have no quantiles; use --distributional qr")
    if to_drop >= atoms > 1:
        raise BadInput(f"quantiles_to_drop is {to_drop}, but each critic has {atoms} quantiles; drop fewer")
    if kind == "qr" and config.target_q != "min":
        raise BadInput(f"target_q is {config.target_q!r}, but the quantiles of all critics are pooled; leave it out")
    default = type(config)
    if not config.target_network and (config.tau, config.target_every) != (default.tau, default.target_every):
        raise BadInput("there is no target network for tau and target_every; leave them out, or use --target-network")
    if config.weight_norm and not normed:
        raise BadInput(
            "weight_norm is for layers with a normalization behind them; use --batch-renorm or --layer-norm with an MLP"
        )
    if kind != "none" and spec.kind == "discrete":
        raise BadInput(f"distributional is {kind!r}, which needs Box actions here; with Discrete actions use dqn")


SEARCH_BASE: Space = {"learning_rate": LEARNING_RATE, "gamma": GAMMA, "tau": Real(1e-3, 0.05)}
SEARCH_ALL: Space = {
    "batch_size": Choice((64, 128, 256, 512)),
    "gradient_steps": Choice((1, 2, 4)),
    "n_step": Choice((1, 3)),
    "prioritized": SWITCH,
    "layer_norm": SWITCH,
    "policy_delay": Choice((1, 2, 3)),
    "width": Choice((64, 128, 256, 400)),
}
Switches = dict[str, tuple[PlainDict, PlainDict]]
SWITCHES: Switches = {
    "n-step": ({"n_step": 3}, {"n_step": 1}),
    "prioritized": ({"prioritized": True}, {"prioritized": False}),
    "layer-norm": ({"layer_norm": True}, {"layer_norm": False}),
    "two-updates": ({"gradient_steps": 2}, {"gradient_steps": 1}),
}
