"""Backbones: observation → features. `features` is the width that the head must expect.

A backbone is configuration: a frozen dataclass with `init(rng) -> params` and a pure `apply(params, obs) -> features`.
`sigma` is the initial scale of the noise of noisy layers (0: plain layers), `gain` the scale of orthogonal weights
(None: uniform weights, for action values) or an initialization by name.
"""

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.configs import (
    ActorCriticConfig,
    AnyModelConfig,
    ModelConfig,
    QModelConfig,
    backbone_name,
    block_width,
    plain_pairs,
)
from drl.core.errors import BadInput
from drl.core.network_parts import BACKBONES, part_maker
from drl.core.specs import AnyArray, ObsSpec
from drl.engines.jax.layers import Convolution, Dense, LayerNorm, Params, activation_of, dropped, named, part
from drl.engines.numpy.layer_parts import HIDDEN_GAIN, Gain, gain_of

Obs = Any  # an array `[B, …]`, or a dict of them for observations with several parts
Layers = dict[str, Dense | Convolution]  # by the name of their parameters in an agent file


def fields(obs: AnyArray) -> Obs:
    """Encoded observations for a model: structured arrays as a dict of arrays."""
    return obs if obs.dtype.names is None else {name: np.ascontiguousarray(obs[name]) for name in obs.dtype.names}


class Backbone(Protocol):
    """From observations to features: a configuration; its parameters are an argument."""

    @property
    def features(self) -> int:
        """Width of its output."""

    def init(self, rng: np.random.Generator) -> Params:
        """First parameters."""

    def apply(self, params: Params, obs: Obs) -> jax.Array:
        """Features of a batch."""


def init_layers(layers: Layers, rng: np.random.Generator) -> Params:
    """New parameters of all layers, drawn in order."""
    drawn: Params = {}
    for name, layer in layers.items():
        drawn |= named(name, layer.init(rng))
    return drawn


@dataclass(frozen=True)
class MLP:
    """Fully connected layers over the flattened observation. The first one is never noisy, like the convolutions of a
    CNN.

    >>> net = MLP((4,), hidden_sizes=(8, 8))
    >>> net.apply(net.init(np.random.default_rng(0)), np.zeros((3, 4), np.float32)).shape
    (3, 8)
    """

    obs_shape: tuple[int, ...]
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    sigma: float = 0.0
    gain: Gain = field(default=HIDDEN_GAIN, compare=False)  # of the initial weights; irrelevant afterwards
    layer_norm: bool = False  # before every activation
    dropout: float = 0.0  # share of the features behind every activation, in updates

    def __post_init__(self) -> None:
        activation_of(self.activation)  # raises for one that JAX cannot compute

    @property
    def features(self) -> int:
        return self.hidden_sizes[-1] if self.hidden_sizes else math.prod(self.obs_shape)

    @property
    def layers(self) -> Layers:
        """Its linear layers by name."""
        widths = itertools.pairwise([math.prod(self.obs_shape), *self.hidden_sizes])
        first = 0 if len(self.obs_shape) == 1 else 1  # in an agent file, flattening counts as a layer
        layers = [Dense(*pair, self.gain, self.sigma if i else 0.0) for i, pair in enumerate(widths)]
        every = 3 if self.layer_norm else 2  # linear, normalization, activation
        return {str(first + every * i): layer for i, layer in enumerate(layers)}

    def init(self, rng: np.random.Generator) -> Params:
        drawn = init_layers(self.layers, rng)
        if self.layer_norm:
            for name, layer in self.layers.items():
                drawn |= named(str(int(name) + 1), LayerNorm(layer.out_features).init(rng))
        return drawn

    def apply(self, params: Params, obs: Obs) -> jax.Array:
        x = jnp.reshape(obs, (obs.shape[0], -1))
        for number, (name, layer) in enumerate(self.layers.items()):
            x = layer.apply(part(params, name), x)
            if self.layer_norm:
                x = LayerNorm(layer.out_features).apply(part(params, str(int(name) + 1)), x)
            x = dropped(params, activation_of(self.activation)(x), self.dropout, number)
        return x


