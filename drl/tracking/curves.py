"""Curves from rows of `metrics.jsonl`: smoothing, bins, statistics over seeds and 95 % bands, in NumPy."""

import math
from collections.abc import Callable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from drl.core.errors import BadInput, did_you_mean
from drl.core.specs import Array
from drl.tracking.files import Row

BINS = 100  # most bins along the environment steps
RESAMPLES = 2000  # bootstrap resamples of the seeds
LEAST = 3  # fewest seeds or episodes for a band

# 97.5 % quantiles of Student's t for 1 to 10 degrees of freedom; above, a series around the normal is exact to 1e-3.
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class EpisodeTable(NamedTuple):
    """The finished episodes of a run, in order."""

    env_steps: Array  # [E] approximate end: spread evenly over the learning step
    returns: Array  # [E] NaN if not finite
    lengths: Array  # [E]
    terminated: Array  # [E] bool
    success: Array  # [E] 0 or 1; NaN if unknown
    row: Array  # [E] index of its log


class Band(NamedTuple):
    """A curve and the ends of its 95 % interval (NaN where there is too little data)."""

    x: Array
    center: Array
    low: Array
    high: Array


class Interval(NamedTuple):
    """A mean and the ends of its 95 % interval."""

    mean: float
    low: float | None  # None with fewer than three seeds
    high: float | None


def iqm(values: Array) -> Array:
    """Interquartile mean over the last axis: a quarter of the values (rounded down) is cut off at each end.

    >>> iqm(np.array([0.0, 2.0, 4.0, 900.0]))
    np.float64(3.0)
    """
    count = values.shape[-1]
    return np.sort(values, axis=-1)[..., count // 4 : count - count // 4].mean(axis=-1)


STATISTICS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {
        "mean": lambda values: values.mean(axis=-1),
        "median": lambda values: np.median(values, axis=-1),
        "iqm": iqm,
    }
)  # over the last axis


def check_statistic(name: str) -> None:
    """Raise `BadInput` for an unknown statistic."""
    if name not in STATISTICS:
        raise BadInput(f"unknown statistic {name!r}; {did_you_mean(name, STATISTICS)}")


