"""Curves from `metrics.jsonl`: the rows of a run, smoothing, bins, statistics over seeds and 95 % bands, in NumPy.

Only repetitions are averaged: runs of one experiment folder that differ at most in the seed.
"""

import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from drl.core.errors import BadInput, DrlError, did_you_mean
from drl.core.log import COUNTERS, LOOKUP
from drl.core.safe_files import MOST_SETTINGS, parse_yaml, read_inside
from drl.core.specs import Array, PlainDict
from drl.tracking.files import Row, read_metrics

RETURN = "return"  # per finished episode; every other metric is a column of metrics.jsonl
POINTS = 1500  # most points of a line; more would overlap
BINS = 100  # most bins along the environment steps
RESAMPLES = 2000  # bootstrap resamples of the seeds
LEAST = 3  # fewest seeds or episodes for a band
# 97.5 % quantiles of Student's t for 1 to 10 degrees of freedom; above, a series around the normal is exact to 1e-3.
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
# Settings that do not change what is learned. Runs that differ only in these count as repetitions.
OF_ONE_RUN = {
    "seed", "num_seeds", "name", "results_dir", "quiet", "threads", "plots", "video", "tensorboard", "wandb_project",
    "evaluate_every", "evaluation_episodes", "checkpoint_every", "keep_checkpoints", "num_checkpoints", "max_minutes",
    "best_after", "compile", "checkpoint_minutes", "checkpoint_rows", "fallback_dir", "record_episodes",
    "worker_timeout", "mlflow_experiment", "group", "license", "log_every", "info_keys",
}  # fmt: skip
SHOWN = 4  # most settings named in a label
FORKED_AT = "forked_at"  # the step at which a fork begins, named like a setting


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


class Estimate(NamedTuple):
    """A number and the ends of its 95 % interval."""

    value: float
    low: float | None  # None with too few seeds
    high: float | None


def iqm(values: Array) -> Array:
    """Interquartile mean over the last axis: a quarter of the values (rounded down) is cut off at each end.

    >>> iqm(np.array([0.0, 2.0, 4.0, 900.0]))
    np.float64(3.0)
    """
    count = values.shape[-1]
    return np.sort(values, axis=-1)[..., count // 4 : count - count // 4].mean(axis=-1)


STATISTICS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {"mean": lambda values: values.mean(axis=-1), "median": lambda values: np.median(values, axis=-1), "iqm": iqm}
)  # over the last axis


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


def interval_of(seeds: Array) -> Estimate:
    """The mean over seeds with its percentile bootstrap interval, for at least three seeds.

    >>> interval_of(np.array([4.0, 4.0, 4.0])), interval_of(np.array([4.0, 5.0]))
    (Estimate(value=4.0, low=4.0, high=4.0), Estimate(value=4.5, low=None, high=None))
    """
    low, high = map(float, bootstrap(seeds)) if len(seeds) >= LEAST else (None, None)
    return Estimate(float(seeds.mean()), low, high)


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


def series_of(rows: list[Row], name: str) -> tuple[Array, Array]:
    """Environment steps and finite values of a metric; of each finished episode for `RETURN`."""
    if name == RETURN:
        episodes = episodes_of(rows)
        x, y = episodes.env_steps, episodes.returns
    else:
        x, y = column(rows, "env_steps"), column(rows, name)
    finite = np.isfinite(y)
    return x[finite], y[finite]


def names_in(rows: list[Row], group: str) -> list[str]:
    """Names `group/…` with at least one finite number, in order of first appearance."""
    names = [name for name in dict.fromkeys(itertools.chain.from_iterable(rows)) if name.startswith(f"{group}/")]
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
    steps = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15)
    return float(next(round(step * size, 12) for step in steps if step * size >= least))


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


def grouped_runs(run_dirs: Sequence[Path], labels: Sequence[str] | None = None) -> dict[str, list[Path]]:
    """Map labels to runs that are repetitions. A label is the experiment's name and the settings that differ.

    `labels`, one per run, replace the experiments: only runs with the same label may be repetitions.
    Runs without a readable `config.yaml` count as equal. A run that is given twice counts once.
    """
    if labels is None:
        experiments = [run_dir.resolve().parent for run_dir in run_dirs]
        names = distinct_names(experiments)
        labels = [names[experiment] for experiment in experiments]
    groups: dict[tuple[str, str], tuple[PlainDict, dict[Path, Path]]] = {}
    for run_dir, label in zip(run_dirs, labels, strict=True):
        settings = learning_settings(run_dir)
        key = (label, json.dumps(settings, sort_keys=True, default=str))
        groups.setdefault(key, (settings, {}))[1].setdefault(run_dir.resolve(), run_dir)
    labeled: dict[str, list[Path]] = {}
    for (label, _), (settings, runs) in groups.items():
        siblings = [other for key, (other, _) in groups.items() if key[0] == label]
        text = ", ".join([label, *_differing(settings, siblings)])
        numbered = (f"{text} ({number})" for number in itertools.count(2))
        # Groups that differ only in settings that are not shown still get distinct labels.
        labeled[next(each for each in itertools.chain([text], numbered) if each not in labeled)] = [*runs.values()]
    return labeled


