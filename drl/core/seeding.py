"""One root seed, many named streams. A stream depends only on its name and index, not on the order of calls."""

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
        """The seed sequence of a named stream."""
        return np.random.SeedSequence(self.root, spawn_key=(zlib.crc32(name.encode()), *(index or (0,))))

    def generator(self, name: str, *index: int) -> np.random.Generator:
        """The generator of a named stream."""
        return np.random.Generator(np.random.PCG64(self.sequence(name, *index)))

    def integer(self, name: str, *index: int) -> int:
        """A 31-bit seed for libraries that take an int."""
        return self.integers(1, name, *index)[0]

    def integers(self, count: int, name: str, *index: int) -> list[int]:
        """Whole numbers of a named stream, for libraries that take a seed."""
        return [int(word) >> 1 for word in self.sequence(name, *index).generate_state(count)]


def seeds_of(specs: object, seed: int | None = None) -> Seeds:
    """The streams of a root seed. None: that of the environments, or 0 where they have none."""
    return Seeds((getattr(specs, "seed", None) or 0) if seed is None else seed)


def stream_of(specs: object, name: str) -> np.random.Generator:
    """A named stream of the root seed of environments."""
    return seeds_of(specs).generator(name)


def generator_state(rng: np.random.Generator) -> StateDict:
    """JSON-friendly state of a generator."""
    return dict(rng.bit_generator.state)


def restore_generator(rng: np.random.Generator, state: StateDict) -> None:
    """Put a generator where `generator_state` found it."""
    rng.bit_generator.state = state
