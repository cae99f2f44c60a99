"""The random numbers of one update of an actor-critic, drawn in NumPy so that all engines take the same ones."""

from typing import NamedTuple

import numpy as np

from drl.core.specs import AnyArray


class UpdateDraws(NamedTuple):
    """As arrays of NumPy, PyTorch or JAX."""

    next_noise: AnyArray  # [B, entries] standard normal: of the target's actions
    noise: AnyArray  # [B, entries] standard normal: of the actor's actions
    subset: AnyArray  # [M] int: critics whose values make up the target


def draw_update(rng: np.random.Generator, rows: int, entries: int, critics: int, subset: int) -> UpdateDraws:
    """Noise and critics for one update."""
    noise = rng.standard_normal((2, rows, entries), np.float32)
    chosen = np.arange(critics) if subset == critics else np.sort(rng.permutation(critics)[:subset])
    return UpdateDraws(noise[0], noise[1], chosen)
