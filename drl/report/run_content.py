"""Content of a run's page as plain data for JSON. A run's files are untrusted.

Curves are thinned to few enough points for a page. Settings are compared with those of a run without any flag: its
preset, or the defaults of its algorithm.
"""

import itertools
import json
import math
import os
import shlex
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drl.algorithms import find_algorithm
from drl.core.errors import BadInput, DrlError
from drl.core.log import COUNTERS
from drl.core.safe_files import read_inside
from drl.core.specs import Array, PlainDict, PlainValue
from drl.runs.folder.run_folder import UNFINISHED, is_in_use, read_record, settings_at_start
from drl.settings.experiment import AS_SET, Experiment
from drl.settings.presets import load_preset
from drl.tracking.console import clock
from drl.tracking.curves import RETURN, column, episodes_of, grouped
from drl.tracking.files import Row, evaluation_in, read_metrics

MOST_EVALUATIONS = 100  # rows shown, the latest
MOST_LETTERS = 2000  # per text
MOST_VIDEO = 64 << 20  # bytes
MOST_CURVES = 200  # per run
DIGITS = 6  # significant digits of a value


def read_run(folder: Path, name: str, points: int) -> PlainDict:
    """Return everything about a run except its video; only `problem` if it cannot be read."""
    try:
        return {"name": name} | _content(folder, points)
    except DrlError as error:
        problem = str(error)
    except Exception as error:
        problem = f"{folder} does not hold the records of a run ({type(error).__name__}: {error})"
    return {"name": name, "problem": short_text(problem)}


def _content(folder: Path, points: int) -> PlainDict:
    record, metrics, config = read_record(folder), folder / "metrics.jsonl", folder / "config.yaml"
    settings = settings_at_start(folder) if os.path.lexists(config) else {}
    rows = read_metrics(metrics) if os.path.lexists(metrics) else []
    typed = record.get("command")
    command = [str(word) for word in typed] if isinstance(typed, list) else []
    base = base_of(settings, command, record.get("compile"))
    versions = record.get("versions")
    return {
        "training": in_training(folder, record),
        "facts": _facts(record, settings, rows),
        "curves": curves_of_rows(rows, points),
        "evaluations": _evaluations(rows, record),
        "settings": _texts(settings),
        "base": base and {"name": base.name, "settings": _texts(base.settings)},
        "versions": _texts(versions) if isinstance(versions, dict) else {},
        "command": short_text(shlex.join(command)),
        "algorithm": short_text(settings.get("algorithm", "")),
        "config": read_inside(folder, config).decode(errors="replace") if os.path.lexists(config) else "",
        "notes": _notes(record),
    }


def in_training(folder: Path, record: PlainDict) -> bool:
    """Whether a process is training this run now."""
    return record.get("status") == UNFINISHED and is_in_use(folder)


def _facts(record: PlainDict, settings: PlainDict, rows: list[Row]) -> PlainDict:
    """Return the headline numbers by name."""
    last = rows[-1] if rows else {}
    final = record.get("final_evaluation")
    window = last.get("recent/window")
    seconds = [row.get("time/time_elapsed") for row in rows]  # of one learning step each
    facts = {
        "status": record.get("status"),
        "algorithm": settings.get("algorithm"),
        "environment": settings.get("env"),
        "seed": record.get("seed"),
        "final evaluation, mean return": final.get("mean_return") if isinstance(final, dict) else None,
        f"mean return, last {window:,.0f} episodes" if window else "mean return": last.get("recent/mean_ep_return"),
        "success rate": last.get("recent/success_rate"),
        "environment steps": last.get("env_steps"),
        "episodes": last.get("episodes"),
        "training time": clock(sum(value for value in seconds if value)) if rows else None,
        "steps per second": last.get("time/steps_per_second"),
        "started": str(record.get("started", "")).replace("T", " ") or None,
    }
    return {key: plain_value(value) for key, value in facts.items() if value is not None}


