"""What can be chosen, for every engine alike. Frozen, checked when made, each field with its meaning.

Engines share these classes, so that a configuration means the same in PyTorch and in JAX.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from drl.core.errors import BadInput


def require(config: Any, rule: str, names: str, test: Callable[[Any], bool]) -> None:
    """Raise unless `test` holds for each of the fields in `names`; a field that is None is not set and passes."""
    for name in names.split():
        if (value := getattr(config, name)) is not None and not test(value):
            raise BadInput(f"{name} is {value!r}; expected {rule}")


def _not_negative(value: float) -> bool:
    return value >= 0


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    backbone: str = "auto"  # auto · mlp · cnn · conv1d
    hidden: tuple[int, ...] = (64, 64)  # widths of the MLP; the last one is the feature width of cnn and conv1d
    activation: str = "tanh"  # tanh · relu
    shared: bool = False  # one backbone for actor and critic
    log_std_init: float = 0.0  # first log standard deviation of a Gaussian policy

    def __post_init__(self) -> None:
        require(self, "'auto', 'mlp', 'cnn' or 'conv1d'", "backbone", lambda x: x in ("auto", "mlp", "cnn", "conv1d"))
        require(self, "'tanh' or 'relu'", "activation", lambda x: x in ("tanh", "relu"))
        require(self, "widths of at least 1", "hidden", lambda x: all(width >= 1 for width in x))


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    rollout_length: int = 128  # steps of every world per learning step
    gamma: float = 0.99  # discount per step
    gae_lambda: float = 0.95  # 0: one-step advantages, 1: Monte Carlo
    learning_rate: float = 3e-4
    learning_rate_end: float | None = None  # linear over the budget to this; None: constant
    critic_learning_rate: float | None = None  # own rate for the critic, scheduled alike; None: the same
    clip_range: float = 0.2  # how far the probability ratio may leave 1
    clip_range_end: float | None = None  # linear over the budget to this; None: constant
    value_clip: float | None = None  # how far a value may leave the old one; None: no value clipping
    epochs: int = 4  # passes over the rollout
    minibatches: int = 4  # per epoch
    entropy_coef: float = 0.0  # weight of the entropy bonus
    value_coef: float = 0.5  # weight of the value loss
    normalise_advantage: bool = True  # per minibatch, to mean 0 and deviation 1
    max_grad_norm: float | None = 0.5  # global norm; None: no clipping
    target_kl: float | None = None  # stop the epochs when approx_kl exceeds 1.5 times this; None: never
    adam_eps: float = 1e-5

    def __post_init__(self) -> None:
        require(self, "a whole number of at least 1", "rollout_length epochs minibatches", lambda x: x >= 1)
        require(self, "a number from 0 to 1", "gamma gae_lambda", lambda x: 0 <= x <= 1)
        require(self, "a number above 0", "learning_rate critic_learning_rate clip_range value_clip", lambda x: x > 0)
        require(self, "a number above 0, or None", "max_grad_norm target_kl adam_eps", lambda x: x > 0)
        require(
            self, "a number of at least 0", "learning_rate_end clip_range_end entropy_coef value_coef", _not_negative
        )


@dataclass(frozen=True, kw_only=True)
class A2CConfig:
    rollout_length: int = 8  # steps of every world per learning step
    gamma: float = 0.99  # discount per step
    gae_lambda: float = 1.0  # 1: n-step returns up to the rollout's end
    learning_rate: float = 7e-4
    learning_rate_end: float | None = None  # linear over the budget to this; None: constant
    optimizer: str = "rmsprop"  # rmsprop · adam
    optimizer_eps: float = 1e-5
    entropy_coef: float = 0.0  # weight of the entropy bonus
    value_coef: float = 0.5  # weight of the value loss
    normalise_advantage: bool = False  # over the rollout, to mean 0 and deviation 1
    max_grad_norm: float | None = 0.5  # global norm; None: no clipping

    def __post_init__(self) -> None:
        require(self, "a whole number of at least 1", "rollout_length", lambda x: x >= 1)
        require(self, "a number from 0 to 1", "gamma gae_lambda", lambda x: 0 <= x <= 1)
        require(self, "'rmsprop' or 'adam'", "optimizer", lambda x: x in ("rmsprop", "adam"))
        require(self, "a number above 0", "learning_rate optimizer_eps max_grad_norm", lambda x: x > 0)
        require(self, "a number of at least 0", "learning_rate_end entropy_coef value_coef", _not_negative)


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig:
    episodes_per_step: int = 8  # complete episodes per learning step
    gamma: float = 0.99  # discount per step
    baseline: str = "value"  # none · mean (running mean of returns) · value (a critic)
    mean_momentum: float = 0.9  # of the running mean: share of the old mean that is kept
    learning_rate: float = 1e-3
    learning_rate_end: float | None = None  # linear over the budget to this; None: constant
    entropy_coef: float = 0.0  # weight of the entropy bonus
    value_coef: float = 0.5  # weight of the value loss, with baseline value
    normalise_advantage: bool = True  # over the batch, to mean 0 and deviation 1
    max_grad_norm: float | None = 0.5  # global norm; None: no clipping
    adam_eps: float = 1e-5

    def __post_init__(self) -> None:
        require(self, "a whole number of at least 1", "episodes_per_step", lambda x: x >= 1)
        require(self, "'none', 'mean' or 'value'", "baseline", lambda x: x in ("none", "mean", "value"))
        require(self, "a number from 0 to 1", "gamma mean_momentum", lambda x: 0 <= x <= 1)
        require(self, "a number above 0", "learning_rate adam_eps max_grad_norm", lambda x: x > 0)
        require(self, "a number of at least 0", "learning_rate_end entropy_coef value_coef", _not_negative)


# The one place where an algorithm's name becomes its configuration.
ALGORITHM_CONFIGS: dict[str, type] = {"ppo": PPOConfig, "a2c": A2CConfig, "reinforce": ReinforceConfig}
