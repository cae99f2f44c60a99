"""The test of a reproduction: is the new mean at least the stored mean, up to a margin?

The test uses Student's t interval (95 %, pooled variance) of the difference of the means, new minus stored. PASS: all
of it is above minus the margin. FAIL: all of it is below. UNDECIDED: neither. If scores are roughly normal, at most
2.5 % of reproductions that are worse by the margin or more pass, and at most 2.5 % of the others fail. Scores with rare
failures are not normal: if 3 of 10 seeds fail, five seeds show no failure in 17 % of the cases.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from drl.core.specs import Array
from drl.settings.preset_records import FAIL, PASS, UNDECIDED, Record
from drl.tracking.curves import t_975

MARGIN = 0.1  # share of the stored result
MOST_SEEDS = 1000  # largest number of seeds to recommend
FEWEST_EQUAL = 3  # new seeds that suffice if all scores, old and new, are equal


@dataclass(frozen=True)
class Judgement:
    """Verdict on a stored result from the scores of new seeds."""

    verdict: str
    difference: float  # of the means, new minus stored
    low: float  # ends of its 95 % interval
    high: float
    margin: float
    more_seeds: int | None  # seeds to decide if means and spread stay; None: decided, or no number suffices


def judge(stored: Record, scores: Sequence[float]) -> Judgement:
    """Compare the scores of new seeds with a stored result."""
    margin = margin_of(stored)
    new, count = np.asarray(scores, float), stored.seeds
    difference = float(new.mean()) - stored.mean
    variance = _pooled_variance(stored, new)
    low, high = _interval(difference, variance, count, len(new))
    verdict, more = _verdict(low, high, margin), None
    if verdict == UNDECIDED:
        ahead = range(1, MOST_SEEDS + 1)
        ends = ((seeds, _interval(difference, variance, count, len(new) + seeds)) for seeds in ahead)
        more = next((seeds for seeds, each in ends if _verdict(*each, margin) != UNDECIDED), None)
    return Judgement(verdict, difference, low, high, margin, more)


def margin_of(stored: Record) -> float:
    """Return a tenth of the stored result, or the standard deviation over its seeds if that is larger."""
    return max(MARGIN * abs(stored.mean), math.sqrt(stored_variance(stored) or 0.0))


def _verdict(low: float, high: float, margin: float) -> str:
    if low >= -margin:
        return PASS
    return FAIL if high < -margin else UNDECIDED


def _interval(difference: float, variance: float, stored: int, new: int) -> tuple[float, float]:
    degrees = stored + new - 2
    if degrees < 1 or (variance == 0.0 and new < FEWEST_EQUAL):
        return -math.inf, math.inf
    half = float(t_975(np.array(degrees))) * math.sqrt(variance * (1 / stored + 1 / new))
    return difference - half, difference + half


def stored_variance(stored: Record) -> float | None:
    """Variance of the stored scores over seeds; None for a single seed. If no spread was stored, the smallest variance
    that the worst seed implies: all other scores are equal."""
    count = stored.seeds
    if count == 1:
        return None
    if stored.scores is not None:
        return float(np.var(list(stored.scores.values()), ddof=1))
    if stored.std is not None:
        return stored.std**2 * count / (count - 1)
    return count * ((stored.mean - stored.worst) / (count - 1)) ** 2


def _pooled_variance(stored: Record, new: Array) -> float:
    """Variance of stored and new scores together. They are equal by hypothesis, and a few equal new scores prove
    nothing."""
    own = float(new.var(ddof=1)) if len(new) > 1 else 0.0
    spread = stored_variance(stored) or 0.0
    if stored.scores is None and stored.std is None:
        spread = max(spread, own)  # the stored spread is only a lower bound
    return ((stored.seeds - 1) * spread + (len(new) - 1) * own) / max(stored.seeds + len(new) - 2, 1)
