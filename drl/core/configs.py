"""Configs of models, buffers and exploration: frozen dataclasses, validated when they are made.

All engines share these classes, so a config means the same in PyTorch and in JAX.
"""

import dataclasses
import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import yaml

from drl.core.errors import BadInput, did_you_mean
from drl.core.network_parts import (
    ACTIVATIONS,
    BACKBONES,
    HEADS,
    INITIALIZATIONS,
    OPTIMIZERS,
    Factory,
    NetworkPart,
    name_in,
)
from drl.core.safe_files import parse_yaml
from drl.core.schedules import EPSILON_SHAPES, settle_rates
from drl.core.setting_rules import (
    ABOVE_0,
    FROM_0,
    FROM_0_BELOW_1,
    FROM_0_TO_1,
    WHOLE_FROM_0,
    WHOLE_FROM_1,
    WHOLE_FROM_2,
    Rule,
    Rules,
    check_fields,
    one_of,
)
from drl.core.specs import ObsSpec, PlainDict

Config = Any  # an instance of a config dataclass, one of ours or a plugin's
OPTIMIZER_NAMES: tuple[str, ...] = ("sgd", "adam", "adamw", "rmsprop", "muon")
# Settings as users give them; configs hold their `plain_setting`.
Whole = int | np.integer[Any]
Number = float | Whole | np.floating[Any]
Switch = bool | np.bool_
AnyPath = str | os.PathLike[str]
Rate = Number | Callable[[float], float]  # a number, or a function from the share of the time used to the value


class Dataclass(Protocol):
    """An instance of a dataclass, as `dataclasses.fields` and `replace` take it."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init__(self, **settings: Any): ...


ConfigClass = type[Dataclass]
ConfigT = TypeVar("ConfigT", bound=Dataclass)


def stated_type(kind: ConfigClass, name: str) -> tuple[Any, bool]:
    """Return the annotated type of a config field, such as `tuple[int, ...]`, and whether it may be None."""
    hint = typing.get_type_hints(kind)[name]
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next(option for option in options if option is not type(None)), type(None) in options


# The only names in a file that are imported without trust.
LIBRARY_OPTIMIZER: re.Pattern[str] = re.compile(r"(torch\.optim|optax)\.[A-Za-z]\w*")


def settle_optimizer(config: Config) -> None:
    """Check `optimizer` and `optimizer_kwargs`. A class or function is replaced by its name, a dict by pairs."""
    given: object = config.optimizer
    library = (getattr(given, "__module__", None) or "").partition(".")[0]
    if callable(given) and library in ("torch", "optax"):
        given = f"{'torch.optim' if library == 'torch' else library}.{getattr(given, '__name__', '')}"
    if not (isinstance(given, str) and LIBRARY_OPTIMIZER.fullmatch(given)):
        given = name_in(OPTIMIZERS, "optimizer", given, lambda function: function, OPTIMIZER_NAMES)
    pairs = as_pairs("optimizer_kwargs", config.optimizer_kwargs)
    object.__setattr__(config, "optimizer", given)
    object.__setattr__(config, "optimizer_kwargs", pairs)
    if "lr" in plain_pairs("optimizer_kwargs", pairs):
        raise BadInput("optimizer_kwargs has lr, which learning_rate sets before every step; use learning_rate")


def changed_config(kind: type[ConfigT], config: ConfigT | None, settings: Mapping[str, Any]) -> ConfigT:
    """Return `config`, or the default config if it is None, with some fields changed."""
    known = [field.name for field in dataclasses.fields(kind)]
    for name in settings:
        if name not in known:
            raise BadInput(f"{kind.__name__} has no setting {name!r}; {did_you_mean(name, known)}")
    return kind(**settings) if config is None else replace(config, **settings)


_WIDTHS = Rule("up to 100 widths of at least 1", lambda x: len(x) <= 100 and min(x, default=1) > 0)
_WIDTH = Rule("a width of at least 1", lambda x: x >= 1)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Settings of every network."""

    backbone: str = "auto"  # auto · mlp · simba · cnn · conv1d, or one registered by a plugin
    backbone_kwargs: tuple[str, ...] = ()  # arguments of a plugin's backbone: NAME=VALUE pairs with YAML values
    head: str = "auto"  # auto, or a policy head registered by a plugin
    hidden_sizes: tuple[int, ...] = (64, 64)  # widths of the MLP; the last one is the feature width of conv1d
    cnn_features: int = 512  # feature width of the cnn
    # Activation of the MLP: tanh · relu · gelu (tanh approximation) · silu · elu · leaky_relu · selu · mish ·
    # softplus · sigmoid, or a function.
    activation: str = "relu"
    # Weights: auto (uniform) · orthogonal · xavier_uniform · xavier_normal · kaiming_uniform · kaiming_normal, or
    # a function. Gains are √2 in hidden layers, 1 in value heads and 0.01 in policy heads; biases are 0.
    init: str = "auto"
    # Dropout rate after each hidden layer, in updates only; acting and evaluation use no dropout.
    dropout: float = 0.0
    freeze: tuple[str, ...] = ()  # names of parameters that are not trained; `*` matches anything: backbone.*

    RULES: ClassVar[Rules] = {_WIDTHS: "hidden_sizes", _WIDTH: "cnn_features", FROM_0_BELOW_1: "dropout"}

    def __post_init__(self) -> None:
        for part, name, table in (("backbone", self.backbone, BACKBONES), ("head", self.head, HEADS)):
            if name != "auto" and name not in table:
                raise BadInput(
                    f"{part} is {name!r}; {did_you_mean(name, ['auto', *table])}; for a custom one, import the module "
                    "that registers it: --plugins MODULE"
                )
        settled = {
            "activation": name_in(ACTIVATIONS, "activation", self.activation, _activation),
            "init": name_in(INITIALIZATIONS, "init", self.init, lambda function: function, ("auto",)),
            "backbone_kwargs": as_pairs("backbone_kwargs", self.backbone_kwargs),
        }
        for name, value in settled.items():
            object.__setattr__(self, name, value)
        check_fields(self)
        plain_pairs("backbone_kwargs", self.backbone_kwargs)