@dataclass(frozen=True)
class Simba:
    """SimBa (Lee et al., 2024): residual blocks with layer normalization, one per entry of `hidden_sizes`, each four
    times as wide inside. It expects normalized observations.

    >>> net = Simba((4,), hidden_sizes=(8, 8))
    >>> net.apply(net.init(np.random.default_rng(0)), np.zeros((3, 4), np.float32)).shape
    (3, 8)
    """

    obs_shape: tuple[int, ...]
    hidden_sizes: tuple[int, ...] = (64, 64)
    gain: Gain = field(default=HIDDEN_GAIN, compare=False)  # of the initial weights; irrelevant afterwards
    dropout: float = 0.0  # share of the features inside every block, in updates

    def __post_init__(self) -> None:
        block_width(self.hidden_sizes)

    @property
    def features(self) -> int:
        return self.hidden_sizes[0]

    @property
    def layers(self) -> Layers:
        """Its linear layers by name."""
        width, inside = self.features, 4 * self.features
        layers: Layers = {"embed": Dense(math.prod(self.obs_shape), width, self.gain)}
        for block in range(len(self.hidden_sizes)):
            layers[f"blocks.{block}.up"] = Dense(width, inside, self.gain)
            layers[f"blocks.{block}.down"] = Dense(inside, width, self.gain)
        return layers

    def init(self, rng: np.random.Generator) -> Params:
        drawn, norm = init_layers(self.layers, rng), LayerNorm(self.features)
        for block in range(len(self.hidden_sizes)):
            drawn |= named(f"blocks.{block}.norm", norm.init(rng))
        return drawn | named("norm", norm.init(rng))

    def apply(self, params: Params, obs: Obs) -> jax.Array:
        layers, norm = self.layers, LayerNorm(self.features)
        x = layers["embed"].apply(part(params, "embed"), jnp.reshape(obs, (obs.shape[0], -1)))
        for block in range(len(self.hidden_sizes)):
            names = [f"blocks.{block}.{name}" for name in ("norm", "up", "down")]
            inside = norm.apply(part(params, names[0]), x)
            inside = jax.nn.relu(layers[names[1]].apply(part(params, names[1]), inside))
            inside = dropped(params, inside, self.dropout, block)
            x = x + layers[names[2]].apply(part(params, names[2]), inside)
        return norm.apply(part(params, "norm"), x)


class Convolutional(ABC):
    """Convolutions, then fully connected layers, all with relu; then dropout. A subclass is configuration."""

    dropout: float

    @property
    @abstractmethod
    def layers(self) -> Layers:
        """Its layers by name."""

    def init(self, rng: np.random.Generator) -> Params:
        return init_layers(self.layers, rng)

    def apply(self, params: Params, obs: Obs) -> jax.Array:
        x = self.channels_first(obs)
        for name, layer in self.layers.items():
            x = x.reshape(x.shape[0], -1) if isinstance(layer, Dense) else x
            x = jax.nn.relu(layer.apply(part(params, name), x))
        return dropped(params, jnp.asarray(x), self.dropout)

    def channels_first(self, obs: Obs) -> Obs:
        """Observations as the convolutions take them."""
        return obs


