"""Activations and initial weights by name. Initial weights are drawn in NumPy for all engines:
`(rng, shape [out, in, …], gain) -> weights`.

The formulas are those of `torch.nn.init`. A convolution's kernel counts to its inputs and outputs.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from drl.core.errors import BadInput
from drl.core.network_parts import ACTIVATIONS, INITIALIZATIONS, part_maker, resolve
from drl.core.specs import AnyArray, Array

tanh: Callable[[Array], Array] = np.tanh
relu: Callable[[Array], Array] = partial(np.maximum, 0.0)
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772  # Klambauer et al., 2017


@cache
def activation_of(name: str) -> Callable[[Array], Array]:
    """The function of an activation by name."""
    return part_maker(ACTIVATIONS, name, "numpy")


def gelu(x: Array) -> Array:
    """GELU in its tanh form."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    answer: Array = 0.5 * x * (1.0 + np.tanh(inner))
    return answer


def silu(x: Array) -> Array:
    """x · sigmoid(x)."""
    return x * sigmoid(x)


def elu(x: Array) -> Array:
    """x above 0, eˣ − 1 below."""
    return np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0)))


def leaky_relu(x: Array) -> Array:
    """x above 0, a hundredth of it below."""
    return np.where(x >= 0.0, x, 0.01 * x)


def selu(x: Array) -> Array:
    """ELU, scaled so that it keeps mean and variance."""
    return SELU_SCALE * np.where(x > 0.0, x, SELU_ALPHA * np.expm1(np.minimum(x, 0.0)))


def mish(x: Array) -> Array:
    """x · tanh(softplus(x))."""
    answer: Array = x * np.tanh(softplus(x))
    return answer


def softplus(x: Array) -> Array:
    """log(1 + eˣ)."""
    answer: Array = np.logaddexp(x, np.zeros_like(x))
    return answer


def sigmoid(x: AnyArray, xp: AnyArray = np) -> AnyArray:
    """Computed by tanh, which cannot overflow. `xp` is the module of the array."""
    return 0.5 * xp.tanh(0.5 * x) + 0.5


Shape = tuple[int, ...]
HIDDEN_GAIN = math.sqrt(2)
POLICY_GAIN = 0.01  # of policy heads: nearly uniform at first, so that every action gets its chance


class Init(NamedTuple):
    """A named initialization, scaled by `gain`, with biases of 0."""

    name: str
    gain: float

    def weights(self, rng: np.random.Generator, shape: Shape) -> Array:
        """First weights of one layer, checked."""
        drawn = np.asarray(resolve(INITIALIZATIONS[self.name])(rng, shape, self.gain), np.float32)
        if drawn.shape != shape or not np.isfinite(drawn).all():
            raise BadInput(f"the initialization {self.name!r} gave {drawn.shape}; expected finite weights of {shape}")
        return drawn


Gain = float | None | Init  # of orthogonal weights; None: uniform weights and bias, for action values


def gain_of(init: str, usual: Gain, gain: float) -> Gain:
    """The first weights of a layer: the `usual` ones, or those that a config's `init` names."""
    return usual if init == "auto" else Init(init, gain)


def orthogonal(rng: np.random.Generator, shape: Shape, gain: float) -> Array:
    """A weight whose rows (or columns, if there are more rows than columns) are orthogonal."""
    rows, columns = shape[0], math.prod(shape[1:])
    square = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(square)
    q = q * np.sign(np.diag(r))
    return (gain * (q if rows >= columns else q.T)).reshape(shape).astype(np.float32)


def xavier_uniform(rng: np.random.Generator, shape: Shape, gain: float) -> Array:
    """Within ±gain · √(6 / (inputs + outputs))."""
    bound = gain * math.sqrt(6.0 / sum(_fans(shape)))
    return rng.uniform(-bound, bound, shape)


def xavier_normal(rng: np.random.Generator, shape: Shape, gain: float) -> Array:
    """With the variance gain² · 2 / (inputs + outputs)."""
    return gain * math.sqrt(2.0 / sum(_fans(shape))) * rng.standard_normal(shape)


def kaiming_uniform(rng: np.random.Generator, shape: Shape, gain: float) -> Array:
    """Within ±gain · √(3 / inputs)."""
    bound = gain * math.sqrt(3.0 / _fans(shape)[0])
    return rng.uniform(-bound, bound, shape)


def kaiming_normal(rng: np.random.Generator, shape: Shape, gain: float) -> Array:
    """With the variance gain² / inputs."""
    return gain / math.sqrt(_fans(shape)[0]) * rng.standard_normal(shape)


def _fans(shape: Shape) -> tuple[int, int]:
    """Inputs and outputs of a layer."""
    kernel = math.prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel
