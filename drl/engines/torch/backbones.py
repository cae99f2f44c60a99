"""Backbones: observation → features. The attribute `features` is the width that a head must expect.

`sigma` is the initial strength of noisy layers (0: plain ones), `gain` the scale of orthogonal weights (None: uniform
ones, for action values) or an `Init`.
"""

import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
from drl.core.specs import ObsSpec
from drl.engines.numpy.layer_parts import HIDDEN_GAIN, Gain, gain_of
from drl.engines.torch.layers import initialize, make_activation, make_linear
from drl.engines.torch.recurrent import Recurrent


class MLP(nn.Sequential):
    """Fully connected layers over the flattened observation. The first one is never noisy, like the convolutions of a
    CNN.

    >>> MLP((4,), hidden_sizes=(8, 8))(torch.zeros(3, 4)).shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        hidden_sizes: Sequence[int] = (64, 64),
        activation: str = "tanh",
        generator: torch.Generator | None = None,
        sigma: float = 0.0,
        gain: Gain = HIDDEN_GAIN,
        layer_norm: bool = False,
        dropout: float = 0.0,  # share of the features behind every activation that updates set to 0
    ):
        widths = [math.prod(obs_shape), *hidden_sizes]
        layers: list[nn.Module] = [nn.Flatten()] if len(obs_shape) != 1 else []
        named: dict[str, nn.Module] = {str(number): layer for number, layer in enumerate(layers)}
        number = len(layers)  # dropout layers are not counted, so that weights have the same names without them
        for i, (in_features, out_features) in enumerate(itertools.pairwise(widths)):
            block = [make_linear(in_features, out_features, gain, sigma if i else 0.0, generator)]
            block += [nn.LayerNorm(out_features)] if layer_norm else []
            for layer in (*block, make_activation(activation)):
                named[str(number)] = layer
                number += 1
            if dropout:
                named[f"dropout{number - 1}"] = nn.Dropout(dropout)
        super().__init__(OrderedDict(named))
        self.activation = activation
        self.dropout = dropout
        self.features: int = widths[-1]


class ResidualBlock(nn.Module):
    """x + down(relu(up(norm(x)))), four times as wide inside."""

    def __init__(self, width: int, gain: Gain, generator: torch.Generator | None, dropout: float = 0.0):
        super().__init__()
        self.dropout = dropout
        self.norm: nn.LayerNorm = nn.LayerNorm(width)
        self.up: nn.Module = make_linear(width, 4 * width, gain, 0.0, generator)
        self.down: nn.Module = make_linear(4 * width, width, gain, 0.0, generator)

    def forward(self, x: Tensor) -> Tensor:
        inside = torch.relu(self.up(self.norm(x)))
        return x + self.down(dropped(self, inside))


def dropped(part: nn.Module, features: Tensor) -> Tensor:
    """Dropout by the share `part.dropout`, in updates."""
    share = part.dropout
    return F.dropout(features, share) if share and part.training else features  # type: ignore[arg-type]


class Simba(nn.Module):
    """SimBa (Lee et al., 2024): residual blocks with layer normalization, one per entry of `hidden_sizes`. It expects
    normalized observations.

    >>> Simba((4,), hidden_sizes=(8, 8))(torch.zeros(3, 4)).shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        hidden_sizes: Sequence[int] = (64, 64),
        generator: torch.Generator | None = None,
        gain: Gain = HIDDEN_GAIN,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.features: int = block_width(hidden_sizes)
        self.embed: nn.Module = make_linear(math.prod(obs_shape), self.features, gain, 0.0, generator)
        self.blocks: nn.ModuleList = nn.ModuleList(
            ResidualBlock(self.features, gain, generator, dropout) for _ in hidden_sizes
        )
        self.norm: nn.LayerNorm = nn.LayerNorm(self.features)

    def forward(self, obs: Tensor) -> Tensor:
        x: Tensor = self.embed(obs.flatten(1))
        for block in self.blocks:
            x = block(x)
        normalized: Tensor = self.norm(x)
        return normalized


