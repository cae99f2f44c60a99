"""Pairwise comparison of algorithms: which is better, or how many seeds are needed to decide.

The permutation test of the probability of improvement counts how often shuffled labels separate two algorithms as well.
It is exact under the hypothesis that both have the same distribution, also with few seeds, where a bootstrap interval
is too short. Labels are shuffled within an environment, or within pairs if runs are paired by seed.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from drl.analysis.aggregates import DRAWS, draw_runs, estimate, iqm, mean, probability_of_improvement
from drl.core.specs import Array
from drl.tracking.curves import Estimate

SHARED = 0.75  # share of runs with common seeds below which runs are not paired: too many would be left out
LEVEL = 0.05  # significance level
POWER = 0.8
SHUFFLES = 10_000  # at most; all permutations if there are fewer
MOST_SEEDS = 1000  # largest number of seeds to recommend


class Contestant(NamedTuple):
    """The scores of one algorithm."""

    scores: Array  # [runs, envs]
    seeds: tuple[tuple[int, ...], ...]  # of each environment's runs, in the order of the rows


@dataclass(frozen=True, kw_only=True)
class Versus:
    """Comparison of two algorithms."""

    first: str
    second: str
    runs: tuple[int, int]  # per environment, of each
    probability: Estimate  # that a run of the first scores higher than one of the second
    iqm_difference: Estimate
    mean_difference: float
    p_value: float  # of the label test, adjusted for the number of comparisons (Holm)
    pairs: int  # runs per environment that are paired by seed; 0: not paired
    paired_test: bool  # whether labels were shuffled within pairs
    seeds_needed: int | None  # for each; None: no number up to MOST_SEEDS

    @property
    def winner(self) -> str | None:
        """The better algorithm, or None if undecided. A winner scores higher more often, with a 95 % interval beyond
        one half and p ≤ 0.05, and does not have the lower mean."""
        _, low, high = self.probability
        if low is None or high is None or self.p_value > LEVEL:
            return None
        if low > 0.5 and self.mean_difference >= 0:
            return self.first
        if high < 0.5 and self.mean_difference <= 0:
            return self.second
        return None

    @property
    def contradictory(self) -> bool:
        """Whether the algorithm that scores higher more often has the lower mean."""
        return self.mean_difference * (self.probability.value - 0.5) < 0

    def sentence(self) -> str:
        """The answer in words."""
        ahead, behind, (value, low, high) = self.first, self.second, self.probability
        if value < 0.5:
            ahead, behind, value = behind, ahead, 1 - value
            low, high = (None, None) if low is None or high is None else (1 - high, 1 - low)
        interval = "" if low is None else f", 95 % interval {low:.2f} to {high:.2f}"
        known = f"probability {value:.2f}{interval}, p = {self.p_value:.2g}"
        if self.winner:
            return f"{ahead} is better than {behind} ({known})"
        answer, condition = f"{ahead} or {behind}: undecided ({known})", ""
        if self.contradictory:
            answer += f"; {ahead} scores higher more often, but has the lower mean"
            condition = ", unless its mean stays lower"
        if self.seeds_needed is None:
            return f"{answer}; even {MOST_SEEDS:,} seeds each would hardly decide"
        return f"{answer}; about {self.seeds_needed} seeds each would decide{condition}"


def all_against_all(contestants: Mapping[str, Contestant], draws: int = DRAWS, seed: int = 0) -> list[Versus]:
    """Compare every pair. With a probability of 95 %, none of the named winners is false."""
    pairs = list(itertools.combinations(contestants, 2))
    level = LEVEL / max(len(pairs), 1)
    results = [_versus(names, [contestants[name] for name in names], level, draws, seed) for names in pairs]
    adjusted = holm([each.p_value for each in results])
    return [replace(each, p_value=p_value) for each, p_value in zip(results, adjusted, strict=True)]


def _versus(names: tuple[str, ...], two: Sequence[Contestant], level: float, draws: int, seed: int) -> Versus:
    rng = np.random.default_rng(seed)
    pairs, (first, second) = _of_shared_seeds(*two)
    runs, envs = (len(first), len(second)), first.shape[1]
    drawn = draw_runs(rng, runs[0], envs, draws)
    samples = (first, drawn), (second, drawn if pairs else draw_runs(rng, runs[1], envs, draws))
    probability = estimate(probability_of_improvement, *samples, size=max(runs))
    # Only counts decide, so that no choice depends on the scores. Pairs that are too few to reach the level are tested
    # as unpaired, which is conservative if runs with the same seed are alike.
    in_pairs = pairs > 0 and smallest_p(runs, envs, paired=True) <= level
    test = label_test(first, second, in_pairs, rng)
    result = Versus(
        first=names[0],
        second=names[1],
        runs=(len(two[0].scores), len(two[1].scores)),
        probability=probability,
        iqm_difference=estimate(lambda a, b: iqm(a) - iqm(b), *samples),
        mean_difference=float(mean(first) - mean(second)),
        p_value=test.p_value,
        pairs=pairs,
        paired_test=in_pairs,
        seeds_needed=None,
    )
    decided = test.p_value <= level and result.winner is not None
    least = max(fewest_seeds(envs, in_pairs, level), 0 if decided else min(runs) + 1)
    return replace(result, seeds_needed=seeds_needed(probability.value, test.spread, runs, least, level))


def _of_shared_seeds(first: Contestant, second: Contestant) -> tuple[int, tuple[Array, Array]]:
    """Return the number of seeds that both have in every environment, and their scores in the same order; 0 and all
    scores if less than `SHARED` of all runs have such a seed."""
    shared = [sorted(set(one) & set(other)) for one, other in zip(first.seeds, second.seeds, strict=True)]
    pairs = min(map(len, shared))
    if pairs < SHARED * max(len(first.scores), len(second.scores)):
        return 0, (first.scores, second.scores)

    def chosen(contestant: Contestant) -> Array:  # [pairs, envs]
        columns = zip(contestant.scores.T, contestant.seeds, shared, strict=True)
        return np.stack([scores[[own.index(seed) for seed in seeds[:pairs]]] for scores, own, seeds in columns], axis=1)

    return pairs, (chosen(first), chosen(second))


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for their number (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [math.nan] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


# ── permutation test ──────────────────────────────────────────────────────────────────────────────────────────────────


class LabelTest(NamedTuple):
    """Result of the permutation test."""

    p_value: float
    spread: float  # standard deviation of the probability of improvement over the shuffles


def label_test(first: Array, second: Array, paired: bool, rng: np.random.Generator) -> LabelTest:
    """Test two algorithms. Scores are [runs, envs]; paired runs are in the same row."""
    distances = np.abs((_pairwise if paired else _pooled)(first, second, rng) - 0.5)
    extreme = distances >= distances[0] - 1e-9
    return LabelTest(float(extreme.mean()), float(np.sqrt(np.square(distances).mean())))


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


def _pooled(first: Array, second: Array, rng: np.random.Generator) -> Array:
    """Return probabilities with labels shuffled among all runs of an environment; the observed one comes first."""
    runs, count = len(first), len(first) + len(second)
    ranks = midranks(np.concatenate([first, second]))  # [count, envs]
    if ranks.shape[1] == 1 and math.comb(count, runs) <= SHUFFLES:
        sets = np.array(list(itertools.combinations(range(count), runs)))
        sums = ranks[sets, 0].sum(axis=1)[:, None]
    else:
        order = rng.permuted(np.broadcast_to(ranks, (SHUFFLES - 1, *ranks.shape)), axis=1)
        sums = np.concatenate([ranks[None, :runs], order[:, :runs]]).sum(axis=1)
    return _probability(sums, runs, len(second))


def _pairwise(first: Array, second: Array, rng: np.random.Generator) -> Array:
    """The same with labels swapped within pairs."""
    runs, envs = first.shape
    ranks = midranks(np.concatenate([first, second])).reshape(2, -1)  # [2, runs × envs]
    pairs = ranks.shape[1]
    if 2**pairs <= SHUFFLES:
        swaps = (np.arange(2**pairs)[:, None] >> np.arange(pairs)) & 1
    else:
        swaps = np.concatenate([np.zeros((1, pairs), int), rng.integers(2, size=(SHUFFLES - 1, pairs))])
    sums = np.where(swaps, ranks[1], ranks[0]).reshape(-1, runs, envs).sum(axis=1)
    return _probability(sums, runs, runs)


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
