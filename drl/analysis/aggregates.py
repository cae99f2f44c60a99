"""Aggregate scores of many runs as defined by rliable (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of
the Statistical Precipice").

Scores are arrays [..., runs, envs]; leading axes, such as bootstrap draws, are kept.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from drl.core.specs import Array
from drl.tracking import curves

Aggregate = Callable[[Array], Array]


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
    return curves.iqm(_pooled(scores))


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
    ordered = np.sort(_pooled(scores), axis=-1)
    count = ordered.shape[-1]
    rows = ordered.reshape(-1, count)
    above = [count - np.searchsorted(row, thresholds, side="right") for row in rows]
    return np.array(above, float).reshape(*ordered.shape[:-1], len(thresholds)) / count


def probability_of_improvement(first: Array, second: Array) -> Array:
    """Probability that a run of the first scores higher than a run of the second (ties count half), averaged over envs.

    >>> probability_of_improvement(np.array([[1.0], [3.0]]), np.array([[2.0], [1.0]]))
    np.float64(0.625)
    """
    higher = first[..., :, None, :] > second[..., None, :, :]
    equal = first[..., :, None, :] == second[..., None, :, :]
    return (higher + 0.5 * equal).mean(axis=(-3, -2, -1))


AGGREGATES: Mapping[str, Aggregate] = MappingProxyType({"IQM": iqm, "median": median, "mean": mean})


def _pooled(scores: Array) -> Array:
    return scores.reshape(*scores.shape[:-2], -1)
