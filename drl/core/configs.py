"""What can be chosen, for every engine alike. Frozen, checked when made, each field with its meaning.

Engines share these classes, so that a configuration means the same in PyTorch and in JAX.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from drl.core.errors import BadInput


def require(config: Any, rule: str, names: str, test: Callable[[Any], bool]) -> None:
    """Raise unless `test` holds for each of the fields in `names`; a field that is None is not set and passes."""
    for name, value in vars(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(f"{name} is {value}; expected a finite number")
    for name in names.split():
        if (value := getattr(config, name)) is not None and not test(value):
            raise BadInput(f"{name} is {value!r}; expected {rule}")


def _not_negative(value: float) -> bool:
    return value >= 0


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    backbone: str = "auto"  # auto · mlp · cnn · conv1d
    hidden_sizes: tuple[int, ...] = (64, 64)  # widths of the MLP; the last one is the feature width of conv1d
    cnn_features: int = 512  # feature width of the cnn
    activation: str = "tanh"  # of the MLP: tanh · relu
    shared: bool = False  # one backbone for actor and critic, memory included
    recurrent: str = "none"  # none · gru · lstm: a memory between backbone and head, for ppo and a2c
    recurrent_size: int = 64  # width of that memory
    log_std_init: float = 0.0  # first log standard deviation of a Gaussian policy

    def __post_init__(self) -> None:
        _check_backbone(self)
        require(self, "'none', 'gru' or 'lstm'", "recurrent", lambda x: x in ("none", "gru", "lstm"))
        require(self, "a width of at least 1", "recurrent_size", lambda x: x >= 1)


@dataclass(frozen=True, kw_only=True)
class QModelConfig:
    backbone: str = "auto"  # auto · mlp · cnn · conv1d
    hidden_sizes: tuple[int, ...] = (128, 128)  # widths of the MLP; the last one is the feature width of conv1d
    cnn_features: int = 512  # feature width of the cnn
    activation: str = "relu"  # of the MLP: tanh · relu
    dueling: bool = False  # value and advantage apart: Q = V + A − mean A
    noisy: bool = False  # noisy layers in place of linear ones; they explore by themselves
    noisy_sigma: float = 0.5  # how strong their noise is at first, as a share of their weights' scale
    distributional: str = "none"  # none · c51 (a fixed support) · qr (quantiles)
    num_atoms: int = 51  # of the support, or quantiles
    v_min: float = -10.0  # c51: smallest return of the support
    v_max: float = 10.0  # c51: largest return of the support

    def __post_init__(self) -> None:
        _check_backbone(self)
        require(self, "'none', 'c51' or 'qr'", "distributional", lambda x: x in ("none", "c51", "qr"))
        require(self, "a whole number of at least 2", "num_atoms", lambda x: x >= 2)
        require(self, "a number above 0", "noisy_sigma", lambda x: x > 0)
        if not self.v_min < self.v_max:
            raise BadInput(f"v_min is {self.v_min} and v_max is {self.v_max}; expected v_min below v_max")

    @property
    def sigma(self) -> float:
        """Of the noise in every layer; 0: no noisy layers."""
        return self.noisy_sigma if self.noisy else 0.0


def _check_backbone(config: ModelConfig | QModelConfig) -> None:
    require(config, "'auto', 'mlp', 'cnn' or 'conv1d'", "backbone", lambda x: x in ("auto", "mlp", "cnn", "conv1d"))
    require(config, "'tanh' or 'relu'", "activation", lambda x: x in ("tanh", "relu"))
    require(
        config, "up to 100 widths of at least 1", "hidden_sizes", lambda x: len(x) <= 100 and min(x, default=1) >= 1
    )
    require(config, "a width of at least 1", "cnn_features", lambda x: x >= 1)


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    rollout_length: int = 128  # steps of every environment per learning step
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
    normalize_advantage: bool = True  # per minibatch, to mean 0 and deviation 1
    max_grad_norm: float | None = 0.5  # global norm; None: no clipping
    target_kl: float | None = None  # no further epoch once approx_kl of the last minibatch exceeds 1.5 times this
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
    rollout_length: int = 8  # steps of every environment per learning step
    gamma: float = 0.99  # discount per step
    gae_lambda: float = 1.0  # 1: n-step returns up to the rollout's end
    learning_rate: float = 7e-4
    learning_rate_end: float | None = None  # linear over the budget to this; None: constant
    optimizer: str = "rmsprop"  # rmsprop · adam
    optimizer_eps: float = 1e-5
    entropy_coef: float = 0.0  # weight of the entropy bonus
    value_coef: float = 0.5  # weight of the value loss
    normalize_advantage: bool = False  # over the rollout, to mean 0 and deviation 1
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
    normalize_advantage: bool = True  # over the batch, to mean 0 and deviation 1
    max_grad_norm: float | None = 0.5  # global norm; None: no clipping
    adam_eps: float = 1e-5

    def __post_init__(self) -> None:
        require(self, "a whole number of at least 1", "episodes_per_step", lambda x: x >= 1)
        require(self, "'none', 'mean' or 'value'", "baseline", lambda x: x in ("none", "mean", "value"))
        require(self, "a number from 0 to 1", "gamma mean_momentum", lambda x: 0 <= x <= 1)
        require(self, "a number above 0", "learning_rate adam_eps max_grad_norm", lambda x: x > 0)
        require(self, "a number of at least 0", "learning_rate_end entropy_coef value_coef", _not_negative)


@dataclass(frozen=True, kw_only=True)
class DQNConfig:
    gamma: float = 0.99  # discount per step
    learning_rate: float = 1e-4
    learning_rate_end: float | None = None  # linear over the budget to this; None: constant
    batch_size: int = 128  # transitions per update
    capacity: int = 100_000  # transitions the replay keeps
    warmup: int = 1000  # environment steps before updates are owed; none is before there is a batch
    train_every: int = 1  # environment steps per round of updates, whatever the number of environments
    gradient_steps: int = 1  # updates per round
    updates_per_log: int = 100  # updates that make up one learning step, one line in the log
    double: bool = False  # the online network chooses the action that the target network values
    n_step: int = 1  # steps looked ahead
    prioritized: bool = False  # draw transitions in proportion to their last error
    priority_alpha: float = 0.6  # 0: uniform, 1: in full proportion
    priority_beta: float = 0.4  # strength of the correction by importance weights, at first
    priority_beta_step: float = 0.001  # added at every batch, up to 1
    priority_eps: float = 0.01  # added to every error, so that none is forgotten
    tau: float = 0.005  # share of the online network that moves into the target network; 1: a full copy
    target_every: int = 1  # updates between two such moves
    loss: str = "huber"  # huber · squared (half of it); of the TD error, or within the quantile loss; c51 has its own
    epsilon_start: float = 0.9  # share of random actions; noisy networks need none
    epsilon_end: float = 0.05
    epsilon_decay: float = 1000.0  # environment steps: time constant (exponential) or length (linear)
    epsilon_schedule: str = "exponential"  # exponential · linear
    optimizer: str = "adamw"  # adam · adamw
    amsgrad: bool = True  # divide by the largest second moment so far
    weight_decay: float = 0.01  # of adamw
    adam_eps: float = 1e-8
    max_grad_norm: float | None = 10.0  # global norm; None: no clipping
    max_grad_value: float | None = None  # of each entry; None: no clipping

    def __post_init__(self) -> None:
        whole = "batch_size capacity train_every gradient_steps updates_per_log n_step target_every"
        require(self, "a whole number of at least 1", whole, lambda x: x >= 1)
        shares = "gamma priority_alpha priority_beta tau epsilon_start epsilon_end"
        require(self, "a number from 0 to 1", shares, lambda x: 0 <= x <= 1)
        above = "learning_rate epsilon_decay priority_eps adam_eps max_grad_norm max_grad_value tau"
        require(self, "a number above 0", above, lambda x: x > 0)
        not_negative = "learning_rate_end warmup priority_beta_step weight_decay"
        require(self, "a number of at least 0", not_negative, _not_negative)
        require(self, "'huber' or 'squared'", "loss", lambda x: x in ("huber", "squared"))
        require(self, "'adam' or 'adamw'", "optimizer", lambda x: x in ("adam", "adamw"))
        schedules = ("exponential", "linear")
        require(self, "'exponential' or 'linear'", "epsilon_schedule", lambda x: x in schedules)
        if self.capacity < self.batch_size:
            raise BadInput(f"capacity is {self.capacity}, less than one batch of {self.batch_size}")


# The one place where an algorithm's name becomes its configuration and that of its model.
ALGORITHM_CONFIGS: dict[str, type] = {
    "ppo": PPOConfig,
    "a2c": A2CConfig,
    "reinforce": ReinforceConfig,
    "dqn": DQNConfig,
}
MODEL_CONFIGS: dict[str, type] = {
    "ppo": ModelConfig,
    "a2c": ModelConfig,
    "reinforce": ModelConfig,
    "dqn": QModelConfig,
}


def variant_of(algorithm: str, config: Any) -> str:
    """Which model variant an algorithm needs."""
    if algorithm == "dqn":
        return "q_value"
    return "policy_only" if algorithm == "reinforce" and config.baseline != "value" else "policy_value"