class NatureCNN(nn.Sequential):
    """The convolutional network of the 2015 DQN paper, for channel-first images of at least 36 × 36."""

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        features: int = 512,
        generator: torch.Generator | None = None,
        sigma: float = 0.0,
        gain: Gain = HIDDEN_GAIN,
        dropout: float = 0.0,
    ):
        if len(obs_shape) != 3 or min(obs_shape[1:]) < 36:
            raise BadInput(
                f"the Nature CNN needs images (channels, height, width) of at least 36 × 36, got {obs_shape}; "
                f"use --backbone mlp, or resize the observation"
            )
        channels, relu = obs_shape[0], nn.ReLU
        convolutions = [
            initialize(nn.Conv2d(channels, 32, 8, stride=4), gain, generator),
            relu(),
            initialize(nn.Conv2d(32, 64, 4, stride=2), gain, generator),
            relu(),
            initialize(nn.Conv2d(64, 64, 3, stride=1), gain, generator),
            relu(),
            nn.Flatten(),
        ]
        height, width = (((side - 8) // 4 + 1 - 4) // 2 + 1 - 2 for side in obs_shape[1:])
        super().__init__(*convolutions, make_linear(64 * height * width, features, gain, sigma, generator), relu())
        self.features = features
        self.dropout = dropout

    def forward(self, obs: Tensor) -> Tensor:
        return dropped(self, super().forward(obs))


class Conv1d(nn.Module):
    """Convolutions along time for sequences `[B, L, C]`, such as the last L rounds of a game."""

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        channels: Sequence[int] = (32, 32),
        kernel: int = 3,
        features: int = 64,
        generator: torch.Generator | None = None,
        sigma: float = 0.0,
        gain: Gain = HIDDEN_GAIN,
        dropout: float = 0.0,
    ):
        if len(obs_shape) != 2 or obs_shape[0] <= len(channels) * (kernel - 1):
            raise BadInput(
                f"the Conv1d backbone needs sequences (length, channels) longer than {len(channels) * (kernel - 1)}, "
                f"got {obs_shape}; use --backbone mlp"
            )
        super().__init__()
        layers: list[nn.Module] = []
        in_features = obs_shape[1]
        for out_features in channels:
            layers += [initialize(nn.Conv1d(in_features, out_features, kernel), gain, generator), nn.ReLU()]
            in_features = out_features
        length = obs_shape[0] - len(channels) * (kernel - 1)
        flat = make_linear(in_features * length, features, gain, sigma, generator)
        self.layers: nn.Sequential = nn.Sequential(*layers, nn.Flatten(), flat, nn.ReLU())
        self.features = features
        self.dropout = dropout

    def forward(self, obs: Tensor) -> Tensor:
        return dropped(self, self.layers(obs.transpose(1, 2)))


class Pixels(nn.Module):
    """A backbone for uint8 images, scaled to [0, 1]."""

    def __init__(self, backbone: nn.Module):
        super().__init__()
        self.backbone = backbone
        self.features: int = backbone.features  # type: ignore[assignment]

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.backbone(obs.float() / 255.0)
        return features


class SmallCNN(nn.Sequential):
    """Two small convolutions, for channel-first images of at least 5 × 5 that are too small for the Nature CNN."""

    def __init__(
        self, obs_shape: tuple[int, ...], features: int = 512, generator: torch.Generator | None = None,
        gain: Gain = HIDDEN_GAIN, dropout: float = 0.0,
    ):  # fmt: skip
        convolutions = [
            initialize(nn.Conv2d(obs_shape[0], 16, 3), gain, generator),
            nn.ReLU(),
            initialize(nn.Conv2d(16, 32, 3), gain, generator),
            nn.ReLU(),
            nn.Flatten(),
        ]
        flat = 32 * (obs_shape[1] - 4) * (obs_shape[2] - 4)
        super().__init__(*convolutions, make_linear(flat, features, gain, 0.0, generator), nn.ReLU())
        self.features = features
        self.dropout = dropout

    def forward(self, obs: Tensor) -> Tensor:
        return dropped(self, super().forward(obs))


class KeyedBackbone(nn.Module):
    """For observations with several parts: a CNN for each image, joined with all other parts (discrete values one-hot),
    then an MLP."""

    def __init__(self, obs_spec: ObsSpec, config: AnyModelConfig, generator: torch.Generator | None = None):
        super().__init__()
        sigma, gain = first_weights(config)
        self.encoders: nn.ModuleDict = nn.ModuleDict()
        width = 0
        for name, leaf in obs_spec.leaves.items():
            encoder = _image_encoder(leaf, config, generator) if leaf.is_image else nn.Flatten()
            self.encoders[name.replace(".", "/")] = encoder  # a module's name has no dots
            width += int(getattr(encoder, "features", math.prod(leaf.shape)))
        self.mlp: MLP = MLP(
            (width,), config.hidden_sizes, config.activation, generator, sigma, gain, dropout=config.dropout
        )
        self.features: int = self.mlp.features

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        parts = [encoder(obs[name.replace("/", ".")]) for name, encoder in self.encoders.items()]
        joined: Tensor = self.mlp(torch.cat(parts, dim=1))
        return joined


def _image_encoder(leaf: ObsSpec, config: AnyModelConfig, generator: torch.Generator | None) -> nn.Module:
    gain, side = first_weights(config)[1], min(leaf.shape[1:])
    if side < 5:
        return Pixels(MLP(leaf.shape, (config.cnn_features,), "relu", generator, 0.0, gain, dropout=config.dropout))
    kind = NatureCNN if side >= 36 else SmallCNN
    return Pixels(kind(leaf.shape, config.cnn_features, generator, gain=gain, dropout=config.dropout))


def first_weights(config: AnyModelConfig) -> tuple[float, Gain]:
    """`sigma` and `gain` of the hidden layers that a config describes."""
    sigma, usual = (0.0, HIDDEN_GAIN) if isinstance(config, ModelConfig) else (config.sigma, None)
    return sigma, gain_of(config.init, usual, HIDDEN_GAIN)


def make_mlp(obs_spec: ObsSpec, config: AnyModelConfig, generator: torch.Generator | None = None) -> nn.Module:
    """An MLP for observations of one array."""
    layer_norm = isinstance(config, ActorCriticConfig) and config.layer_norm
    start = first_weights(config)
    return MLP(obs_spec.shape, config.hidden_sizes, config.activation, generator, *start, layer_norm, config.dropout)


def make_simba(obs_spec: ObsSpec, config: AnyModelConfig, generator: torch.Generator | None = None) -> nn.Module:
    """SimBa: residual blocks with layer normalization."""
    if isinstance(config, QModelConfig) and config.noisy:
        raise BadInput("simba has no noisy layers; use --backbone mlp, or leave --noisy out")
    return Simba(obs_spec.shape, config.hidden_sizes, generator, first_weights(config)[1], config.dropout)


def make_cnn(obs_spec: ObsSpec, config: AnyModelConfig, generator: torch.Generator | None = None) -> nn.Module:
    """The CNN of the DQN paper, for images."""
    return NatureCNN(obs_spec.shape, config.cnn_features, generator, *first_weights(config), config.dropout)


def make_conv1d(obs_spec: ObsSpec, config: AnyModelConfig, generator: torch.Generator | None = None) -> nn.Module:
    """A convolution over time, for sequences of vectors."""
    sigma, gain = first_weights(config)
    features = (config.hidden_sizes or (64,))[-1]
    return Conv1d(
        obs_spec.shape, features=features, generator=generator, sigma=sigma, gain=gain, dropout=config.dropout
    )


def make_backbone(config: AnyModelConfig, obs_spec: ObsSpec, generator: torch.Generator | None = None) -> nn.Module:
    """The backbone of a config, with a recurrent cell behind it if there is one in the config.

    `auto` depends on the observation: images → cnn, several parts with an image among them → an encoder for each,
    everything else → mlp.
    """
    backbone: nn.Module
    if config.backbone == "auto" and obs_spec.is_structured:
        backbone = KeyedBackbone(obs_spec, config, generator)
    else:
        options = plain_pairs("backbone_kwargs", config.backbone_kwargs)
        make = part_maker(BACKBONES, backbone_name(config, obs_spec), "torch")
        backbone = make(obs_spec, config, generator, **options)
    if obs_spec.dtype == "uint8":
        backbone = Pixels(backbone)
    if isinstance(config, ModelConfig) and config.recurrent != "none":
        backbone = Recurrent(backbone, config.recurrent, config.recurrent_size, generator)
    return backbone
