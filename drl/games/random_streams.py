"""What our own vector environments share: a random stream per environment, seeds, and Gymnasium's layout of infos."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from drl.core.errors import BadInput
from drl.core.specs import Array

BLOCK = 256  # draws fetched from a generator at once; calls into Python cost more than unused draws


def masked(info: dict[str, Any], mask: Array) -> dict[str, Any]:
    """Gymnasium's layout: beside each array a mask of the environments it speaks of."""
    return info | {f"_{key}": mask for key in info}


def streams_for(seed: int | Sequence[int] | None, num_envs: int) -> "UniformStreams":
    """Environment i draws what a single environment with seed `seed + i`, or `seed[i]`, would draw."""
    seeds: list[Any] = [None] * num_envs
    if seed is not None:
        seeds = list(seed) if isinstance(seed, list | tuple | np.ndarray) else [seed]
        if isinstance(seed, int | np.integer):
            seeds = [seed + i for i in range(num_envs)]
        if len(seeds) != num_envs or not all(isinstance(s, int | np.integer) and s >= 0 for s in seeds):
            raise BadInput(
                f"seed = {seed!r}; expected a whole number, 0 or more, or one for each of {num_envs} environments"
            )
    return UniformStreams([seeding.np_random(None if one is None else int(one))[0] for one in seeds])


class UniformStreams:
    """Random numbers for N environments at the price of one array, while each environment keeps a stream of its own.

    Environment i sees, one by one, what `generators[i].random()` would give it, whatever the others do.

    >>> streams = UniformStreams([np.random.default_rng(0), np.random.default_rng(1)])
    >>> first, other = streams.draw_all(), streams.draw(np.array([1]))
    >>> [first[1], other[0]] == np.random.default_rng(1).random(2).tolist()
    True
    """

    def __init__(self, generators: Sequence[np.random.Generator]):
        self._generators = generators
        self._draws = np.empty((len(generators), BLOCK))
        self._first = (
            np.arange(len(generators)) * BLOCK
        )  # where an environment's draws begin, counted through all of them
        self._used = np.full(len(generators), BLOCK)
        self._sure = 0  # draws that every environment has left for certain

    def draw_all(self) -> Array:
        """The next number of every environment."""
        self._spend()
        draws = self._draws.take(self._first + self._used)
        self._used += 1
        return draws

    def draw(self, indices: Array) -> Array:
        """The next number of each of these environments (indices, none twice)."""
        self._spend()
        used = self._used[indices]
        self._used[indices] = used + 1
        return self._draws[indices, used]

    def _spend(self) -> None:
        if not self._sure:
            self._refill()
        self._sure -= 1

    def _refill(self) -> None:
        for index in np.flatnonzero(self._used == BLOCK).tolist():
            self._generators[index].random(out=self._draws[index])
            self._used[index] = 0
        self._sure = BLOCK - int(self._used.max())