def _activation(function: Factory) -> NetworkPart:
    """Make a network part of an activation function. A class is a PyTorch module and runs in torch only."""
    return NetworkPart(function) if isinstance(function, type) else NetworkPart(function, function)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(NetworkConfig):
    """Networks of the policy gradient algorithms."""

    # Activation of the MLP: tanh · relu · gelu (tanh approximation) · silu · elu · leaky_relu · selu · mish ·
    # softplus · sigmoid, or a function.
    activation: str = "tanh"
    # Weights: auto (orthogonal) · orthogonal · xavier_uniform · xavier_normal · kaiming_uniform · kaiming_normal, or
    # a function. Gains are √2 in hidden layers, 1 in value heads and 0.01 in policy heads; biases are 0.
    init: str = "auto"
    shared: bool = False  # one backbone for actor and critic, recurrent layer included
    recurrent: str = "none"  # none · gru · lstm: a recurrent layer between backbone and head, for ppo and a2c
    recurrent_size: int = 64  # width of the recurrent layer
    distribution: str = "auto"  # auto · gaussian · tanh_gaussian (state-dependent std), for Box actions
    log_std_init: float = 0.0  # initial log standard deviation of a Gaussian policy

    RULES: ClassVar[Rules] = {
        one_of("none", "gru", "lstm"): "recurrent",
        _WIDTH: "recurrent_size",
        one_of("auto", "gaussian", "tanh_gaussian"): "distribution",
    }