def _evaluations(rows: list[Row], record: PlainDict) -> PlainDict:
    """Return a table of the evaluations during training and of the final agent."""
    made = [(row.get("env_steps"), evaluation_in(row)) for row in rows]
    made = [(steps, numbers) for steps, numbers in made if numbers]
    left_out = max(len(made) - MOST_EVALUATIONS, 0)
    final = record.get("final_evaluation")
    if isinstance(final, dict):
        made.append(("final agent", {str(key): value for key, value in final.items()}))
    columns = list(dict.fromkeys(name for _, numbers in made for name in numbers))
    lines = [[steps, *(numbers.get(name) for name in columns)] for steps, numbers in made[left_out:]]
    return {
        "columns": [short_text(name) for name in columns],
        "rows": [[plain_value(cell) for cell in line] for line in lines],
        "left_out": left_out,
    }


def _notes(record: PlainDict) -> list[str]:
    """Return notes for readers of the curves, such as forks and resumes."""
    notes, origin, resumed = list[str](), record.get("forked_from"), record.get("resumed")
    if isinstance(origin, dict):
        notes.append(f"forked from {origin.get('run')} at step {origin.get('env_steps')}; its curves begin there")
    for entry in resumed if isinstance(resumed, list) else []:
        if isinstance(entry, dict):
            notes.append(f"resumed at step {entry.get('env_steps')} ({entry.get('resumed')})")
    return [short_text(note) for note in notes]


def curves_of_rows(rows: list[Row], points: int) -> dict[str, PlainDict]:
    """Map each metric to a curve of at most `points` points. The return per episode comes first."""
    episodes, steps = episodes_of(rows), column(rows, "env_steps")
    names = [name for name in dict.fromkeys(chain.from_iterable(rows)) if name not in (*COUNTERS, "finished")]
    series = chain(
        [(RETURN, episodes.env_steps, episodes.returns)],
        ((name, steps, column(rows, name)) for name in names[:MOST_CURVES]),
    )
    curves = ((name, thinned_curve(x, y, points)) for name, x, y in series)
    return {name: curve for name, curve in curves if curve["x"]}


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

    def plain(value: float) -> float | int | None:
        if not math.isfinite(value):
            return None
        if value.is_integer() and abs(value) < 1 << 53:  # exact in JavaScript
            return int(value)
        return float(f"{value:.{DIGITS}g}")

    return [plain(value) for value in values.tolist()]


class Base(NamedTuple):
    """Settings that a run's settings are compared with."""

    name: str  # in words
    settings: PlainDict


def base_of(settings: PlainDict, command: Sequence[str], compiled: PlainValue = None) -> Base | None:
    """Return the base settings; None if the algorithm or the preset is unknown. `command` is the typed command, which
    may name a preset. `compiled` is the run's record of its compilation."""
    algorithm, env = settings.get("algorithm"), settings.get("env")
    if not isinstance(algorithm, str) or not isinstance(env, str):
        return None
    named = _preset_named(command)
    try:
        find_algorithm(algorithm)  # before its name becomes part of a path
        preset = load_preset(algorithm, env, named)
        made = Experiment.from_flat((preset or {}) | {"algorithm": algorithm, "env": env}, "preset").to_flat()
    except BadInput:
        return None
    if isinstance(compiled, dict) and compiled.get("reason") != AS_SET:
        made["compile"] = settings.get("compile")  # the resolved value of auto is not a change
    words = f"preset {named} of {algorithm} for {env}" if named else f"preset of {algorithm} for {env}"
    return Base(words if preset is not None else f"defaults of {algorithm}", made)


def _preset_named(command: Sequence[str]) -> str | None:
    """
    >>> _preset_named(["drl", "train", "dqn", "--preset", "rainbow"]), _preset_named(["drl", "--preset=x"])
    ('rainbow', 'x')
    """
    for word, following in itertools.pairwise([*command, ""]):
        flag, equals, value = word.partition("=")
        if flag == "--preset":
            return (value if equals else following) or None
    return None


def find_video(folder: Path) -> Path | None:
    """Return the video of the final agent, or else the newest one."""
    final = folder / "videos" / "final_agent.mp4"
    newest = max((folder / "videos").glob("*.mp4"), key=lambda path: path.lstat().st_mtime, default=None)
    return final if os.path.lexists(final) else newest


def plain_value(value: PlainValue) -> PlainValue:
    """Return a number that JSON can represent, or a text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return short_text(value)


def short_text(value: PlainValue) -> str:
    """Return a value as text, shortened if it is long."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = "a value that cannot be shown"
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"


def _texts(values: PlainDict) -> dict[str, str]:
    return {short_text(name): short_text(value) for name, value in values.items()}
