"""Speed of prioritized replay: draw a batch by priority, then change its priorities; capacity 100 000, batch 128.

    python benchmarks/speed_replay.py [--rounds 7]

Our sum tree, in NumPy and (where numba is installed) compiled, against a plain Python one (the usual heap of a
tutorial), and against cpprb where it is installed. One process, alternating, pinned to one core, CPU time; the median
round counts. Storing and copying transitions is left out for all: cpprb cannot leave it out, so it holds one number per
transition.
"""

import argparse
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from alternating import pin_to_one_core, race

from drl.buffers.sum_tree import SumTree, make_sum_tree

CAPACITY, BATCH, UPDATES = 100_000, 128, 400


class PythonSumTree:
    """A complete binary tree in a list: leaves behind, every node the sum of its two children."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.nodes = [0.0] * (2 * capacity - 1)

    def set(self, leaf: int, weight: float) -> None:
        node = leaf + self.capacity - 1
        change = weight - self.nodes[node]
        self.nodes[node] = weight
        while node:
            node = (node - 1) // 2
            self.nodes[node] += change

    def find(self, mass: float) -> int:
        node = 0
        while (left := 2 * node + 1) < len(self.nodes):
            if mass <= self.nodes[left]:
                node = left
            else:
                mass -= self.nodes[left]
                node = left + 1
        return node - self.capacity + 1


def python_tree(errors: np.ndarray) -> Callable[[], None]:
    tree = PythonSumTree(CAPACITY)
    for leaf in range(CAPACITY):
        tree.set(leaf, 1.0)

    def rounds() -> None:
        for error in errors:
            part = tree.nodes[0] / BATCH
            drawn = [tree.find((i + random.random()) * part) for i in range(BATCH)]
            weight = [(CAPACITY * tree.nodes[leaf + CAPACITY - 1] / tree.nodes[0]) ** -0.4 for leaf in drawn]
            _ = np.array(weight, np.float32) / max(weight)
            for leaf, priority in zip(drawn, error.tolist(), strict=True):
                tree.set(leaf, (priority + 0.01) ** 0.6)

    return rounds


def our_tree(errors: np.ndarray, tree: Any) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    tree.set(np.arange(CAPACITY), np.ones(CAPACITY))

    def rounds() -> None:
        for error in errors:
            total = tree.total
            drawn = tree.find((np.arange(BATCH) + rng.random(BATCH)) * (total / BATCH))
            weight = (CAPACITY * tree[drawn] / total) ** -0.4
            _ = (weight / weight.max()).astype(np.float32)
            tree.set(drawn, (error + 0.01) ** 0.6)

    return rounds


def cpprb_tree(errors: np.ndarray) -> Callable[[], None]:
    from cpprb import PrioritizedReplayBuffer  # type: ignore[import-untyped,import-not-found,unused-ignore]

    buffer = PrioritizedReplayBuffer(CAPACITY, {"number": {}}, alpha=0.6, eps=0.01)
    buffer.add(number=np.zeros(CAPACITY), priorities=np.ones(CAPACITY))

    def rounds() -> None:
        for error in errors:
            batch = buffer.sample(BATCH, beta=0.4)
            buffer.update_priorities(batch["indexes"], error)

    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    pin_to_one_core()
    errors = np.random.default_rng(1).exponential(size=(UPDATES, BATCH))
    contestants = {"Python sum tree": python_tree(errors), "drl": our_tree(errors, SumTree(CAPACITY))}
    best = make_sum_tree(CAPACITY)
    if isinstance(best, SumTree):
        print("numba is not installed: left out")
    else:
        contestants["drl with numba"] = our_tree(errors, best)
    try:
        contestants["cpprb"] = cpprb_tree(errors)
    except ImportError:
        print("cpprb is not installed: left out")
    for work in contestants.values():
        work()  # warm up; from here on the priorities are those of use
    title = f"Prioritized replay, capacity {CAPACITY:,}, batch {BATCH}; sample + update per CPU second"
    race(contestants, UPDATES, arguments.rounds, title)


if __name__ == "__main__":
    main()
