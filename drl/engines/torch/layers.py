"""Layers of backbones and heads: activations, weight initialization, dropout, noisy layers, batch renormalization."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drl.core.errors import BadInput, one_line
from drl.core.network_parts import ACTIVATIONS, part_maker
from drl.engines.numpy.layer_parts import Gain, Init
from drl.engines.numpy.networks import RENORM_EPS, RENORM_KEEP, RENORM_SCALE, RENORM_SHIFT

tanh = nn.Tanh
relu: partial[nn.ReLU] = partial(nn.ReLU, inplace=True)
gelu: partial[nn.GELU] = partial(nn.GELU, approximate="tanh")
silu = nn.SiLU
elu = nn.ELU
leaky_relu = nn.LeakyReLU
selu = nn.SELU
mish = nn.Mish
softplus = nn.Softplus
sigmoid = nn.Sigmoid


class FunctionLayer(nn.Module):
    """A registered function as a layer."""

    def __init__(self, name: str, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.name: str = name
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return self.name


def make_activation(name: str) -> nn.Module:
    """A new layer of this activation."""
    made = part_maker(ACTIVATIONS, name, "torch")
    probe = torch.zeros(2, 3)
    try:
        # A class, or a partial one of ours, makes a module; anything else is the function itself.
        layer: nn.Module = made() if isinstance(made, type | partial) else FunctionLayer(name, made)
        output = layer(probe.clone())
    except Exception as error:  # it may be a user's
        reason = one_line(error, 160)
        raise BadInput(f"activation {name!r} is not a function or module of PyTorch tensors: {reason}") from error
    if not isinstance(output, Tensor) or output.shape != probe.shape:
        raise BadInput(f"activation {name!r} turns a tensor {tuple(probe.shape)} into another shape; expected the same")
    return layer


def initialize(layer: nn.Linear | nn.Conv1d | nn.Conv2d, gain: Gain, generator: torch.Generator | None) -> nn.Module:
    """Draw a layer's weights from `generator`: orthogonal with zero bias; for `gain=None` uniform, bias included; or
    those of an `Init`. Returns the layer.

    Policies and critics use the first, action values the second, as is usual for DQN (benchmarks/RESULTS.md).
    """
    assert layer.bias is not None
    if gain is None:
        bound = layer.weight[0].numel() ** -0.5  # as torch does
        nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    elif isinstance(gain, Init):
        rng = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
        layer.weight.data.copy_(torch.from_numpy(gain.weights(rng, tuple(layer.weight.shape))))
        nn.init.zeros_(layer.bias)
    else:
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        nn.init.zeros_(layer.bias)
    return layer


def dropout_parts(model: nn.Module) -> list[nn.Module]:
    """The parts of a model that act differently in training; from now on they are in evaluation mode."""
    kind = nn.modules.dropout._DropoutNd
    parts = [part for part in model.modules() if isinstance(part, kind) or bool(getattr(part, "dropout", False))]
    for part in parts:
        part.training = False
    return parts


@contextlib.contextmanager
def training_mode(parts: Sequence[nn.Module], seed: int, device: torch.device) -> Iterator[None]:
    """Dropout on, with random numbers that depend on the seed only; the global stream is untouched."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for part in parts:
            part.training = True
        try:
            yield
        finally:
            for part in parts:
                part.training = False


