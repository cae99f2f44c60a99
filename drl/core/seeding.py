"""Named random streams from one root seed. A stream depends only on its name and index, not on the order of calls."""

import zlib

import numpy as np

from drl.core.state_files import StateDict


class Seeds:
    """Spawns independent random streams from one root seed.

    >>> Seeds(7).generator("envs", 0).integers(100) == Seeds(7).generator("envs", 0).integers(100)
    np.True_
    >>> Seeds(7).integer("envs", 0) == Seeds(7).integer("envs", 1)
    False
    """

    def __init__(self, root: int):
        self.root = root

    def sequence(self, name: str, *index: int) -> np.random.SeedSequence:
        """Return the seed sequence of a named stream."""
        return np.random.SeedSequence(self.root, spawn_key=(zlib.crc32(name.encode()), *(index or (0,))))

    def generator(self, name: str, *index: int) -> np.random.Generator:
        """Return the generator of a named stream."""
        return np.random.Generator(np.random.PCG64(self.sequence(name, *index)))

    def integer(self, name: str, *index: int) -> int:
        """Return a 31-bit seed for libraries that take an int."""
        return self.integers(1, name, *index)[0]

    def integers(self, count: int, name: str, *index: int) -> list[int]:
        """Return several such seeds of a named stream."""
        return [int(word) >> 1 for word in self.sequence(name, *index).generate_state(count)]


def seeds_of(specs: object, seed: int | None = None) -> Seeds:
    """Return the streams of a root seed; None: the seed of the environments, or 0 if they have none."""
    return Seeds((getattr(specs, "seed", None) or 0) if seed is None else seed)


def stream_of(specs: object, name: str) -> np.random.Generator:
    """Return a named stream of the environments' root seed."""
    return seeds_of(specs).generator(name)


def generator_state(rng: np.random.Generator) -> StateDict:
    """Return a generator's state as plain data."""
    return dict(rng.bit_generator.state)


def restore_generator(rng: np.random.Generator, state: StateDict) -> None:
    """Restore a generator's state."""
    rng.bit_generator.state = state
