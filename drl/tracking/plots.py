"""Plots of finished or running runs. They need only `metrics.jsonl`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from drl.core.errors import BadInput
from drl.core.safe_files import stay_inside
from drl.core.specs import Array
from drl.tracking.curves import (
    EpisodeTable,
    across,
    column,
    episodes_of,
    grouped,
    names_in,
    smoothing_window,
    thinned,
    trailing_mean,
)
from drl.tracking.figures import (
    COLORS,
    INK,
    add_legend,
    draw_band,
    draw_line,
    finish,
    make_figure,
    make_panels,
    save_figure,
)
from drl.tracking.files import Row, read_metrics
from drl.tracking.run_groups import grouped_runs, origin_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PANELS = 60  # in one figure
DOTS, LINE_POINTS, GROUPS = 4000, 1500, 200  # drawing limits; more points would overlap


def plot_run(run_dir: str | Path) -> list[Path]:
    """Write `plots/*.png` of one run and return the paths. A plot without data is skipped."""
    run_dir = Path(run_dir)
    rows = _rows(run_dir)
    label = f"{run_dir.resolve().parent.name} / {run_dir.resolve().name}"
    episodes = episodes_of(rows)
    pictures = {
        "return": _return(episodes, label),
        "success_rate": _success_rate(episodes, label),
        "rollout_return": _rollout_return(rows, episodes, label),
        "loss": _small_multiples(rows, names_in(rows, "learn"), "What the algorithm reports", label),
        "evaluation": _evaluation(rows, label),
    }
    plots = run_dir / "plots"
    drawn = {stay_inside(run_dir, plots / f"{name}.png"): figure for name, figure in pictures.items()}
    return [save_figure(figure, path) for path, figure in drawn.items() if figure is not None]


def plot_compare(run_dirs: Sequence[str | Path], out: str | Path) -> Path:
    """Plot the smoothed returns of several runs together.

    Runs of one experiment that differ only in the seed become a mean with a 95 % band; the single runs are drawn
    faintly. Runs with other settings get their own line, labeled with the settings that differ. Forks leave the line of
    the run that they began in, so that a family is one tree.
    """
    if not run_dirs:
        raise BadInput("got no runs to compare; give at least one run folder")
    groups = {label: _curves(runs) for label, runs in grouped_runs([Path(run_dir) for run_dir in run_dirs]).items()}
    groups = {label: curves for label, curves in groups.items() if curves}
    if not groups:
        raise BadInput(f"none of {[str(run_dir) for run_dir in run_dirs]} has a finished episode yet; train longer")
    figure, ax = make_figure("Return per episode", "trailing mean; band: 95 % confidence over three runs or more")
    for i, (label, curves) in enumerate(groups.items()):
        color, linestyle = COLORS[i % len(COLORS)], ("-", "--", ":")[i // len(COLORS) % 3]
        if len(curves) == 1:
            curve = curves[0]
            draw_line(ax, curve.x, curve.y, color=color, label=label, linestyle=linestyle)
            if curve.forked:
                ax.plot(curve.x[:1], curve.y[:1], marker="o", markersize=5, color=color)
            continue
        for curve in curves:
            draw_line(ax, curve.x, curve.y, color=color, linestyle=linestyle, linewidth=0.8, alpha=0.35)
        band = across([(curve.x, curve.y) for curve in curves])
        # Clip the band to the range of single episodes: a bounded return must not get a band past its bounds.
        bounds = min(curve.lowest for curve in curves), max(curve.highest for curve in curves)
        draw_band(ax, band, color, f"{label} ({len(curves)} runs)", linestyle, bounds)
    finish(ax, "return")
    add_legend(ax)
    return save_figure(figure, Path(out))


class _Curve(NamedTuple):
    """The smoothed returns of a run, and the range of its episodes."""

    x: Array
    y: Array
    lowest: float
    highest: float
    forked: bool  # whether it begins on the curve of another run


def _curves(run_dirs: Sequence[Path]) -> list[_Curve]:
    curves = []
    for run_dir in run_dirs:
        rows, begins = _rows_with_origin(run_dir)
        episodes = episodes_of(rows)
        keep = np.isfinite(episodes.returns)
        x, y = episodes.env_steps[keep], episodes.returns[keep]
        if len(y):
            smooth = trailing_mean(y, smoothing_window(len(y)))
            before = int(np.searchsorted(x, begins, side="right"))  # episodes of the run that it was forked from
            first = max(before - 1, 0)
            shown = first + thinned(len(y) - first, LINE_POINTS)
            curves.append(_Curve(x[shown], smooth[shown], float(y.min()), float(y.max()), before > 0))
    return curves


def _rows_with_origin(run_dir: Path) -> tuple[list[Row], int]:
    """The rows of a run, after those of the runs that it was forked from; and the step at which its own begin."""
    rows, begins, origin = _rows(run_dir), 0, origin_of(run_dir)
    seen = {run_dir.resolve()}
    while origin is not None and origin.run_dir not in seen and (origin.run_dir / "metrics.jsonl").is_file():
        begins, until = begins or origin.env_steps, origin.env_steps
        seen.add(origin.run_dir)
        rows = [row for row in _rows(origin.run_dir) if row.get("env_steps", 0) <= until] + rows
        origin = origin_of(origin.run_dir)
    return rows, begins


def _return(episodes: EpisodeTable, label: str) -> "Figure | None":
    if not np.isfinite(episodes.returns).any():
        return None
    figure, ax = make_figure("Return per episode", label)
    count = len(episodes.returns)
    dots, shown, window = thinned(count, DOTS), thinned(count, LINE_POINTS), smoothing_window(count)
    size, alpha = (14.0, 0.45) if count < 500 else (5.0, 0.22)
    ax.scatter(
        episodes.env_steps[dots],
        episodes.returns[dots],
        s=size,
        alpha=alpha,
        color=COLORS[0],
        linewidths=0,
        label="episode" if count <= DOTS else f"episode (one in {round(count / DOTS)})",
    )
    if window > 1:
        smooth = trailing_mean(episodes.returns, window)
        draw_line(ax, episodes.env_steps[shown], smooth[shown], color=COLORS[1], label=f"mean of the last {window:,}")
    finish(ax, "return")
    add_legend(ax)
    return figure


def _success_rate(episodes: EpisodeTable, label: str) -> "Figure | None":
    if not np.isfinite(episodes.success).any():
        return None
    from matplotlib.ticker import PercentFormatter

    count = len(episodes.success)
    window = max(smoothing_window(count), min(count, 10))  # a rate over fewer than ten episodes is too noisy
    figure, ax = make_figure("Success rate", f"{label} · share of the last {window:,} episodes")
    shown = thinned(count, LINE_POINTS)
    smooth = trailing_mean(episodes.success, window)
    draw_line(ax, episodes.env_steps[shown], smooth[shown], color=COLORS[2])
    finish(ax, "success rate")
    ax.set_ylim(-0.03, 1.03)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def _rollout_return(rows: list[Row], episodes: EpisodeTable, label: str) -> "Figure | None":
    if not np.isfinite(episodes.returns).any():
        return None
    used, starts = np.unique(episodes.row, return_index=True)  # rollouts in which an episode ended
    per_group = -(-len(used) // GROUPS)
    band = grouped(column(rows, "env_steps")[episodes.row], episodes.returns, starts[::per_group], least=3)
    unit = "each rollout" if per_group == 1 else f"every {per_group:,} rollouts"
    banded = " with its 95 % confidence" if np.isfinite(band.half).any() else ""
    figure, ax = make_figure("Return per rollout", f"{label} · mean of {unit}{banded}")
    draw_band(ax, band, color=COLORS[0])
    # The band of a few episodes can be huge; the axis covers all means but cuts the widest bands.
    spread = np.nanpercentile(np.concatenate([band.mean - band.half, band.mean + band.half, band.mean]), (2, 98))
    low, high = min(spread[0], np.nanmin(band.mean)), max(spread[1], np.nanmax(band.mean))
    if high > low:
        ax.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    finish(ax, "return")
    return figure


def _evaluation(rows: list[Row], label: str) -> "Figure | None":
    names = names_in(rows, "evaluation")
    bounds = ("evaluation/min_return", "evaluation/max_return")
    ranges = {"evaluation/mean_return": bounds} if {"evaluation/mean_return", *bounds} <= set(names) else {}
    hidden = {"evaluation/std_return", "evaluation/episodes", *bounds} if ranges else set()  # get no panel
    note = " · shaded: worst to best episode" if ranges else ""
    kept = [name for name in names if name not in hidden]
    return _small_multiples(rows, kept, "Evaluation", label + note, marker="o", ranges=ranges)


def _small_multiples(
    rows: list[Row],
    names: list[str],
    title: str,
    label: str,
    *,
    marker: str = "",
    ranges: Mapping[str, tuple[str, str]] = MappingProxyType({}),  # name → names of the bounds of its shaded range
) -> "Figure | None":
    """One panel per name, each on its own scale."""
    if not names:
        return None
    names = names[:MOST_PANELS]
    wide = 2 if len(names) in (2, 4) else min(len(names), 3)
    figure, axes = make_panels(title, label, -(-len(names) // wide), wide, (3.7, 1.9))
    steps = column(rows, "env_steps")
    for i, (ax, name) in enumerate(zip(axes, names, strict=False)):
        values = column(rows, name)
        there = np.isfinite(values)
        x, y = steps[there], values[there]
        starts = np.unique(np.linspace(0, len(y), min(len(y), 2 * GROUPS), endpoint=False).astype(int))
        curve = grouped(x, y, starts)
        dots = marker if len(starts) <= 60 else ""
        if name in ranges and len(y) == len(starts):
            low, high = (column(rows, bound)[there] for bound in ranges[name])
            ax.fill_between(x, low, high, color=COLORS[i % len(COLORS)], alpha=0.15, linewidth=0)
        draw_line(ax, curve.x, curve.mean, color=COLORS[i % len(COLORS)], linewidth=1.5, marker=dots, markersize=3.5)
        short, lowest = name.split("/", 1)[1], i >= len(names) - wide  # lowest of its column
        if len(axes) > 1:
            ax.set_title(short, fontsize=10, color=INK, loc="left")
        finish(ax, "" if len(axes) > 1 else short, x_label="environment steps" if lowest else "")
    for ax in axes[len(names) :]:
        ax.set_visible(False)
    return figure


def _rows(run_dir: Path) -> list[Row]:
    path = run_dir / "metrics.jsonl"
    if not os.path.lexists(path):
        raise BadInput(f"{path} does not exist; expected a run folder such as results/<experiment>/<run-id>")
    return read_metrics(path)
