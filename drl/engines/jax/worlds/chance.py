"""Uniform noise, and exact decisions from it.

A float32 draw is compared with float64 probabilities of the NumPy rules. Rounding such a number *up* to float32 keeps
every comparison: a float32 lies below p exactly when it lies below the smallest float32 that is not below p.
"""

from typing import Any

import jax
import numpy as np

from drl.core.specs import Array
from drl.engines.jax.worlds.world_contract import Noise


def uniform_noise(key: jax.Array, shape: tuple[int, ...], *, reset: int, step: int = 0) -> Noise:
    """Draws from [0, 1): `reset` of them for each reset, `step` for each step."""
    reset_key, step_key = jax.random.split(key)
    per_step = jax.random.uniform(step_key, (*shape, step)) if step else None
    return Noise(jax.random.uniform(reset_key, (*shape, reset)), per_step)


def rounded_up(values: Any) -> Array:
    """The smallest float32 that is not below each value.

    >>> float(np.float32(0.9)), float(rounded_up(0.9))
    (0.8999999761581421, 0.9000000357627869)
    """
    exact = np.asarray(values, np.float64)
    nearest = exact.astype(np.float32)
    return np.where(nearest < exact, np.nextafter(nearest, np.float32(np.inf)), nearest)
