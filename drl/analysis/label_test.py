"""Permutation test of the probability of improvement: how often do shuffled labels separate two algorithms as well?

The test is exact under the hypothesis that both algorithms have the same distribution, also with few seeds, where a
bootstrap interval is too short. Labels are shuffled within an environment, or within pairs if runs are paired by seed.
"""

import itertools
import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from drl.core.specs import Array

LEVEL = 0.05  # significance level
POWER = 0.8
SHUFFLES = 10_000  # at most; all permutations if there are fewer
MOST_SEEDS = 1000  # largest number of seeds to recommend


class LabelTest(NamedTuple):
    """Result of the permutation test."""

    p_value: float
    spread: float  # standard deviation of the probability of improvement over the shuffles


def label_test(first: Array, second: Array, paired: bool, rng: np.random.Generator) -> LabelTest:
    """Test two algorithms. Scores are [runs, envs]; paired runs are in the same row."""
    observed, shuffled = (_pairwise if paired else _pooled)(first, second, rng)
    extreme = np.abs(shuffled - 0.5) >= abs(observed - 0.5) - 1e-9
    return LabelTest(float(extreme.mean()), float(np.sqrt(np.square(shuffled - 0.5).mean())))


def smallest_p(runs: tuple[int, int], envs: int, paired: bool) -> float:
    """Smallest p value that can be reached with this many runs per environment."""
    ways: int = (2 ** runs[0] if paired else math.comb(sum(runs), runs[0])) ** envs
    return 2 / ways if ways.bit_length() < 1024 else 0.0


def seeds_needed(
    probability: float, spread: float, runs: tuple[int, int], least: int, level: float = LEVEL
) -> int | None:
    """Seeds per algorithm for a power of 80 % if the estimated probability of improvement is true, at least `least`.
    The spread under shuffling shrinks with the square root of the number of seeds (Noether 1987). None: more than
    MOST_SEEDS, or no finite number.

    >>> seeds_needed(0.75, (21 / 1200) ** 0.5, (10, 10), least=1)
    22
    """
    if abs(probability - 0.5) < 1e-9:
        return None
    now = 2 / (1 / runs[0] + 1 / runs[1])
    quantiles = NormalDist().inv_cdf(1 - level / 2) + NormalDist().inv_cdf(POWER)
    needed = max(math.ceil(now * (quantiles * spread / (probability - 0.5)) ** 2), least)
    return needed if needed <= MOST_SEEDS else None


def fewest_seeds(envs: int, paired: bool, level: float = LEVEL) -> int:
    """Smallest number of seeds per algorithm with which the test can reach the level.

    >>> fewest_seeds(1, paired=False), fewest_seeds(1, paired=True), fewest_seeds(2, paired=True)
    (4, 6, 3)
    """
    return next(runs for runs in itertools.count(1) if smallest_p((runs, runs), envs, paired) <= level)


def _pooled(first: Array, second: Array, rng: np.random.Generator) -> tuple[float, Array]:
    """Return the observed probability, and probabilities with labels shuffled among all runs of an environment."""
    runs, count = len(first), len(first) + len(second)
    ranks = midranks(np.concatenate([first, second]))  # [count, envs]
    if ranks.shape[1] == 1 and math.comb(count, runs) <= SHUFFLES:
        sets = np.array(list(itertools.combinations(range(count), runs)))
        sums = ranks[sets, 0].sum(axis=1)[:, None]
    else:
        order = rng.permuted(np.broadcast_to(ranks, (SHUFFLES - 1, *ranks.shape)), axis=1)
        sums = np.concatenate([ranks[None, :runs], order[:, :runs]]).sum(axis=1)  # observed, then shuffled
    return float(_probability(ranks[:runs].sum(axis=0), runs, len(second))), _probability(sums, runs, len(second))


def _pairwise(first: Array, second: Array, rng: np.random.Generator) -> tuple[float, Array]:
    """The same with labels swapped within pairs."""
    runs, envs = first.shape
    ranks = midranks(np.concatenate([first, second])).reshape(2, -1)  # [2, runs × envs]
    pairs = ranks.shape[1]
    if 2**pairs <= SHUFFLES:
        swaps = (np.arange(2**pairs)[:, None] >> np.arange(pairs)) & 1
    else:
        swaps = np.concatenate([np.zeros((1, pairs), int), rng.integers(2, size=(SHUFFLES - 1, pairs))])
    sums = np.where(swaps, ranks[1], ranks[0]).reshape(-1, runs, envs).sum(axis=1)
    return float(_probability(ranks[0].reshape(runs, envs).sum(axis=0), runs, runs)), _probability(sums, runs, runs)


def _probability(rank_sums: Array, first: int, second: int) -> Array:
    """Probability of improvement from the rank sums of the first algorithm (Mann and Whitney 1947).  # [..., envs]"""
    return ((rank_sums - first * (first + 1) / 2) / (first * second)).mean(axis=-1)


def midranks(scores: Array) -> Array:
    """Ranks from 1 within each column; equal scores share their mean rank.

    >>> midranks(np.array([[3.0], [1.0], [3.0]])).ravel()
    array([2.5, 1. , 2.5])
    """
    lower = (scores[:, None] > scores[None]).sum(axis=1)
    equal = (scores[:, None] == scores[None]).sum(axis=1)
    return lower + (equal + 1) / 2
