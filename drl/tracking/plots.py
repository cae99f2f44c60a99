"""Plots of finished or running runs. They need only `metrics.jsonl`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from drl.core.errors import BadInput, plural
from drl.core.safe_files import stay_inside
from drl.core.specs import Array
from drl.tracking.curves import (
    BINS,
    LEAST,
    Band,
    EpisodeTable,
    across,
    bin_starts,
    bin_width,
    check_statistic,
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
    Look,
    add_legend,
    draw_band,
    draw_line,
    draw_ring,
    finish,
    look,
    make_figure,
    make_panels,
    panel_title,
    picture_format,
    save_figure,
)
from drl.tracking.files import Row
from drl.tracking.run_curves import (
    POINTS,
    RETURN,
    MetricCurves,
    axis_words,
    binned_words,
    curves_of,
    grouped_runs,
    history_of,
    rows_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 60  # in one figure
DOTS = 4000  # most dots of a scatter plot; more would overlap
MARKS = 9  # markers on a line


def plot_run(run_dir: str | Path) -> list[Path]:
    """Write `plots/*.png` of one run and return the paths. A plot without data is skipped."""
    run_dir = Path(run_dir)
    rows = rows_of(run_dir)
    label = f"{run_dir.resolve().parent.name} / {run_dir.resolve().name}"
    episodes = episodes_of(rows)
    pictures = {
        "return": _return(episodes, label),
        "success_rate": _success_rate(episodes, label),
        "rollout_return": _rollout_return(rows, episodes, label),
        "loss": _small_multiples(rows, names_in(rows, "learn"), "What the algorithm reports", label),
        "evaluation": _evaluation(rows, label),
        "info": _small_multiples(rows, names_in(rows, "info"), "Last info of each episode, means", label),
        "custom": _small_multiples(rows, names_in(rows, "custom"), "Own metrics", label),
    }
    plots = run_dir / "plots"
    drawn = {stay_inside(run_dir, plots / f"{name}.png"): figure for name, figure in pictures.items()}
    return [save_figure(figure, path) for path, figure in drawn.items() if figure is not None]


def plot_compare(
    run_dirs: Sequence[str | Path],
    out: str | Path,
    *,
    labels: Sequence[str] | None = None,  # one per run; repetitions with the same label become one line
    metrics: Sequence[str] = (RETURN,),  # one panel each
    statistic: str = "mean",  # over seeds; mean · median · iqm
    smooth: int | None = None,  # window of the trailing mean, in episodes or rows; None: by run length
) -> Path:
    """Plot metrics of several runs together, as a .png, .pdf or .svg.

    Runs of one experiment that differ only in the seed become one line with a 95 % band, with the single runs drawn
    faintly. Runs with other settings get their own line, labeled with the settings that differ. A fork branches off
    the line of its origin.
    """
    out = Path(out)
    picture_format(out)
    check_statistic(statistic)
    if smooth is not None and smooth < 1:
        raise BadInput(f"smooth is {smooth}; expected a whole number of at least 1")
    if not run_dirs:
        raise BadInput("got no runs to compare; give at least one run folder")
    groups = grouped_runs([Path(run_dir) for run_dir in run_dirs], labels)
    histories = {label: [history_of(run) for run in runs] for label, runs in groups.items()}
    panels = [curves_of(histories, metric, smooth) for metric in dict.fromkeys(metrics)]
    for panel in panels:
        if not panel.lines:
            what = "a finished episode" if panel.name == RETURN else f"a number for {panel.name}"
            raise BadInput(f"none of {', '.join(map(str, run_dirs))} has {what} yet; train longer")
    caption = statistic_words(panels, statistic)
    if len(panels) == 1:
        title = "Return per episode" if panels[0].name == RETURN else panels[0].name
        figure, axes = make_panels(title, caption, 1, 1, (7.0, 3.4))
    else:
        wide = min(len(panels), 2 if len(panels) in (2, 4) else 3)
        down, size = -(-len(panels) // wide), (4.4, 2.6) if wide == 2 else (3.7, 2.2)
        figure, axes = make_panels("Learning curves", caption, down, wide, size, titled=True)
    looks = {label: look(i) for i, label in enumerate(groups)}
    for i, (ax, panel) in enumerate(zip(axes, panels, strict=False)):
        draw_curves(ax, panel, looks, statistic)
        if len(panels) > 1:
            panel_title(ax, panel.name)
            finish(ax, panel.smoothing, x_label="environment steps" if i >= len(panels) - wide else "")
        else:
            finish(ax, axis_words(panel.name, panel.smoothing))
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    add_legend(figure, axes)
    return save_figure(figure, out)


def statistic_words(panels: Sequence[MetricCurves], statistic: str) -> str:
    """Describe lines and bands for a caption."""
    lines = [curves for panel in panels for curves in panel.lines.values()]
    most, forked = max(map(len, lines)), any(len(curves) == 1 and curves[0].forked for curves in lines)
    words = ["one seed per line"]
    if most > 1:
        words = [f"{'IQM (mean of the middle half)' if statistic == 'iqm' else statistic} over seeds"]
        words += [f"band: 95 % percentile bootstrap ({LEAST} seeds or more)"] if most >= LEAST else []
        words += ["thin: single seeds"]
    return "; ".join([*words, "ring: a fork begins"] if forked else words)


def draw_curves(ax: "Axes", panel: MetricCurves, looks: Mapping[str, Look], statistic: str, thin: bool = True) -> None:
    """Draw each line of a metric: its only run, or the statistic over its runs with a band and `thin` single runs."""
    marks = MARKS if len(panel.lines) > 1 else 0
    for label, curves in panel.lines.items():
        style = looks[label]
        if len(curves) == 1:
            (curve,) = curves
            draw_line(ax, curve.x, curve.y, style, label=label, marks=marks)
            if curve.forked:
                draw_ring(ax, curve.x[0], curve.y[0], style)
            continue
        for curve in curves if thin else ():
            draw_line(ax, curve.x, curve.y, Look(style.color), width=0.7, alpha=0.3)
        band = across([(curve.x, curve.y) for curve in curves], statistic)
        draw_band(ax, band, style, label=f"{label} ({plural(len(curves), 'seed')})", marks=marks)


def _return(episodes: EpisodeTable, label: str) -> "Figure | None":
    if not np.isfinite(episodes.returns).any():
        return None
    figure, ax = make_figure("Return per episode", label)
    count = len(episodes.returns)
    dots, shown, window = thinned(count, DOTS), thinned(count, POINTS), smoothing_window(count)
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
        label = f"mean of the last {plural(window, 'episode')}"
        draw_line(ax, episodes.env_steps[shown], smooth[shown], look(1)._replace(dashes="-"), label=label)
    finish(ax, "return")
    add_legend(figure, [ax])
    return figure


def _success_rate(episodes: EpisodeTable, label: str) -> "Figure | None":
    if not np.isfinite(episodes.success).any():
        return None
    from matplotlib.ticker import PercentFormatter

    count = len(episodes.success)
    window = max(smoothing_window(count), min(count, 10))  # a rate over fewer than ten episodes is too noisy
    figure, ax = make_figure("Success rate", f"{label} · share of the last {plural(window, 'episode')}")
    shown = thinned(count, POINTS)
    smooth = trailing_mean(episodes.success, window)
    draw_line(ax, episodes.env_steps[shown], smooth[shown], Look(COLORS[2]))
    finish(ax, "success rate")
    ax.set_ylim(-0.03, 1.03)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def _rollout_return(rows: list[Row], episodes: EpisodeTable, label: str) -> "Figure | None":
    if not np.isfinite(episodes.returns).any():
        return None
    ends = column(rows, "env_steps")[episodes.row]
    band, words = _binned(ends, episodes.returns)
    banded = " · band: 95 % interval of the mean (Student's t)" if np.isfinite(band.low).any() else ""
    figure, ax = make_figure("Return per rollout", label + banded)
    draw_band(ax, band, Look(COLORS[0]))
    finish(ax, axis_words("return", words or "mean per rollout"))
    return figure


def _binned(x: Array, values: Array) -> tuple[Band, str]:
    """Return the means of the values per x, or per bin if there are too many, and the words for the axis."""
    starts = np.unique(x, return_index=True)[1]
    width = bin_width(x[-1]) if len(starts) > BINS else 0.0
    return grouped(x, values, bin_starts(x, width) if width else starts), binned_words(width)


def _evaluation(rows: list[Row], label: str) -> "Figure | None":
    names = names_in(rows, "evaluation")
    bounds = ("evaluation/min_return", "evaluation/max_return")
    ranges = {"evaluation/mean_return": bounds} if {"evaluation/mean_return", *bounds} <= set(names) else {}
    hidden = {"evaluation/std_return", "evaluation/episodes", *bounds} if ranges else set()  # without a panel
    note = " · shaded: worst to best episode" if ranges else ""
    kept = [name for name in names if name not in hidden]
    return _small_multiples(rows, kept, "Evaluation", label + note, marked=True, ranges=ranges)


def _small_multiples(
    rows: list[Row],
    names: list[str],
    title: str,
    label: str,
    *,
    marked: bool = False,
    ranges: Mapping[str, tuple[str, str]] = MappingProxyType({}),  # name → names of the bounds of its shaded range
) -> "Figure | None":
    """One panel per name, each on its own scale."""
    if not names:
        return None
    names = names[:MOST_PANELS]
    wide = 2 if len(names) in (2, 4) else min(len(names), 3)
    steps = column(rows, "env_steps")
    figure, axes = make_panels(title, label, -(-len(names) // wide), wide, (3.7, 1.9), titled=len(names) > 1)
    for i, (ax, name) in enumerate(zip(axes, names, strict=False)):
        values = column(rows, name)
        there = np.isfinite(values)
        x, y = steps[there], values[there]
        curve, words = _binned(x, y)
        style = Look(COLORS[i % len(COLORS)])
        if name in ranges and not words:
            low, high = (column(rows, bound)[there] for bound in ranges[name])
            ax.fill_between(x, low, high, color=style.color, alpha=0.15, linewidth=0)
        draw_line(ax, curve.x, curve.center, style, width=1.5, marks=len(curve.x) if marked else 0)
        short, lowest = name.split("/", 1)[1], i >= len(names) - wide  # lowest of its column
        if len(axes) > 1:
            panel_title(ax, short)
        y_label = words if len(axes) > 1 else axis_words(short, words)
        finish(ax, y_label, x_label="environment steps" if lowest else "")
    for ax in axes[len(names) :]:
        ax.set_visible(False)
    return figure
