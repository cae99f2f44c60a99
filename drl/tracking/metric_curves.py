"""Smoothed curves of one metric over several runs, including forks."""

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drl.core.errors import BadInput, did_you_mean
from drl.core.log import COUNTERS, LOOKUP
from drl.core.specs import Array
from drl.tracking.curves import (
    BINS,
    bin_starts,
    bin_width,
    column,
    episodes_of,
    grouped,
    smoothing_window,
    thinned,
    trailing_mean,
)
from drl.tracking.figures import short_number
from drl.tracking.files import Row, read_metrics
from drl.tracking.run_groups import origin_of

RETURN = "return"  # per finished episode; every other metric is a column of metrics.jsonl
POINTS = 1500  # most points of a line; more would overlap


class History(NamedTuple):
    """Rows of a run, preceded by the rows of the runs that it was forked from."""

    rows: list[Row]
    begins: int  # environment step at which its own rows begin


class Curve(NamedTuple):
    """The smoothed metric of one run."""

    x: Array
    y: Array
    forked: bool  # whether it starts on the curve of another run


class MetricCurves(NamedTuple):
    """One metric of all runs, with the same smoothing."""

    name: str
    smoothing: str  # in words
    lines: dict[str, list[Curve]]  # label → its runs that have data


def rows_of(run_dir: Path) -> list[Row]:
    """Return the logged rows of a run; raise if it is not a run."""
    path = run_dir / "metrics.jsonl"
    if not os.path.lexists(path):
        raise BadInput(f"{path} does not exist; expected a run folder such as results/<experiment>/<run-id>")
    return read_metrics(path)


def history_of(run_dir: Path) -> History:
    """Return the rows of a run. For a fork, the origin's rows up to the fork come first."""
    rows, begins, origin = rows_of(run_dir), 0, origin_of(run_dir)
    seen = {run_dir.resolve()}
    while origin is not None and origin.run_dir not in seen and (origin.run_dir / "metrics.jsonl").is_file():
        begins, until = begins or origin.env_steps, origin.env_steps
        seen.add(origin.run_dir)
        rows = [row for row in rows_of(origin.run_dir) if row.get("env_steps", 0) <= until] + rows
        origin = origin_of(origin.run_dir)
    return History(rows, begins)


def curves_of(groups: Mapping[str, Sequence[History]], metric: str, smooth: int | None = None) -> MetricCurves:
    """Smooth a metric of several runs. `smooth` is the window of the trailing mean in episodes, or in rows of
    metrics.jsonl; None chooses one.

    All runs get the same window or the same bins, so that a fork starts on the curve of its origin.
    """
    name = full_name(metric, chain.from_iterable(groups.values()))
    found = {label: [(_numbers(history, name), history.begins) for history in group] for label, group in groups.items()}
    found = {label: [(xy, begins) for xy, begins in group if len(xy[0])] for label, group in found.items()}
    series = [xy for group in found.values() for xy, _ in group]
    longest = max((len(x) for x, _ in series), default=0)
    if name == RETURN and smooth is None and series:
        smooth = smoothing_window(int(np.median([len(x) for x, _ in series])))
    width = bin_width(max(x[-1] for x, _ in series)) if smooth is None and longest > BINS else 0.0
    unit = "episodes" if name == RETURN else "values"
    words = f"mean of the last {smooth:,} {unit}" if smooth and smooth > 1 else binned_words(width)
    lines = {
        label: [_curve(*_smoothed(*xy, smooth or 1, width), begins) for xy, begins in group]
        for label, group in found.items()
        if group
    }
    return MetricCurves(name, words, lines)


def full_name(metric: str, histories: Iterable[History]) -> str:
    """Resolve a plain name to `group/name` of the first group that has it, as a `Log` does."""
    columns = set[str]().union(*(row for history in histories for row in history.rows)) - {"finished"}
    for name in (metric, *(f"{group}/{metric}" for group in LOOKUP)):
        if name in columns | {RETURN}:
            return name
    known = [RETURN, *sorted(columns - {*COUNTERS})]
    plain = {name.split("/", 1)[-1] for name in known}
    hint = did_you_mean(metric, {*known, *plain})
    hint = f"{hint} " if hint.endswith("?") else ""  # otherwise the hint is the list below
    raise BadInput(f"no run has the metric {metric!r}; {hint}there are {', '.join(known)}")


def binned_words(width: float) -> str:
    """Describe the bins in an axis title; 0: no bins."""
    return f"mean per bin of {short_number(width)} steps" if width else ""


def axis_words(name: str, smoothing: str) -> str:
    """Return the title of an axis, in one or two lines."""
    return f"{name}\n{smoothing}" if smoothing else name


def _numbers(history: History, name: str) -> tuple[Array, Array]:
    if name == RETURN:
        episodes = episodes_of(history.rows)
        x, y = episodes.env_steps, episodes.returns
    else:
        x, y = column(history.rows, "env_steps"), column(history.rows, name)
    keep = np.isfinite(y)
    return x[keep], y[keep]


def _smoothed(x: Array, y: Array, window: int, width: float) -> tuple[Array, Array]:
    if width:
        band = grouped(x, y, bin_starts(x, width))
        return band.x, band.center
    return x, trailing_mean(y, window)


def _curve(x: Array, y: Array, begins: int) -> Curve:
    """Make a curve without the origin's points, except for the last one."""
    before = int(np.searchsorted(x, begins, side="right")) if begins else 0
    first = max(before - 1, 0)
    shown = first + thinned(len(x) - first, POINTS)
    return Curve(x[shown], y[shown], before > 0)
