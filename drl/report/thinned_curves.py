"""Curves of a run, thinned to few enough points for a page."""

import math
from collections.abc import Iterator
from itertools import chain

import numpy as np

from drl.core.log import COUNTERS
from drl.core.specs import Array, PlainDict
from drl.tracking.curves import column, episodes_of, grouped
from drl.tracking.files import Row
from drl.tracking.run_curves import RETURN

MOST_CURVES = 200  # per run
DIGITS = 6  # significant digits of a value


def curves_of_rows(rows: list[Row], points: int) -> dict[str, PlainDict]:
    """Map each metric to a curve of at most `points` points. The return per episode comes first."""
    found = ((name, thinned_curve(x, y, points)) for name, x, y in _series(rows))
    return {name: curve for name, curve in found if curve["x"]}


def _series(rows: list[Row]) -> Iterator[tuple[str, Array, Array]]:
    episodes = episodes_of(rows)
    yield RETURN, episodes.env_steps, episodes.returns
    steps = column(rows, "env_steps")
    names = [name for name in dict.fromkeys(chain.from_iterable(rows)) if name not in (*COUNTERS, "finished")]
    for name in names[:MOST_CURVES]:
        yield name, steps, column(rows, name)


def thinned_curve(x: Array, y: Array, points: int) -> PlainDict:
    """Return the finite points in the order of `x`. If there are more than `points`, neighbors are merged: `y` is their
    mean, `low` and `high` are their extremes, so that no spike is lost, and `each` is the largest number merged.

    >>> thinned_curve(np.arange(4.0), np.array([1.0, 3.0, 5.0, 0.0]), 2)
    {'x': [1, 3], 'y': [2, 2.5], 'low': [1, 0], 'high': [3, 5], 'each': 2}
    >>> thinned_curve(np.arange(2.0), np.array([1.0, np.nan]), 2)
    {'x': [0], 'y': [1]}
    """
    keep = np.isfinite(x) & np.isfinite(y)
    order = np.argsort(x[keep], kind="stable")
    x, y = np.rint(x[keep][order]), y[keep][order]
    if len(x) <= points:
        return {"x": plain_numbers(x), "y": plain_numbers(y)}
    starts = np.unique(np.linspace(0, len(x), points, endpoint=False).astype(int))
    with np.errstate(all="ignore"):  # a forged run may hold numbers whose sum is infinite
        band = grouped(x, y, starts)
    low, high = np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
    curve: PlainDict = {"x": plain_numbers(band.x), "y": plain_numbers(band.center)}
    return curve | {"low": plain_numbers(low), "high": plain_numbers(high), "each": math.ceil(len(x) / len(starts))}


def plain_numbers(values: Array) -> list[float | int | None]:
    """Convert to JSON numbers: integers without a point, others with `DIGITS` digits, None if not finite.

    >>> plain_numbers(np.array([120.0, 0.123456789, np.inf]))
    [120, 0.123457, None]
    """
    return [_plain_number(value) for value in values.tolist()]


def _plain_number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    if value.is_integer() and abs(value) < 1 << 53:  # exact in JavaScript
        return int(value)
    return float(f"{value:.{DIGITS}g}")
