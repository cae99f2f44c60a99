"""Shared by our own environments: a random stream per environment, seeds, and Gymnasium's layout of infos."""

from collections.abc import Mapping, Sequence

import numpy as np
from gymnasium.utils import seeding

from drl.core.errors import BadInput
from drl.core.seeding import generator_state, restore_generator
from drl.core.specs import Array
from drl.core.state_files import StateDict

BLOCK = 256  # draws fetched from a generator at once: one call costs more than unused draws

Info = dict[str, object]  # what `reset` and `step` return beside the observation


def masked(info: Mapping[str, object], mask: Array) -> Info:
    """Gymnasium's layout: each array has a mask of the environments that it applies to."""
    return {**info, **{f"_{key}": mask for key in info}}


def streams_for(seed: int | Sequence[int] | None, num_envs: int) -> "UniformStreams":
    """Environment i draws the same numbers as a single environment with seed `seed + i`, or `seed[i]`."""
    seeds: list[int] | list[None] = [None] * num_envs
    if seed is not None:
        if isinstance(seed, int | np.integer):
            seeds = [int(seed) + i for i in range(num_envs)]
        else:
            seeds = list(seed) if isinstance(seed, list | tuple | np.ndarray) else []
        if len(seeds) != num_envs or not all(isinstance(s, int | np.integer) and s >= 0 for s in seeds):
            raise BadInput(
                f"seed = {seed!r}; expected a whole number, 0 or more, or one for each of {num_envs} environments"
            )
    return UniformStreams([seeding.np_random(None if one is None else int(one))[0] for one in seeds])


class UniformStreams:
    """Random numbers for N environments as one array, while each environment keeps its own stream.

    Environment i gets the numbers that `generators[i].random()` would return, whatever the others do.

    >>> streams = UniformStreams([np.random.default_rng(0), np.random.default_rng(1)])
    >>> first, other = streams.draw_all(), streams.draw(np.array([1]))
    >>> [first[1], other[0]] == np.random.default_rng(1).random(2).tolist()
    True
    """

    def __init__(self, generators: Sequence[np.random.Generator]):
        self._generators = generators
        self._draws = np.empty((len(generators), BLOCK))
        self._first = np.arange(len(generators)) * BLOCK  # flat index of each environment's first draw
        self._used = np.full(len(generators), BLOCK)
        self._sure = 0  # draws that every environment still has

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

    def state_dict(self) -> StateDict:
        kept = {"draws": self._draws.copy(), "used": self._used.copy(), "sure": self._sure}
        return kept | {"generators": [generator_state(generator) for generator in self._generators]}

    def load_state_dict(self, state: StateDict) -> None:
        self._draws[:], self._used[:], self._sure = state["draws"], state["used"], int(state["sure"])
        for generator, stored in zip(self._generators, state["generators"], strict=True):
            restore_generator(generator, stored)