def bootstrap(values: Array, statistic: str = "mean") -> tuple[Array, Array]:
    """Ends of the 95 % percentile interval of a statistic over the last axis. Equal values give equal ends."""
    count = values.shape[-1]
    table = values.reshape(-1, count)
    draws = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    chunk = max(1, 2_000_000 // draws.size)  # rows at a time, to limit memory
    ends = [
        np.percentile(STATISTICS[statistic](table[i : i + chunk, draws]), (2.5, 97.5), axis=-1)
        for i in range(0, len(table), chunk)
    ]
    low, high = np.concatenate(ends, axis=-1).reshape(2, *values.shape[:-1])
    return low, high


def interval_of(seeds: Array) -> Interval:
    """Compute the percentile bootstrap interval over seeds.

    >>> interval_of(np.array([4.0, 4.0, 4.0])), interval_of(np.array([4.0, 5.0]))
    (Interval(mean=4.0, low=4.0, high=4.0), Interval(mean=4.5, low=None, high=None))
    """
    low, high = map(float, bootstrap(seeds)) if len(seeds) >= LEAST else (None, None)
    return Interval(float(seeds.mean()), low, high)


def episodes_of(rows: list[Row]) -> EpisodeTable:
    """Return the finished episodes of logged rows, as columns."""
    finished = [episode for row in rows for episode in row.get("finished", ())]
    counts = np.array([len(row.get("finished", ())) for row in rows], int)
    table = np.array(finished, float).reshape(len(finished), 4)  # None becomes NaN
    ends = column(rows, "env_steps")
    starts = np.concatenate([[0.0], ends[:-1]])
    row = np.repeat(np.arange(len(rows)), counts)
    place = np.arange(len(finished)) - np.repeat(np.cumsum(counts) - counts, counts) + 1  # 1 … n within its row
    env_steps = starts[row] + (ends - starts)[row] * place / counts[row]
    return EpisodeTable(env_steps, table[:, 0], table[:, 1], table[:, 2] > 0, table[:, 3], row)


def column(rows: list[Row], name: str) -> Array:
    """One number per row; NaN if missing or null."""
    return np.array([row.get(name) for row in rows], float)


def names_in(rows: list[Row], group: str) -> list[str]:
    """Names `group/…` with at least one finite number, in order of first appearance."""
    names = [name for name in dict.fromkeys(chain.from_iterable(rows)) if name.startswith(f"{group}/")]
    return [name for name in names if np.isfinite(column(rows, name)).any()]


def trailing_mean(values: Array, window: int) -> Array:
    """Mean over the last `window` values, fewer at the start; NaN values do not count.

    >>> trailing_mean(np.array([1.0, 3.0, np.nan, 5.0]), 2)
    array([1., 2., 3., 5.])
    """
    finite = np.isfinite(values)
    center = values[finite].mean() if finite.any() else 0.0  # keeps the running sums small
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values - center, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    first = np.maximum(np.arange(len(values)) + 1 - window, 0)
    n = counts[1:] - counts[first]
    return np.where(n > 0, center + (sums[1:] - sums[first]) / np.maximum(n, 1), np.nan)


def smoothing_window(count: int) -> int:
    """Number of episodes to average over: a tenth of a short run, 100 in a normal run, more in a very long run."""
    return max(1, min(count // 10, 100), count // 200)


def thinned(count: int, most: int) -> Array:
    """Evenly spaced indices of at most about `most` of `count` points, including the first and the last.

    >>> thinned(3, 10), thinned(1000, 3)
    (array([0, 1, 2]), array([  0, 500, 999]))
    """
    return np.unique(np.round(np.linspace(0, count - 1, min(count, most))).astype(int))


def bin_width(last: float, bins: int = BINS) -> float:
    """Smallest round width such that at most `bins` bins cover 0 to `last`.

    >>> bin_width(100_000), bin_width(100_001), bin_width(7)
    (1000.0, 1500.0, 0.08)
    """
    least = max(last, 1e-9) / bins
    size = 10.0 ** math.floor(math.log10(least))
    return float(
        next(round(step * size, 12) for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15) if step * size >= least)
    )


def bin_starts(x: Array, width: float) -> Array:
    """Index in ascending `x` where each nonempty bin begins. Bins end at multiples of `width`, inclusive.

    >>> bin_starts(np.array([1.0, 10.0, 11.0, 35.0]), 10.0)
    array([0, 2, 3])
    """
    return np.unique(np.ceil(x / width), return_index=True)[1]


def grouped(x: Array, values: Array, starts: Array) -> Band:
    """Means of consecutive groups that begin at `starts`, at each group's last x. NaN values do not count.

    The interval is Student's t, clipped to the range of all values; groups of fewer than three values have none.

    >>> band = grouped(np.arange(4.0), np.array([1.0, 2.0, 3.0, 9.0]), np.array([0, 3]))
    >>> band.center, band.low, band.high.round(2)
    (array([2., 9.]), array([ 1., nan]), array([4.48,  nan]))
    """
    finite = np.isfinite(values)
    n = np.add.reduceat(finite.astype(int), starts)
    total = np.add.reduceat(np.where(finite, values, 0.0), starts)
    mean = np.where(n > 0, total / np.maximum(n, 1), np.nan)
    sizes = np.diff(np.append(starts, len(values)))
    deviation = np.where(finite, values - np.repeat(mean, sizes), 0.0)
    variance = np.add.reduceat(np.square(deviation), starts) / np.maximum(n - 1, 1)
    half = np.where(n >= LEAST, t_975(n - 1) * np.sqrt(variance / np.maximum(n, 1)), np.nan)
    lowest, highest = (values[finite].min(), values[finite].max()) if finite.any() else (np.nan, np.nan)
    return Band(x[starts + sizes - 1], mean, np.maximum(mean - half, lowest), np.minimum(mean + half, highest))


def t_975(degrees: Array) -> Array:
    """97.5 % quantile of Student's t.

    >>> t_975(np.array([1, 10, 30, 1000])).round(3)
    array([12.706,  2.228,  2.042,  1.962])
    """
    d, z = np.maximum(degrees, 1).astype(float), 1.959964
    series = z + (z**3 + z) / (4 * d) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * d**2)
    return np.where(d <= len(T_975), np.take(T_975, np.minimum(d, len(T_975)).astype(int) - 1), series)


def across(curves: list[tuple[Array, Array]], statistic: str = "mean", points: int = 300) -> Band:
    """A statistic over the curves of several seeds, where at least half of them (and at least two) have data.

    The interval is a percentile bootstrap over at least three seeds. A run that ended early does not cut the curve of
    the others.
    """
    needed = max(2, -(-len(curves) // 2))
    low = sorted(x[0] for x, _ in curves)[needed - 1]
    high = sorted((x[-1] for x, _ in curves), reverse=True)[needed - 1]
    if high < low:
        empty = np.array([])
        return Band(empty, empty, empty, empty)
    grid = np.linspace(low, high, points if high > low else 1)
    table = np.stack([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in curves], axis=-1)  # [points, seeds]
    there = np.isfinite(table)
    enough = there.sum(axis=-1) >= needed
    grid, table, there = grid[enough], table[enough], there[enough]
    band = Band(grid, *np.full((3, len(grid)), np.nan))
    patterns, of_point = np.unique(there, axis=0, return_inverse=True)  # which seeds have data
    for i, seeds in enumerate(patterns):
        at = of_point.ravel() == i
        values = table[at][:, seeds]
        band.center[at] = STATISTICS[statistic](values)
        if seeds.sum() >= LEAST:
            band.low[at], band.high[at] = bootstrap(values, statistic)
    return band
