"""Pairwise comparison of algorithms: which is better, or how many seeds are needed to decide."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from drl.analysis import label_test as tests
from drl.analysis.aggregates import iqm, mean, probability_of_improvement
from drl.analysis.resampling import DRAWS, Estimate, draw_runs, estimate
from drl.core.specs import Array

SHARED = 0.75  # share of runs with common seeds below which runs are not paired: too many would be left out


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
        if low is None or high is None or self.p_value > tests.LEVEL:
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
        known = f"probability {value:.2f}" + ("" if low is None else f", 95 % interval {low:.2f} to {high:.2f}")
        known += f", p = {self.p_value:.2g}"
        if self.winner:
            return f"{ahead} is better than {behind} ({known})"
        said = f"{ahead} or {behind}: undecided ({known})"
        if self.contradictory:
            said += f"; {ahead} scores higher more often, but has the lower mean"
        if self.seeds_needed is None:
            return f"{said}; even {tests.MOST_SEEDS:,} seeds each would hardly decide"
        condition = ", unless its mean stays lower" if self.contradictory else ""
        return f"{said}; about {self.seeds_needed} seeds each would decide{condition}"


def all_against_all(contestants: Mapping[str, Contestant], draws: int = DRAWS, seed: int = 0) -> list[Versus]:
    """Compare every pair. With a probability of 95 %, none of the named winners is false."""
    pairs = list(combinations(contestants, 2))
    level = tests.LEVEL / max(len(pairs), 1)
    found = [_versus(names, [contestants[name] for name in names], level, draws, seed) for names in pairs]
    adjusted = holm([each.p_value for each in found])
    return [replace(each, p_value=p_value) for each, p_value in zip(found, adjusted, strict=True)]


def _versus(names: tuple[str, ...], two: Sequence[Contestant], level: float, draws: int, seed: int) -> Versus:
    rng = np.random.default_rng(seed)
    pairs, (first, second) = _of_shared_seeds(*two)
    runs, envs = (len(first), len(second)), first.shape[1]
    drawn = draw_runs(rng, runs[0], envs, draws)
    samples = (first, drawn), (second, drawn if pairs else draw_runs(rng, runs[1], envs, draws))
    probability = estimate(probability_of_improvement, *samples, size=max(runs))
    # Only counts decide, so that no choice depends on the scores. Pairs that are too few to reach the level are tested
    # as unpaired, which is conservative if runs with the same seed are alike.
    in_pairs = pairs > 0 and tests.smallest_p(runs, envs, paired=True) <= level
    test = tests.label_test(first, second, in_pairs, rng)
    found = Versus(
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
    decided = test.p_value <= level and found.winner is not None
    least = max(tests.fewest_seeds(envs, in_pairs, level), 0 if decided else min(runs) + 1)
    return replace(found, seeds_needed=tests.seeds_needed(probability.value, test.spread, runs, least, level))


def _of_shared_seeds(first: Contestant, second: Contestant) -> tuple[int, tuple[Array, Array]]:
    """Return the number of seeds that both have in every environment, and their scores in the same order. If they are
    less than `SHARED` of all runs, return 0 and all scores."""
    shared = [sorted(set(one) & set(other)) for one, other in zip(first.seeds, second.seeds, strict=True)]
    pairs = min(map(len, shared))
    if pairs < SHARED * max(len(first.scores), len(second.scores)):
        return 0, (first.scores, second.scores)
    chosen = [seeds[:pairs] for seeds in shared]
    return pairs, (_scores_of(first, chosen), _scores_of(second, chosen))


def _scores_of(contestant: Contestant, chosen: Sequence[Sequence[int]]) -> Array:
    """Return the scores of these seeds of each environment.  # [seeds, envs]"""
    columns = zip(contestant.scores.T, contestant.seeds, chosen, strict=True)
    return np.stack([scores[[own.index(seed) for seed in seeds]] for scores, own, seeds in columns], axis=1)


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
