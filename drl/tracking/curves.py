"""Turns rows of `metrics.jsonl` into curves: smoothing, thinning and confidence bands, in NumPy."""

from itertools import chain
from typing import NamedTuple

import numpy as np

from drl.core.specs import Array
from drl.tracking.files import Row

# 97.5 % quantiles of Student's t for 1 to 10 degrees of freedom; above, a series around the normal is exact to 1e-3.
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class EpisodeTable(NamedTuple):
    """The finished episodes of a run, in order."""

    env_steps: Array  # [E] approximate end: spread evenly over the learning step
    returns: Array  # [E] NaN if not finite
    success: Array  # [E] 0 or 1; NaN if unknown
    row: Array  # [E] index of its log


class Band(NamedTuple):
    """Group means and the half-width of their 95 % confidence interval (NaN where a group is too small)."""

    x: Array
    mean: Array
    half: Array


def episodes_of(rows: list[Row]) -> EpisodeTable:
    finished = [episode for row in rows for episode in row.get("finished", ())]
    counts = np.array([len(row.get("finished", ())) for row in rows], int)
    table = np.array(finished, float).reshape(len(finished), 4)  # None becomes NaN
    ends = column(rows, "env_steps")
    starts = np.concatenate([[0.0], ends[:-1]])
    row = np.repeat(np.arange(len(rows)), counts)
    place = np.arange(len(finished)) - np.repeat(np.cumsum(counts) - counts, counts) + 1  # 1 … n within its row
    env_steps = starts[row] + (ends - starts)[row] * place / counts[row]
    return EpisodeTable(env_steps, table[:, 0], table[:, 3], row)


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
    """Episodes to average over: a tenth of a short run, 100 in a normal run, more in a very long one."""
    return max(1, min(count // 10, 100), count // 200)


def thinned(count: int, most: int) -> Array:
    """Evenly spaced indices of at most about `most` of `count` points, including the first and the last.

    >>> thinned(3, 10), thinned(1000, 3)
    (array([0, 1, 2]), array([  0, 500, 999]))
    """
    return np.unique(np.round(np.linspace(0, count - 1, min(count, most))).astype(int))


def grouped(x: Array, values: Array, starts: Array, least: int = 2) -> Band:
    """Means of consecutive groups that begin at `starts`, at each group's last x. NaN values do not count.

    Groups of fewer than `least` values get no band.

    >>> band = grouped(np.arange(4.0), np.array([1.0, 3.0, 5.0, 5.0]), np.array([0, 2]))
    >>> band.mean, band.half.round(2)
    (array([2., 5.]), array([12.71,  0.  ]))
    """
    finite = np.isfinite(values)
    n = np.add.reduceat(finite.astype(int), starts)
    total = np.add.reduceat(np.where(finite, values, 0.0), starts)
    mean = np.where(n > 0, total / np.maximum(n, 1), np.nan)
    sizes = np.diff(np.append(starts, len(values)))
    deviation = np.where(finite, values - np.repeat(mean, sizes), 0.0)
    variance = np.add.reduceat(np.square(deviation), starts) / np.maximum(n - 1, 1)
    half = np.where(n >= least, t_975(n - 1) * np.sqrt(variance / np.maximum(n, 1)), np.nan)
    return Band(x[starts + sizes - 1], mean, half)


def t_975(degrees: Array) -> Array:
    """97.5 % quantile of Student's t.

    >>> t_975(np.array([1, 10, 30, 1000])).round(3)
    array([12.706,  2.228,  2.042,  1.962])
    """
    d, z = np.maximum(degrees, 1).astype(float), 1.959964
    series = z + (z**3 + z) / (4 * d) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * d**2)
    return np.where(d <= len(T_975), np.take(T_975, np.minimum(d, len(T_975)).astype(int) - 1), series)


def across(curves: list[tuple[Array, Array]], points: int = 300) -> Band:
    """Mean and 95 % band over the curves of several runs, where at least half of them (and at least two) have data.

    A run that ended early does not cut the mean of the others. Fewer than three runs get no band.
    """
    needed = max(2, -(-len(curves) // 2))
    low = sorted(x[0] for x, _ in curves)[needed - 1]
    high = sorted((x[-1] for x, _ in curves), reverse=True)[needed - 1]
    if high < low:
        empty = np.array([])
        return Band(empty, empty, empty)
    grid = np.linspace(low, high, points if high > low else 1)
    table = np.stack([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in curves])  # [runs, points]
    flat = grouped(np.repeat(grid, len(curves)), table.T.ravel(), np.arange(len(grid)) * len(curves), least=3)
    enough = np.isfinite(table).sum(axis=0) >= needed
    return Band(grid[enough], flat.mean[enough], flat.half[enough])