@dataclass(frozen=True, kw_only=True)
class QModelConfig(NetworkConfig):
    """Network of a Q-value model."""

    head: str = "auto"  # auto, or a Q-value head registered by a plugin
    hidden_sizes: tuple[int, ...] = (128, 128)  # widths of the MLP; the last one is the feature width of conv1d
    dueling: bool = False  # dueling network: Q = V + A − mean A
    noisy: bool = False  # noisy linear layers, which also provide the exploration
    noisy_sigma: float = 0.5  # initial scale of the noise, relative to the scale of the weights
    distributional: str = "none"  # none · c51 (fixed support) · qr (quantiles)
    num_atoms: int = 51  # atoms of the support, or quantiles
    v_min: float = -10.0  # c51: smallest return of the support
    v_max: float = 10.0  # c51: largest return of the support

    RULES: ClassVar[Rules] = {
        one_of("none", "c51", "qr"): "distributional",
        WHOLE_FROM_2: "num_atoms",
        ABOVE_0: "noisy_sigma",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noisy and self.init != "auto":
            raise BadInput(f"init is {self.init!r}, but noisy layers have one of their own; leave one of both out")
        if not self.v_min < self.v_max:
            raise BadInput(f"v_min is {self.v_min} and v_max is {self.v_max}; expected v_min below v_max")

    @property
    def sigma(self) -> float:
        """Initial noise scale of all layers; 0: no noisy layers."""
        return self.noisy_sigma if self.noisy else 0.0


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(NetworkConfig):
    """A policy and an ensemble of critics Q(s, a) with separate networks."""

    hidden_sizes: tuple[int, ...] = (256, 256)  # widths of the actor's MLP; of simba: one residual block per entry
    critic_hidden_sizes: tuple[int, ...] | None = None  # the same for each critic; None: hidden_sizes
    layer_norm: bool = False  # layer normalization before every activation of an MLP
    batch_renorm: bool = False  # batch renormalization in the critics' MLPs
    renorm_warmup: int = 100_000  # updates with plain batch normalization before renormalization starts
    num_critics: int = 2  # critics in the ensemble
    distributional: str = "none"  # critics: none · c51 (fixed support, cross-entropy) · qr (quantiles)
    num_atoms: int = 101  # atoms of the support, or quantiles
    v_min: float = -10.0  # c51: smallest return of the support
    v_max: float = 10.0  # c51: largest return of the support

    RULES: ClassVar[Rules] = {
        one_of("none", "c51", "qr"): "distributional",
        WHOLE_FROM_2: "num_atoms",
        WHOLE_FROM_1: "num_critics",
        WHOLE_FROM_0: "renorm_warmup",
        _WIDTHS: "critic_hidden_sizes",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.v_min < self.v_max:
            raise BadInput(f"v_min is {self.v_min} and v_max is {self.v_max}; expected v_min below v_max")
        if self.backbone == "simba" and (self.layer_norm or self.batch_renorm):
            raise BadInput("layer_norm and batch_renorm are for MLPs; simba has layer normalization of its own")
        if self.layer_norm and self.batch_renorm:
            raise BadInput("both layer_norm and batch_renorm are on; use one of them")

    @property
    def critic(self) -> "ActorCriticConfig":
        """The settings of one critic."""
        return replace(self, hidden_sizes=self.critic_hidden_sizes or self.hidden_sizes)

    dueling = False  # Q-value heads read these, too
    sigma: ClassVar[float] = 0.0


AnyModelConfig = ModelConfig | QModelConfig | ActorCriticConfig


def backbone_name(config: AnyModelConfig, obs_spec: ObsSpec) -> str:
    """Return the backbone that a config selects. `auto` is cnn for images and mlp for everything else."""
    if config.backbone == "auto":
        return "cnn" if len(obs_spec.shape) == 3 and min(obs_spec.shape[1:]) >= 36 else "mlp"
    if obs_spec.is_structured and config.backbone in ("mlp", "simba", "cnn", "conv1d"):
        parts = ", ".join(obs_spec.leaves)
        raise BadInput(f"backbone is {config.backbone!r}, but the observation has several parts ({parts}); use auto")
    return config.backbone


def block_width(hidden_sizes: Sequence[int]) -> int:
    """Return the common width of all residual blocks."""
    if len(set(hidden_sizes)) != 1:
        raise BadInput(f"hidden_sizes is {list(hidden_sizes)}; simba has one block per entry, all of the same width")
    return hidden_sizes[0]


def as_pairs(name: str, given: Mapping[str, object] | Sequence[str]) -> tuple[str, ...]:
    """Convert arguments to NAME=VALUE pairs with YAML values, as configs hold them.

    >>> as_pairs("env_kwargs", {"gravity": -5, "names": ["a", "b"]})
    ('gravity=-5', 'names=[a, b]')
    """
    if not isinstance(given, Mapping):
        return tuple(given)
    try:
        shown = {k: yaml.safe_dump(v, default_flow_style=True, width=10**6) for k, v in given.items()}
    except yaml.YAMLError:
        raise BadInput(f"{name} is {given!r:.200}; expected numbers, texts and lists of them") from None
    return tuple(f"{key}={text.removesuffix('...' + chr(10)).strip()}" for key, text in shown.items())


def plain_pairs(name: str, pairs: tuple[str, ...]) -> PlainDict:
    """Convert `NAME=VALUE` pairs to a dict; values are read as YAML.

    >>> plain_pairs("env_kwargs", ("gravity=-5", "names=[a, b]"))
    {'gravity': -5, 'names': ['a', 'b']}
    """
    for pair in pairs:
        if "=" not in pair[1:]:
            raise BadInput(f"{name} has {pair!r}; expected NAME=VALUE, such as gravity=-5")
    try:
        return {key: parse_yaml(value) for key, value in (pair.split("=", 1) for pair in pairs)}
    except ValueError as error:
        raise BadInput(f"{name} has a value that is not YAML: {error}") from None


# ── settings of an algorithm's buffer and exploration ─────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """Config of parts without settings."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Replay buffer and update frequency of the off-policy algorithms."""

    batch_size: int = 128  # transitions per update
    capacity: int = 100_000  # transitions the buffer holds
    warmup: int = 1000  # environment steps before the first update, which also needs a full batch
    train_every: int = 1  # environment steps per round of updates, counted over all environments
    gradient_steps: int = 1  # updates per round
    updates_per_log: int = 100  # updates per learning step; each learning step yields one log
    n_step: int = 1  # steps of the n-step return
    prioritized: bool = False  # prioritized replay: sample in proportion to the last TD error
    priority_alpha: float = 0.6  # exponent of the priorities; 0: uniform, 1: proportional
    priority_beta: float = 0.4  # initial exponent of the importance weights
    priority_beta_step: float = 0.001  # added to beta at every batch, up to 1
    priority_eps: float = 0.01  # added to every error, so that every transition can still be sampled
    # Hindsight experience replay: replace goals by ones that the same episode achieved. future: at this step or later ·
    # final: at its last step · episode: at any step · none: off.
    her: str = "none"
    her_ratio: float = 0.8  # fraction of each batch with a replaced goal
    # Newest transitions that a checkpoint stores; None: all. If some are missing, a resumed run is inexact.
    checkpoint_rows: int | None = None

    RULES: ClassVar[Rules] = {
        WHOLE_FROM_1: "batch_size capacity train_every gradient_steps updates_per_log n_step",
        FROM_0_TO_1: "priority_alpha priority_beta her_ratio",
        one_of("none", "future", "final", "episode"): "her",
        ABOVE_0: "priority_eps",
        FROM_0: "warmup priority_beta_step checkpoint_rows",
    }

    def __post_init__(self) -> None:
        check_fields(self)
        if self.capacity < self.batch_size:
            raise BadInput(f"capacity is {self.capacity}, less than one batch of {self.batch_size}")


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedyConfig:
    """ε-greedy: a random action with probability ε. With noisy networks, ε falls from 1 to 0 until the first update;
    afterwards their noise explores."""

    epsilon_start: float = 0.9  # initial probability of a random action
    epsilon_end: float = 0.05  # final probability of a random action
    epsilon_decay: float = 1000.0  # in environment steps: time constant (exponential) or length (all others)
    epsilon_schedule: str = "exponential"  # exponential · linear · cosine · constant, or a function

    RULES: ClassVar[Rules] = {FROM_0_TO_1: "epsilon_start epsilon_end", ABOVE_0: "epsilon_decay"}

    def __post_init__(self) -> None:
        settle_rates(self, "epsilon", shapes=EPSILON_SHAPES)
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class RandomStartConfig:
    """Uniformly random actions first, then samples from the policy."""

    random_steps: int | None = None  # environment steps with uniformly random actions; None: until the first update

    RULES: ClassVar[Rules] = {WHOLE_FROM_0: "random_steps"}

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class ActionNoiseConfig(RandomStartConfig):
    """Noise on the actions of a deterministic policy, for actions scaled to [−1, 1]."""

    noise: str = "gaussian"  # gaussian · ornstein_uhlenbeck (correlated in time)
    noise_sigma: float = 0.1  # standard deviation of each draw
    noise_sigma_end: float | None = None  # value after `noise_decay`; None: constant, or 0 with a schedule
    noise_sigma_schedule: str = "auto"  # constant · linear · cosine, or a function; auto: linear if an end is set
    noise_decay: float = 100_000.0  # length of the noise schedule in environment steps
    noise_theta: float = 0.15  # ornstein_uhlenbeck: mean reversion per step

    RULES: ClassVar[Rules] = {
        one_of("gaussian", "ornstein_uhlenbeck"): "noise",
        FROM_0: "noise_sigma noise_sigma_end",
        ABOVE_0: "noise_decay",
        FROM_0_TO_1: "noise_theta",
    }

    def __post_init__(self) -> None:
        settle_rates(self, "noise_sigma")
        super().__post_init__()

    @property
    def quiet(self) -> bool:
        """Whether the noise is always zero."""
        return not self.noise_sigma and not self.noise_sigma_end


@dataclass(frozen=True, kw_only=True)
class PolicyNoiseConfig(ActionNoiseConfig):
    """Samples from a stochastic policy, with optional additional noise."""

    noise_sigma: float = 0.0  # standard deviation of each draw

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quiet and self.noise != "gaussian":
            raise BadInput(f"noise is {self.noise!r}, but its standard deviation is 0; give --noise-sigma")