class NoisyLinear(nn.Module):
    """Weights that are a mean plus learned noise, so that the network explores by itself (Fortunato et al., 2018).

    y = (μ_w + σ_w ⊙ ε_w) x + μ_b + σ_b ⊙ ε_b with factorized noise ε_w = f(ε_out) f(ε_in)ᵀ, f(x) = sgn(x) √|x|.

    The noise stays the same until `resample`; with `quiet` the layer is its mean, as in evaluation.
    """

    def __init__(
        self, in_features: int, out_features: int, sigma: float = 0.5, generator: torch.Generator | None = None
    ):
        super().__init__()
        self.in_features: int = in_features
        self.out_features: int = out_features
        self.sigma: float = sigma
        bound = 1 / math.sqrt(in_features)
        self.weight: nn.Parameter = nn.Parameter(
            torch.empty(out_features, in_features).uniform_(-bound, bound, generator=generator)
        )
        self.bias: nn.Parameter = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound, generator=generator))
        self.weight_sigma: nn.Parameter = nn.Parameter(torch.full((out_features, in_features), sigma * bound))
        self.bias_sigma: nn.Parameter = nn.Parameter(torch.full((out_features,), sigma * bound))
        self.noise_in: Tensor
        self.noise_out: Tensor
        self.register_buffer("noise_in", torch.zeros(in_features), persistent=False)
        self.register_buffer("noise_out", torch.zeros(out_features), persistent=False)
        self.quiet = False

    def resample(self, generator: torch.Generator) -> None:
        """Draw new noise."""
        for noise in (self.noise_in, self.noise_out):
            raw = torch.randn(noise.shape, generator=generator)
            noise.copy_(raw.sign() * raw.abs().sqrt())

    def forward(self, x: Tensor) -> Tensor:
        if self.quiet:
            return F.linear(x, self.weight, self.bias)
        weight = self.weight + self.weight_sigma * torch.outer(self.noise_out, self.noise_in)
        return F.linear(x, weight, self.bias + self.bias_sigma * self.noise_out)


def noisy_layers(model: nn.Module) -> list[NoisyLinear]:
    """All noisy layers of a model."""
    return [module for module in model.modules() if isinstance(module, NoisyLinear)]


def resample(layers: Sequence[NoisyLinear], rng: np.random.Generator) -> None:
    """Draw new noise for all layers."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    for layer in layers:
        layer.resample(generator)


def make_linear(
    in_features: int, out_features: int, gain: Gain, sigma: float, generator: torch.Generator | None
) -> nn.Module:
    """A linear layer, or a noisy one if `sigma` is above 0."""
    if sigma:
        return NoisyLinear(in_features, out_features, sigma, generator)
    return initialize(nn.Linear(in_features, out_features), gain, generator)


class BatchRenorm(nn.Module):
    """Batch renormalization (Ioffe, 2017). Training uses the batch's mean and deviation, corrected towards the running
    ones within limits; without correction during the warm-up, which is batch normalization.

    A forward pass changes no state: it appends the batch's mean and variance to `statistics`, for `update`.
    """

    def __init__(self, width: int, warmup: int):
        super().__init__()
        self.weight: nn.Parameter = nn.Parameter(torch.ones(width))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(width))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.count: Tensor
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.register_buffer("count", torch.zeros(1))  # updates so far
        self.warmup = warmup

    def forward(self, x: Tensor, statistics: list[Tensor] | None = None) -> Tensor:
        deviation = (self.running_var + RENORM_EPS).sqrt()
        if statistics is None:
            return (x - self.running_mean) / deviation * self.weight + self.bias
        mean, variance = x.mean(dim=0), x.var(dim=0, correction=0)
        statistics += [mean.detach(), variance.detach()]
        batch_deviation = (variance + RENORM_EPS).sqrt()
        with torch.no_grad():
            warm = (self.count >= self.warmup).to(x.dtype)
            scale = (batch_deviation / deviation).clamp(1 / RENORM_SCALE, RENORM_SCALE)
            shift = ((mean - self.running_mean) / deviation).clamp(-RENORM_SHIFT, RENORM_SHIFT)
            scale, shift = 1 + warm * (scale - 1), warm * shift
        return ((x - mean) / batch_deviation * scale + shift) * self.weight + self.bias

    @torch.no_grad()
    def update(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running averages towards the moments of a batch."""
        self.running_mean.lerp_(mean, 1 - RENORM_KEEP)
        self.running_var.lerp_(variance, 1 - RENORM_KEEP)
        self.count += 1

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, warmup={self.warmup}"