@dataclass(frozen=True)
class NatureCNN(Convolutional):
    """The convolutional network of the 2015 DQN paper, for channel-first images of at least 36 × 36."""

    obs_shape: tuple[int, ...]
    features: int = 512
    sigma: float = 0.0
    gain: Gain = field(default=HIDDEN_GAIN, compare=False)  # of the initial weights; irrelevant afterwards
    dropout: float = 0.0  # share of the features, in updates

    def __post_init__(self) -> None:
        if len(self.obs_shape) != 3 or min(self.obs_shape[1:]) < 36:
            raise BadInput(
                f"the Nature CNN needs images (channels, height, width) of at least 36 × 36, got {self.obs_shape}; "
                f"use --backbone mlp, or resize the observation"
            )

    @property
    def layers(self) -> Layers:
        height, width = (((side - 8) // 4 + 1 - 4) // 2 + 1 - 2 for side in self.obs_shape[1:])
        return {
            "0": Convolution(self.obs_shape[0], 32, (8, 8), 4, self.gain),
            "2": Convolution(32, 64, (4, 4), 2, self.gain),
            "4": Convolution(64, 64, (3, 3), 1, self.gain),
            "7": Dense(64 * height * width, self.features, self.gain, self.sigma),
        }


@dataclass(frozen=True)
class SmallCNN(Convolutional):
    """Two small convolutions, for channel-first images from 5 × 5 that are too small for the Nature CNN."""

    obs_shape: tuple[int, ...]
    features: int = 512
    gain: Gain = field(default=HIDDEN_GAIN, compare=False)  # of the initial weights; irrelevant afterwards
    dropout: float = 0.0  # share of the features, in updates

    @property
    def layers(self) -> Layers:
        inputs = 32 * (self.obs_shape[1] - 4) * (self.obs_shape[2] - 4)
        return {
            "0": Convolution(self.obs_shape[0], 16, (3, 3), 1, self.gain),
            "2": Convolution(16, 32, (3, 3), 1, self.gain),
            "5": Dense(inputs, self.features, self.gain),
        }


@dataclass(frozen=True)
class Conv1d(Convolutional):
    """Convolutions along time for sequences `[B, L, C]`, such as the last L rounds of a game."""

    obs_shape: tuple[int, ...]
    channels: tuple[int, ...] = (32, 32)
    kernel: int = 3
    features: int = 64
    sigma: float = 0.0
    gain: Gain = field(default=HIDDEN_GAIN, compare=False)  # of the initial weights; irrelevant afterwards
    dropout: float = 0.0  # share of the features, in updates

    def __post_init__(self) -> None:
        lost = len(self.channels) * (self.kernel - 1)
        if len(self.obs_shape) != 2 or self.obs_shape[0] <= lost:
            raise BadInput(
                f"the Conv1d backbone needs sequences (length, channels) longer than {lost}, "
                f"got {self.obs_shape}; use --backbone mlp"
            )

    @property
    def layers(self) -> Layers:
        pairs = list(itertools.pairwise([self.obs_shape[1], *self.channels]))
        layers: Layers = {
            f"layers.{2 * i}": Convolution(*pair, (self.kernel,), gain=self.gain) for i, pair in enumerate(pairs)
        }
        length = self.obs_shape[0] - len(pairs) * (self.kernel - 1)
        flat = Dense(pairs[-1][1] * length, self.features, self.gain, self.sigma)
        return layers | {f"layers.{2 * len(pairs) + 1}": flat}

    def channels_first(self, obs: Obs) -> Obs:
        return jnp.swapaxes(obs, 1, 2)


@dataclass(frozen=True)
class Pixels:
    """A backbone whose uint8 input is first scaled to [0, 1]."""

    backbone: Backbone

    @property
    def features(self) -> int:
        return int(self.backbone.features)

    def init(self, rng: np.random.Generator) -> Params:
        return named("backbone", self.backbone.init(rng))

    def apply(self, params: Params, obs: Obs) -> jax.Array:
        return self.backbone.apply(part(params, "backbone"), jnp.asarray(obs, jnp.float32) / 255.0)


@dataclass(frozen=True)
class KeyedBackbone:
    """For observations with several parts: each image goes through a CNN, everything else is used directly (vectors
    normalized if the agent does that, discrete values one-hot). An MLP processes the concatenation."""

    encoders: tuple[tuple[str, Backbone | None], ...]  # by the path of each part; None: used directly
    mlp: MLP

    @property
    def features(self) -> int:
        return self.mlp.features

    @staticmethod
    def prefix(path: str) -> str:
        """Of an encoder's parameters, as in the PyTorch engine, where names of modules have no dots."""
        return f"encoders.{path.replace('.', '/')}"

    def init(self, rng: np.random.Generator) -> Params:
        drawn: Params = {}
        for name, encoder in self.encoders:
            drawn |= {} if encoder is None else named(self.prefix(name), encoder.init(rng))
        return drawn | named("mlp", self.mlp.init(rng))

    def apply(self, params: Params, obs: Obs) -> jax.Array:
        parts = []
        for name, encoder in self.encoders:
            x = obs[name] if encoder is None else encoder.apply(part(params, self.prefix(name)), obs[name])
            parts.append(jnp.reshape(x, (x.shape[0], -1)))
        return self.mlp.apply(part(params, "mlp"), jnp.concatenate(parts, axis=1))


def _keyed(obs_spec: ObsSpec, config: AnyModelConfig) -> KeyedBackbone:
    sigma, gain = first_weights(config)
    encoders = {name: _image_encoder(leaf, config) if leaf.is_image else None for name, leaf in obs_spec.leaves.items()}
    widths = {name: math.prod(leaf.shape) for name, leaf in obs_spec.leaves.items()}
    width = sum(widths[name] if encoder is None else encoder.features for name, encoder in encoders.items())
    mlp = MLP((width,), tuple(config.hidden_sizes), config.activation, sigma, gain, dropout=config.dropout)
    return KeyedBackbone(tuple(encoders.items()), mlp)


def _image_encoder(leaf: ObsSpec, config: AnyModelConfig) -> Backbone:
    gain, side = first_weights(config)[1], min(leaf.shape[1:])
    if side < 5:
        return Pixels(MLP(leaf.shape, (config.cnn_features,), "relu", 0.0, gain, dropout=config.dropout))
    if side < 36:
        return Pixels(SmallCNN(leaf.shape, config.cnn_features, gain, config.dropout))
    return Pixels(NatureCNN(leaf.shape, config.cnn_features, 0.0, gain, config.dropout))


def first_weights(config: AnyModelConfig) -> tuple[float, Gain]:
    """`sigma` and `gain` of a config's hidden layers."""
    sigma, usual = (0.0, HIDDEN_GAIN) if isinstance(config, ModelConfig) else (config.sigma, None)
    return sigma, gain_of(config.init, usual, HIDDEN_GAIN)


def make_mlp(obs_spec: ObsSpec, config: AnyModelConfig) -> Backbone:
    """An MLP for observations of one array."""
    layer_norm = isinstance(config, ActorCriticConfig) and config.layer_norm
    sizes, start = tuple(config.hidden_sizes), first_weights(config)
    return MLP(obs_spec.shape, sizes, config.activation, *start, layer_norm, config.dropout)


def make_simba(obs_spec: ObsSpec, config: AnyModelConfig) -> Backbone:
    """SimBa: residual blocks with layer normalization."""
    if isinstance(config, QModelConfig) and config.noisy:
        raise BadInput("simba has no noisy layers; use --backbone mlp, or leave --noisy out")
    return Simba(obs_spec.shape, tuple(config.hidden_sizes), first_weights(config)[1], config.dropout)


def make_cnn(obs_spec: ObsSpec, config: AnyModelConfig) -> Backbone:
    """The CNN of the DQN paper, for images."""
    return NatureCNN(obs_spec.shape, config.cnn_features, *first_weights(config), config.dropout)


def make_conv1d(obs_spec: ObsSpec, config: AnyModelConfig) -> Backbone:
    """A convolution over time, for sequences of vectors."""
    sigma, gain = first_weights(config)
    width = (config.hidden_sizes or (64,))[-1]
    return Conv1d(obs_spec.shape, features=width, sigma=sigma, gain=gain, dropout=config.dropout)


def make_backbone(config: AnyModelConfig, obs_spec: ObsSpec) -> Backbone:
    """The backbone that a config selects. `auto` depends on the observation: images → cnn, several parts with at least
    one image → an encoder for each, everything else → mlp."""
    if config.backbone == "auto" and obs_spec.is_structured:
        return _keyed(obs_spec, config)
    options = plain_pairs("backbone_kwargs", config.backbone_kwargs)
    backbone: Backbone = part_maker(BACKBONES, backbone_name(config, obs_spec), "jax")(obs_spec, config, **options)
    return Pixels(backbone) if obs_spec.dtype == "uint8" else backbone
