"""Activations in NumPy, the same functions as in the other engines. `gelu` is its tanh form: NumPy has no erf."""

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np

from drl.core.network_parts import ACTIVATIONS, part_maker
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
