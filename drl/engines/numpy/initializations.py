"""First weights by name, drawn in NumPy for all engines: `(rng, shape [out, in, …], gain) -> weights`.

The formulas are those of `torch.nn.init`. A convolution's kernel counts to its inputs and outputs.
"""

import math
from typing import NamedTuple

import numpy as np

from drl.core.errors import BadInput
from drl.core.network_parts import INITIALIZATIONS, resolve
from drl.core.specs import Array

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
