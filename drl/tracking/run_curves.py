"""Which runs may be averaged, and a metric of several runs as smoothed curves, forks included.

Repetitions are runs of one experiment folder that differ at most in the seed.
"""

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drl.core.errors import BadInput, DrlError, did_you_mean
from drl.core.log import COUNTERS, LOOKUP
from drl.core.safe_files import MOST_SETTINGS, parse_yaml, read_inside
from drl.core.specs import Array, PlainDict
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

RETURN = "return"  # per finished episode; every other metric is a column of metrics.jsonl
POINTS = 1500  # most points of a line; more would overlap
# Settings that do not change what is learned. Runs that differ only in these count as repetitions.
OF_ONE_RUN = {
    "seed", "num_seeds", "name", "results_dir", "quiet", "threads", "plots", "video", "tensorboard", "wandb_project",
    "evaluate_every", "evaluation_episodes", "checkpoint_every", "keep_checkpoints", "num_checkpoints", "max_minutes",
    "best_after", "compile", "checkpoint_minutes", "checkpoint_rows", "fallback_dir", "record_episodes",
    "worker_timeout", "mlflow_experiment", "group", "license", "log_every", "info_keys",
}  # fmt: skip
SHOWN = 4  # most settings named in a label
FORKED_AT = "forked_at"  # the step at which a fork begins, named like a setting


def grouped_runs(run_dirs: Sequence[Path], labels: Sequence[str] | None = None) -> dict[str, list[Path]]:
    """Map labels to runs that are repetitions. A label is the experiment's name and the settings that differ.

    `labels`, one per run, replace the experiments: only runs with the same label may be repetitions.
    Runs without a readable `config.yaml` count as equal. A run that is given twice counts once.
    """
    folders = [run_dir.resolve().parent for run_dir in run_dirs]
    names = distinct_names(list(dict.fromkeys(folders))) if folders else {}
    labels = [names[folder] for folder in folders] if labels is None else labels
    groups: dict[tuple[str, str], list[Path]] = {}
    settings: dict[tuple[str, str], PlainDict] = {}
    for run_dir, label in zip(run_dirs, labels, strict=True):
        own = learning_settings(run_dir)
        key = (label, json.dumps(own, sort_keys=True, default=str))
        group = groups.setdefault(key, [])
        if run_dir.resolve() not in [other.resolve() for other in group]:
            group.append(run_dir)
        settings[key] = own
    labeled: dict[str, list[Path]] = {}
    for key, runs in groups.items():
        siblings = [other for (label, _), other in zip(groups, settings.values(), strict=True) if label == key[0]]
        text = ", ".join([key[0], *_differing(settings[key], siblings)])
        numbered = (f"{text} ({number})" for number in itertools.count(2))
        # Groups that differ only in settings that are not shown still get distinct labels.
        labeled[next(each for each in itertools.chain([text], numbered) if each not in labeled)] = runs
    return labeled


def _differing(own: PlainDict, all_of_them: list[PlainDict]) -> list[str]:
    """Return `name=value` of the settings that distinguish a group from its siblings."""
    names = dict.fromkeys(name for one in all_of_them for name in one)
    distinct = [name for name in names if any(one.get(name) != own.get(name) for one in all_of_them)]
    shown = [f"{name}={_short(own.get(name))}" for name in distinct[:SHOWN] if name in own or name != FORKED_AT]
    return shown + ([f"and {len(distinct) - SHOWN} more"] if len(distinct) > SHOWN else [])


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


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
    for parts in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = {folder: "/".join(folder.parts[-parts:]) for folder in folders}
        if len(set(names.values())) == len(folders):
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


def binned_words(width: float) -> str:
    """Describe the bins in an axis title; 0: no bins."""
    return f"mean per bin of {short_number(width)} steps" if width else ""


def axis_words(name: str, smoothing: str) -> str:
    """Return the title of an axis, in one or two lines."""
    return f"{name}\n{smoothing}" if smoothing else name
