"""The sum tree compiled with numba (extra `numba`): a plain binary heap, one weight at a time."""

import os
from pathlib import Path

# Compiled functions are cached in the user's own folder; by default numba may use a folder named by a local file.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drl" / "numba"
os.environ.setdefault("NUMBA_CACHE_DIR", str(CACHE))

import numba  # noqa: E402
import numpy as np  # noqa: E402

from drl.core.specs import Array  # noqa: E402


class CompiledSumTree:
    """The same interface as `SumTree`, and the same results up to rounding."""

    def __init__(self, size: int):
        self.size = size
        self.leaves: int = 1 << max(size - 1, 1).bit_length()
        self.nodes: Array = np.zeros(2 * self.leaves)  # the root is node 1, the children of node i are 2i and 2i + 1

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self.nodes[1])

    def __getitem__(self, index: Array) -> Array:
        return self.nodes[self.leaves + index]

    def set(self, index: Array, weight: Array) -> None:
        """Write weights of leaves and the sums above them."""
        _set(self.nodes, self.leaves, index, weight)

    def find(self, mass: Array) -> Array:
        """The leaf in which each mass falls."""
        return _find(self.nodes, self.leaves, mass)


@numba.njit("void(f8[::1], i8, i8[::1], f8[::1])", cache=True)  # type: ignore[untyped-decorator,unused-ignore]
def _set(nodes: Array, leaves: int, index: Array, weight: Array) -> None:
    for i in range(len(index)):
        node = leaves + index[i]
        nodes[node] = weight[i]
        while node > 1:
            node >>= 1
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]


@numba.njit("i8[::1](f8[::1], i8, f8[::1])", cache=True)  # type: ignore[untyped-decorator,unused-ignore]
def _find(nodes: Array, leaves: int, mass: Array) -> Array:
    found = np.empty(len(mass), np.int64)
    for i in range(len(mass)):
        node, rest = 1, mass[i]
        while node < leaves:
            node *= 2
            # To the right only if it has weight, so that rounding does not lead to an empty leaf.
            if rest >= nodes[node] and nodes[node + 1] > 0.0:
                rest -= nodes[node]
                node += 1
        found[i] = node - leaves
    return found
