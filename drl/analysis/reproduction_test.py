"""The test of a reproduction: is the new mean at least the stored one, up to a margin?

Student's t interval (95 %, pooled variance) of the difference of the means, new minus stored. PASS: all of it is above
minus the margin. FAIL: all of it is below. UNDECIDED: neither. So at most 2.5 % of reproductions that are worse by the
margin or more pass, and at most 2.5 % of those that are not fail.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from drl.analysis.reference_scores import read_references
from drl.experiment.preset_records import FAIL, PASS, UNDECIDED, Record
from drl.tracking.curves import t_975

MARGIN = 0.1  # of the distance between a random policy and the stored result
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Judgement:
    """What the scores of new seeds say about a stored result."""

    verdict: str
    difference: float  # of the means, new minus stored
    low: float  # ends of its 95 % interval
    high: float
    margin: float
    margin_is: str
    more_seeds: int | None  # that would decide, if means and spread stay; None: decided, or no number of them


def judge(stored: Record, scores: Sequence[float]) -> Judgement:
    """Compare the scores of new seeds with a stored result."""
    margin, margin_is = margin_of(stored)
    new, count = np.asarray(scores, float), stored.seeds
    difference = float(new.mean()) - stored.mean
    variance = _pooled_variance(stored, new)
    low, high = _interval(difference, variance, count, len(new))
    verdict, more = _verdict(low, high, margin), None
    if verdict == UNDECIDED and math.isfinite(variance):
        ahead = range(1, MOST_SEEDS + 1)
        ends = ((seeds, _interval(difference, variance, count, len(new) + seeds)) for seeds in ahead)
        more = next((seeds for seeds, each in ends if _verdict(*each, margin) != UNDECIDED), None)
    return Judgement(verdict, difference, low, high, margin, margin_is, more)


def margin_of(stored: Record) -> tuple[float, str]:
    """A tenth of what was learned: of the way from a random policy to the stored result."""
    reference = read_references().get(stored.env)
    if reference is None:
        return MARGIN * abs(stored.mean), f"{MARGIN:.0%} of the stored result"
    start = float(reference["random"])
    return MARGIN * abs(stored.mean - start), f"{MARGIN:.0%} of the way from a random policy ({start:g}) to it"


def _verdict(low: float, high: float, margin: float) -> str:
    if low >= -margin:
        return PASS
    return FAIL if high < -margin else UNDECIDED


def _interval(difference: float, variance: float, stored: int, new: int) -> tuple[float, float]:
    degrees = stored + new - 2
    if degrees < 1:
        return -math.inf, math.inf
    half = float(t_975(np.array(degrees))) * math.sqrt(variance * (1 / stored + 1 / new))
    return difference - half, difference + half


def _pooled_variance(stored: Record, new: np.ndarray) -> float:
    """Of both, as if they had one: by hypothesis they do, and few new seeds that happen to be equal prove nothing.

    Where the stored spread was not kept, it is that of the new seeds, or more if the stored worst seed implies more.
    """
    count, own = stored.seeds, float(new.var(ddof=1)) if len(new) > 1 else 0.0
    if count + len(new) < 3:
        return math.inf
    if stored.scores is not None:
        known = np.array(list(stored.scores.values()))
        spread = float(known.var(ddof=1)) if count > 1 else own
    elif stored.std is not None and count > 1:
        spread = stored.std**2 * count / (count - 1)
    else:
        # One seed at the worst and all others equal, which is the least variance with this mean.
        spread = max(own, count * ((stored.mean - stored.worst) / (count - 1)) ** 2) if count > 1 else own
    return ((count - 1) * spread + (len(new) - 1) * own) / (count + len(new) - 2)
