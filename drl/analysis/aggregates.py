"""Aggregate scores of many runs as defined by rliable (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of
the Statistical Precipice"), and their stratified bootstrap: runs are resampled within each environment.

Scores are arrays [..., runs, envs]; leading axes, such as bootstrap draws, are kept.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from drl.core.specs import Array
from drl.tracking import curves
from drl.tracking.curves import Estimate

DRAWS = 10_000
CHUNK = 2_000_000  # numbers at a time, to limit memory


def mean(scores: Array) -> Array:
    """Mean of the environments' means."""
    return scores.mean(axis=(-2, -1))


def median(scores: Array) -> Array:
    """Median of the environments' means.

    >>> median(np.array([[0.0, 1.0, 5.0], [2.0, 1.0, 5.0]]))
    np.float64(1.0)
    """
    return np.median(scores.mean(axis=-2), axis=-1)


def iqm(scores: Array) -> Array:
    """Interquartile mean over all runs of all environments."""
    return curves.iqm(scores.reshape(*scores.shape[:-2], -1))


def optimality_gap(scores: Array, target: float = 1.0) -> Array:
    """Mean distance of runs below the target; scores above the target count as the target.

    >>> optimality_gap(np.array([[0.5], [7.0]]))
    np.float64(0.25)
    """
    return target - np.minimum(scores, target).mean(axis=(-2, -1))


def performance_profile(scores: Array, thresholds: Array) -> Array:
    """Share of runs above each threshold.  # [..., thresholds]

    >>> performance_profile(np.array([[0.0], [1.0]]), np.array([-1.0, 0.0, 1.0]))
    array([1. , 0.5, 0. ])
    """
    count = scores.shape[-2] * scores.shape[-1]
    rows = np.sort(scores.reshape(-1, count), axis=-1)
    above = [count - np.searchsorted(row, thresholds, side="right") for row in rows]
    return np.array(above, float).reshape(*scores.shape[:-2], len(thresholds)) / count


def probability_of_improvement(first: Array, second: Array) -> Array:
    """Probability that a run of the first scores higher than a run of the second (ties count half), averaged over envs.

    >>> probability_of_improvement(np.array([[1.0], [3.0]]), np.array([[2.0], [1.0]]))
    np.float64(0.625)
    """
    higher = first[..., :, None, :] > second[..., None, :, :]
    equal = first[..., :, None, :] == second[..., None, :, :]
    return (higher + 0.5 * equal).mean(axis=(-3, -2, -1))


AGGREGATES: Mapping[str, Callable[[Array], Array]] = MappingProxyType({"IQM": iqm, "median": median, "mean": mean})


def draw_runs(rng: np.random.Generator, runs: int, envs: int, draws: int = DRAWS) -> Array:
    """Draw the indices of runs for each resample.  # [draws, runs, envs]"""
    return rng.integers(runs, size=(draws, runs, envs))


def redrawn(scores: Array, drawn: Array) -> Array:
    """The scores of the runs that were drawn.  # [draws, runs, envs]"""
    return scores[drawn, np.arange(scores.shape[1])]


def interval(values: Array) -> Array:
    """Ends of the percentile interval over the draws.  # [2, …]"""
    return np.asarray(np.percentile(values, (2.5, 97.5), axis=0))


def in_chunks(function: Callable[..., Array], *samples: tuple[Array, Array], size: int = 1) -> Array:
    """Apply `function` to every draw of the (scores, drawn) pairs. `size`: numbers it computes per run and env."""
    first = samples[0][1]
    chunk = max(1, CHUNK // (first[0].size * size))
    parts = [
        function(*(redrawn(scores, drawn[start : start + chunk]) for scores, drawn in samples))
        for start in range(0, len(first), chunk)
    ]
    return np.concatenate(parts)


def estimate(function: Callable[..., Array], *samples: tuple[Array, Array], size: int = 1) -> Estimate:
    """Return `function` of the scores, with its interval over the draws; a single run has none."""
    value = float(function(*(scores for scores, _ in samples)))
    if min(len(scores) for scores, _ in samples) < 2:
        return Estimate(value, None, None)
    low, high = interval(in_chunks(function, *samples, size=size))
    return Estimate(value, float(low), float(high))
