"""Stratified bootstrap: runs are resampled with replacement within each environment."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from drl.core.specs import Array

DRAWS = 10_000
ENDS = (2.5, 97.5)  # percentiles of a 95 % interval
CHUNK = 2_000_000  # numbers at a time, to limit memory


class Estimate(NamedTuple):
    """A number and the ends of its 95 % interval."""

    value: float
    low: float | None  # None with a single run, which has no spread
    high: float | None


def draw_runs(rng: np.random.Generator, runs: int, envs: int, draws: int = DRAWS) -> Array:
    """Draw the indices of runs for each resample.  # [draws, runs, envs]"""
    return rng.integers(runs, size=(draws, runs, envs))


def redrawn(scores: Array, drawn: Array) -> Array:
    """The scores of the runs that were drawn.  # [draws, runs, envs]"""
    return scores[drawn, np.arange(scores.shape[1])]


def interval(values: Array) -> Array:
    """Ends of the percentile interval over the draws.  # [2, …]"""
    return np.asarray(np.percentile(values, ENDS, axis=0))


def in_chunks(function: Callable[..., Array], *samples: tuple[Array, Array], size: int = 1) -> Array:
    """Apply `function` to every draw of the (scores, drawn) pairs. `size`: numbers it computes per run and env."""
    draws = len(samples[0][1])
    chunk = max(1, CHUNK // (samples[0][1][0].size * size))
    parts = [
        function(*(redrawn(scores, drawn[start : start + chunk]) for scores, drawn in samples))
        for start in range(0, draws, chunk)
    ]
    return np.concatenate(parts)


def estimate(function: Callable[..., Array], *samples: tuple[Array, Array], size: int = 1) -> Estimate:
    """Return `function` of the scores, with its interval over the draws."""
    value = float(function(*(scores for scores, _ in samples)))
    if min(len(scores) for scores, _ in samples) < 2:
        return Estimate(value, None, None)
    low, high = interval(in_chunks(function, *samples, size=size))
    return Estimate(value, float(low), float(high))
