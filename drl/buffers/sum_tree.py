"""A sum tree without its upper levels: proportional sampling and updates in a few dozen NumPy calls.

A binary tree over 100 000 leaves has 17 levels, and each costs NumPy's overhead. A running sum over a few thousand
numbers and one `searchsorted` take only as long as two levels. So they replace the upper levels of this tree. With
numba (extra `numba`) a compiled, plain binary heap is faster still.
"""

import importlib.util
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from drl.core.specs import Array

TOP = 8192  # approximate number of nodes in the highest level: for fewer nodes a running sum is faster


def make_sum_tree(size: int) -> "AnySumTree":
    """The fastest tree available: compiled if numba is installed."""
    if importlib.util.find_spec("numba") is None:
        return SumTree(size)
    return CompiledSumTree(size)


class SumTree:
    """`size` non-negative weights that can be changed and sampled in proportion.

    >>> tree = SumTree(4)
    >>> tree.set(np.array([0, 2]), np.array([1.0, 3.0]))
    >>> tree.total
    4.0
    >>> tree.find(np.array([0.5, 1.5, 3.9])).tolist()
    [0, 2, 2]
    """

    def __init__(self, size: int):
        self.size = size
        depth = 0
        while size >> depth > TOP:
            depth += 1
        width = -(-size >> depth) << depth  # leaves, rounded up to whole top nodes
        self.levels: list[Array] = [np.zeros(width >> level) for level in range(depth + 1)]  # leaves first

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self.levels[-1].sum())

    def __getitem__(self, index: Array) -> Array:
        return self.levels[0][index]

    def set(self, index: Array, weight: Array) -> None:
        """Change weights; if an index appears twice, the later one counts."""
        self.levels[0][index] = weight
        for below, above in zip(self.levels[:-1], self.levels[1:], strict=True):
            left = index & ~1
            index = index >> 1
            above[index] = below.take(left) + below.take(left + 1)  # a repeated node gets the same sum twice

    def find(self, mass: Array) -> Array:
        """For each mass in [0, total): the leaf where the running sum of weights passes it; its weight is not zero."""
        sums = np.cumsum(self.levels[-1])
        node = np.searchsorted(sums, mass, side="right")
        np.minimum(node, len(sums) - 1, out=node)
        rest = mass - (sums.take(node) - self.levels[-1].take(node))
        for level in reversed(self.levels[:-1]):
            node <<= 1
            left = level.take(node)
            goes_right = rest >= left
            rest -= left * goes_right
            node += goes_right
        empty = self.levels[0].take(node) <= 0.0
        if empty.any():  # rounding passed the last weight of a node: take the nearest one before it
            node[empty] = [self._last_weight(leaf) for leaf in node[empty]]
        return node

    def _last_weight(self, leaf: int) -> int:
        weights = self.levels[0]
        before = np.flatnonzero(weights[: leaf + 1])
        return int(before[-1]) if len(before) else int(np.flatnonzero(weights)[0])


class CompiledSumTree:
    """The same interface as `SumTree`, and the same results up to rounding."""

    def __init__(self, size: int):
        self.size = size
        self._set, self._find = _compiled()
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
        self._set(self.nodes, self.leaves, index, weight)

    def find(self, mass: Array) -> Array:
        """The leaf in which each mass falls."""
        return self._find(self.nodes, self.leaves, mass)


@cache
def _compiled() -> tuple[Callable[[Array, int, Array, Array], None], Callable[[Array, int, Array], Array]]:
    """`_set` and `_find` as machine code, cached in the user's own folder: by default numba may use a folder named by
    a local file."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drl" / "numba"
    os.environ.setdefault("NUMBA_CACHE_DIR", str(folder))
    import numba

    return (
        numba.njit("void(f8[::1], i8, i8[::1], f8[::1])", cache=True)(_set),
        numba.njit("i8[::1](f8[::1], i8, f8[::1])", cache=True)(_find),
    )


def _set(nodes: Array, leaves: int, index: Array, weight: Array) -> None:
    for i in range(len(index)):
        node = leaves + index[i]
        nodes[node] = weight[i]
        while node > 1:
            node >>= 1
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]


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


AnySumTree = SumTree | CompiledSumTree
