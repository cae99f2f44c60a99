"""Plots of finished or running runs. They need only `metrics.jsonl`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from drl.core.errors import BadInput, did_you_mean, plural
from drl.core.safe_files import stay_inside
from drl.core.specs import Array
from drl.tracking import curves, figures
from drl.tracking.curves import RETURN, Band, EpisodeTable, MetricCurves, column, names_in, thinned
from drl.tracking.figures import COLORS, Look, draw_band, draw_line, finish, look, save_figure
from drl.tracking.files import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 60  # in one figure
DOTS = 4000  # most dots of a scatter plot; more would overlap
MARKS = 9  # markers on a line


def plot_run(run_dir: str | Path) -> list[Path]:
    """Write `plots/*.png` of one run and return the paths. A plot without data is skipped."""
    run_dir = Path(run_dir)
    rows = curves.rows_of(run_dir)
    label = f"{run_dir.resolve().parent.name} / {run_dir.resolve().name}"
    episodes = curves.episodes_of(rows)
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
    paths = {name: stay_inside(run_dir, plots / f"{name}.png") for name in pictures}
    return [save_figure(figure, paths[name]) for name, figure in pictures.items() if figure is not None]


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
    figures.picture_format(out)
    if statistic not in curves.STATISTICS:
        raise BadInput(f"unknown statistic {statistic!r}; {did_you_mean(statistic, curves.STATISTICS)}")
    if smooth is not None and smooth < 1:
        raise BadInput(f"smooth is {smooth}; expected a whole number of at least 1")
    if not run_dirs:
        raise BadInput("got no runs to compare; give at least one run folder")
    groups = curves.grouped_runs([Path(run_dir) for run_dir in run_dirs], labels)
    histories = {label: [curves.history_of(run) for run in runs] for label, runs in groups.items()}
    panels = [curves.curves_of(histories, metric, smooth) for metric in dict.fromkeys(metrics)]
    for panel in panels:
        if not panel.lines:
            what = "a finished episode" if panel.name == RETURN else f"a number for {panel.name}"
            raise BadInput(f"none of {', '.join(map(str, run_dirs))} has {what} yet; train longer")
    title, size = "Learning curves", (4.4, 2.6) if len(panels) in (2, 4) else (3.7, 2.2)
    if len(panels) == 1:
        title, size = "Return per episode" if panels[0].name == RETURN else panels[0].name, (7.0, 3.4)
    figure, axes = figures.make_grid(title, statistic_words(panels, statistic), len(panels), size)
    looks = {label: look(i) for i, label in enumerate(groups)}
    for ax, panel in zip(axes, panels, strict=True):
        draw_curves(ax, panel, looks, statistic)
    figures.finish_grid(axes, [panel.name for panel in panels], [panel.smoothing for panel in panels])
    figures.add_legend(figure, axes)
    return save_figure(figure, out)


def statistic_words(panels: Sequence[MetricCurves], statistic: str) -> str:
    """Describe lines and bands for a caption."""
    lines = [line for panel in panels for line in panel.lines.values()]
    most, forked = max(map(len, lines)), any(len(line) == 1 and line[0].forked for line in lines)
    words = ["one seed per line"]
    if most > 1:
        words = [f"{'IQM (mean of the middle half)' if statistic == 'iqm' else statistic} over seeds"]
        words += [f"band: 95 % percentile bootstrap ({curves.LEAST} seeds or more)"] if most >= curves.LEAST else []
        words += ["thin: single seeds"]
    return "; ".join([*words, "ring: a fork begins"] if forked else words)


def draw_curves(ax: "Axes", panel: MetricCurves, looks: Mapping[str, Look], statistic: str, thin: bool = True) -> None:
    """Draw each line of a metric: its only run, or the statistic over its runs with a band and `thin` single runs."""
    marks = MARKS if len(panel.lines) > 1 else 0
    for label, line in panel.lines.items():
        style = looks[label]
        if len(line) == 1:
            x, y, forked = line[0]
            draw_line(ax, x, y, style, label=label, marks=marks)
            if forked:  # a ring
                ax.scatter(x[:1], y[:1], s=70, facecolors="white", edgecolors=style.color, linewidths=1.8, zorder=4)
            continue
        for curve in line if thin else ():
            draw_line(ax, curve.x, curve.y, Look(style.color), width=0.7, alpha=0.3)
        band = curves.across([(curve.x, curve.y) for curve in line], statistic)
        draw_band(ax, band, style, label=f"{label} ({plural(len(line), 'seed')})", marks=marks)


def _return(episodes: EpisodeTable, label: str) -> "Figure | None":
    if not np.isfinite(episodes.returns).any():
        return None
    figure, ax = figures.make_figure("Return per episode", label)
    count = len(episodes.returns)
    dots, shown, window = thinned(count, DOTS), thinned(count, curves.POINTS), curves.smoothing_window(count)
    name = "episode" if count <= DOTS else f"episode (one in {round(count / DOTS)})"
    size, alpha = (14.0, 0.45) if count < 500 else (5.0, 0.22)
    x, y = episodes.env_steps, episodes.returns
    ax.scatter(x[dots], y[dots], s=size, alpha=alpha, color=COLORS[0], linewidths=0, label=name)
    if window > 1:
        smooth = curves.trailing_mean(y, window)
        name = f"mean of the last {plural(window, 'episode')}"
        draw_line(ax, x[shown], smooth[shown], look(1)._replace(dashes="-"), label=name)
    finish(ax, "return")
    figures.add_legend(figure, [ax])
    return figure


def _success_rate(episodes: EpisodeTable, label: str) -> "Figure | None":
    if not np.isfinite(episodes.success).any():
        return None
    from matplotlib.ticker import PercentFormatter

    count = len(episodes.success)
    # A rate over fewer than ten episodes is too noisy.
    window, shown = max(curves.smoothing_window(count), min(count, 10)), thinned(count, curves.POINTS)
    figure, ax = figures.make_figure("Success rate", f"{label} · share of the last {plural(window, 'episode')}")
    rate = curves.trailing_mean(episodes.success, window)
    draw_line(ax, episodes.env_steps[shown], rate[shown], Look(COLORS[2]))
    finish(ax, "success rate")
    ax.set_ylim(-0.03, 1.03)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def _rollout_return(rows: list[Row], episodes: EpisodeTable, label: str) -> "Figure | None":
    if not np.isfinite(episodes.returns).any():
        return None
    band, words = _binned(column(rows, "env_steps")[episodes.row], episodes.returns)
    banded = " · band: 95 % interval of the mean (Student's t)" if np.isfinite(band.low).any() else ""
    figure, ax = figures.make_figure("Return per rollout", label + banded)
    draw_band(ax, band, Look(COLORS[0]))
    finish(ax, figures.axis_words("return", words or "mean per rollout"))
    return figure


def _binned(x: Array, values: Array) -> tuple[Band, str]:
    """Return the means of the values per x, or per bin if there are too many, and the words for the axis."""
    starts = np.unique(x, return_index=True)[1]
    width = curves.bin_width(x[-1]) if len(starts) > curves.BINS else 0.0
    return curves.grouped(x, values, curves.bin_starts(x, width) if width else starts), curves.binned_words(width)


def _evaluation(rows: list[Row], label: str) -> "Figure | None":
    names = names_in(rows, "evaluation")
    bounds = ("evaluation/min_return", "evaluation/max_return")
    ranges = {"evaluation/mean_return": bounds} if {"evaluation/mean_return", *bounds} <= set(names) else {}
    hidden = {"evaluation/std_return", "evaluation/episodes", *bounds} if ranges else set()  # without a panel
    note = " · shaded: worst to best episode" if ranges else ""
    drawn = [name for name in names if name not in hidden]
    return _small_multiples(rows, drawn, "Evaluation", label + note, marked=True, ranges=ranges)


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
    names, words, steps = names[:MOST_PANELS], list[str](), column(rows, "env_steps")
    figure, axes = figures.make_grid(title, label, len(names), (3.7, 1.9))
    for i, (ax, name) in enumerate(zip(axes, names, strict=True)):
        values = column(rows, name)
        there = np.isfinite(values)
        curve, binned = _binned(steps[there], values[there])
        style = Look(COLORS[i % len(COLORS)])
        if name in ranges and not binned:
            low, high = (column(rows, bound)[there] for bound in ranges[name])
            ax.fill_between(steps[there], low, high, color=style.color, alpha=0.15, linewidth=0)
        draw_line(ax, curve.x, curve.center, style, width=1.5, marks=len(curve.x) if marked else 0)
        words.append(binned)
    figures.finish_grid(axes, [name.split("/", 1)[1] for name in names], words)
    return figure