def _differing(own: PlainDict, siblings: list[PlainDict]) -> list[str]:
    """Return `name=value` of the settings that distinguish a group from its siblings."""
    names = dict.fromkeys(itertools.chain.from_iterable(siblings))
    distinct = [name for name in names if any(one.get(name) != own.get(name) for one in siblings)]
    values = {name: own.get(name) for name in distinct[:SHOWN] if name in own or name != FORKED_AT}
    shown = [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()]
    return shown + ([f"and {len(distinct) - SHOWN} more"] if len(distinct) > SHOWN else [])


def learning_settings(run_dir: Path) -> PlainDict:
    """Return the settings that a run has in common with its repetitions."""
    path = run_dir / "config.yaml"
    try:
        content = parse_yaml(read_inside(run_dir, path, MOST_SETTINGS)) if path.is_file() else None
    except ValueError:
        content = None
    settings = {str(k): v for k, v in content.items() if k not in OF_ONE_RUN} if isinstance(content, dict) else {}
    origin = origin_of(run_dir)  # a fork continues another run and does not repeat it
    return settings if origin is None else settings | {FORKED_AT: origin.env_steps}


def distinct_names(folders: list[Path]) -> dict[Path, str]:
    """Return the last part of each path, or as many parts as needed to make them distinct."""
    names: dict[Path, str] = {}
    for parts in range(1, max((len(folder.parts) for folder in folders), default=0) + 1):
        names = {folder: "/".join(folder.parts[-parts:]) for folder in folders}
        if len(set(names.values())) == len(names):
            break
    return names


class ForkOrigin(NamedTuple):
    """Where a fork begins."""

    run_dir: Path  # the other run
    env_steps: int


def origin_of(run_dir: Path) -> ForkOrigin | None:
    """Return the origin of a fork; None if the run is not a fork."""
    try:
        origin = json.loads(read_inside(run_dir, run_dir / "run.json"))["forked_from"]
        return ForkOrigin(run_dir.resolve().parent / Path(origin["run"]).name, int(origin["env_steps"]))
    except (DrlError, ValueError, KeyError, TypeError):
        return None


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
    visited = {run_dir.resolve()}
    while origin is not None and origin.run_dir not in visited and (origin.run_dir / "metrics.jsonl").is_file():
        begins, until = begins or origin.env_steps, origin.env_steps
        visited.add(origin.run_dir)
        rows = [row for row in rows_of(origin.run_dir) if row.get("env_steps", 0) <= until] + rows
        origin = origin_of(origin.run_dir)
    return History(rows, begins)


def curves_of(groups: Mapping[str, Sequence[History]], metric: str, smooth: int | None = None) -> MetricCurves:
    """Smooth a metric of several runs. `smooth` is the window of the trailing mean in episodes, or in rows of
    metrics.jsonl; None chooses one.

    All runs get the same window or the same bins, so that a fork starts on the curve of its origin.
    """
    name = full_name(metric, itertools.chain.from_iterable(groups.values()))
    series = {label: [(*series_of(each.rows, name), each.begins) for each in group] for label, group in groups.items()}
    series = {label: [each for each in group if len(each[0])] for label, group in series.items()}
    steps = [x for group in series.values() for x, _, _ in group]
    longest = max(map(len, steps), default=0)
    if name == RETURN and smooth is None and steps:
        smooth = smoothing_window(int(np.median([len(x) for x in steps])))
    width = bin_width(max(x[-1] for x in steps)) if smooth is None and longest > BINS else 0.0
    unit = "episodes" if name == RETURN else "values"
    words = f"mean of the last {smooth:,} {unit}" if smooth and smooth > 1 else binned_words(width)

    def curve(x: Array, y: Array, begins: int) -> Curve:
        if width:
            x, y, *_ = grouped(x, y, bin_starts(x, width))
        else:
            y = trailing_mean(y, smooth or 1)
        before = int(np.searchsorted(x, begins, side="right")) if begins else 0
        first = max(before - 1, 0)  # of the points of a fork's origin, only the last one is drawn
        shown = first + thinned(len(x) - first, POINTS)
        return Curve(x[shown], y[shown], before > 0)

    lines = {label: [curve(*each) for each in group] for label, group in series.items() if group}
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


def short_number(value: float, letters_from: float = 1e3) -> str:
    """
    >>> [short_number(x) for x in (0, 0.25, 500, 2_000, 12_500, -1_500_000, 2e9)]
    ['0', '0.25', '500', '2k', '12.5k', '−1.5M', '2B']
    >>> short_number(2_000, letters_from=1e5)
    '2,000'
    """
    text = f"{value:,.0f}" if abs(value) >= 1000 and value == round(value) else f"{value:.6g}"
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(size, letters_from):
            text = f"{value / size:.6g}{letter}"
            break
    return text.replace("-", "−")


def binned_words(width: float) -> str:
    """Describe the bins in an axis title; 0: no bins."""
    return f"mean per bin of {short_number(width)} steps" if width else ""
