"""Pictures of finished or running runs, from their `metrics.jsonl` alone.

Drawn on Agg canvases through matplotlib's objects: no window, no pyplot, no state shared with the user's own figures.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.tracking.curves import (
    Band,
    Episodes,
    across,
    column,
    episodes_of,
    grouped,
    names_in,
    smoothing_window,
    thinned,
    trailing_mean,
)
from drl.tracking.files import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#6b6b6b")
INK, FAINT = "#2b2b2b", "#8a8a8a"
DOTS, LINE_POINTS, GROUPS = 4000, 1500, 200  # most that are drawn of each; more cannot be told apart


def plot_run(run_dir: str | Path) -> list[Path]:
    """Write `plots/*.png` of one run and return those written; a picture without data is skipped."""
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
    return [_save(figure, plots / f"{name}.png") for name, figure in pictures.items() if figure is not None]


def plot_compare(run_dirs: Sequence[str | Path], out: str | Path) -> Path:
    """Smoothed returns of several runs on one picture.

    Runs in one experiment folder become a mean with its 95 % band, drawn where all of them have data, over the faint
    single runs.
    """
    if not run_dirs:
        raise BadInput("got no runs to compare; give at least one run folder")
    experiments: dict[Path, list[tuple[Array, Array]]] = {}
    for run_dir in map(Path, run_dirs):
        episodes = episodes_of(_rows(run_dir))
        keep = np.isfinite(episodes.returns)
        x, y = episodes.env_steps[keep], episodes.returns[keep]
        if len(y):
            shown = thinned(len(y), LINE_POINTS)
            curve = x[shown], trailing_mean(y, smoothing_window(len(y)))[shown]
            experiments.setdefault(run_dir.resolve().parent, []).append(curve)
    if not experiments:
        raise BadInput(f"none of {[str(run_dir) for run_dir in run_dirs]} has a finished episode yet; train longer")
    figure, ax = _figure("Return per episode", "trailing mean; band: 95 % confidence over runs")
    names = _distinct_names(list(experiments))
    for i, (folder, curves) in enumerate(experiments.items()):
        style: dict[str, Any] = {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": ("-", "--", ":")[i // len(COLOURS) % 3],
        }
        if len(curves) == 1:
            _line(ax, *curves[0], label=names[folder], **style)
            continue
        for x, y in curves:
            _line(ax, x, y, **style | {"linewidth": 0.8, "alpha": 0.35})
        _band(ax, across(curves), label=f"{names[folder]} ({len(curves)} runs)", **style)
    _finish(ax, "return")
    _legend(ax)
    return _save(figure, Path(out))


def _return(episodes: Episodes, label: str) -> "Figure | None":
    if not np.isfinite(episodes.returns).any():
        return None
    figure, ax = _figure("Return per episode", label)
    count = len(episodes.returns)
    dots, shown, window = thinned(count, DOTS), thinned(count, LINE_POINTS), smoothing_window(count)
    size, alpha = (14.0, 0.45) if count < 500 else (5.0, 0.22)
    ax.scatter(
        episodes.env_steps[dots],
        episodes.returns[dots],
        s=size,
        alpha=alpha,
        color=COLOURS[0],
        linewidths=0,
        label="episode" if count <= DOTS else f"episode (one in {round(count / DOTS)})",
    )
    if window > 1:
        smooth = trailing_mean(episodes.returns, window)
        _line(ax, episodes.env_steps[shown], smooth[shown], color=COLOURS[1], label=f"mean of the last {window:,}")
    _finish(ax, "return")
    _legend(ax)
    return figure


def _success_rate(episodes: Episodes, label: str) -> "Figure | None":
    count = len(episodes.success)
    if not count:
        return None
    from matplotlib.ticker import PercentFormatter

    window = max(smoothing_window(count), min(count, 10))  # a share of fewer than ten says little
    figure, ax = _figure("Success rate", f"{label} · share of the last {window:,} episodes")
    shown = thinned(count, LINE_POINTS)
    smooth = trailing_mean(episodes.success, window)
    _line(ax, episodes.env_steps[shown], smooth[shown], color=COLOURS[2])
    _finish(ax, "success rate")
    ax.set_ylim(-0.03, 1.03)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def _rollout_return(rows: list[dict[str, Any]], episodes: Episodes, label: str) -> "Figure | None":
    if not np.isfinite(episodes.returns).any():
        return None
    used, starts = np.unique(episodes.row, return_index=True)  # rollouts in which an episode ended
    per_group = -(-len(used) // GROUPS)
    band = grouped(column(rows, "env_steps")[episodes.row], episodes.returns, starts[::per_group], least=3)
    unit = "each rollout" if per_group == 1 else f"every {per_group:,} rollouts"
    banded = " with its 95 % confidence" if np.isfinite(band.half).any() else ""
    figure, ax = _figure("Return per rollout", f"{label} · mean of {unit}{banded}")
    _band(ax, band, color=COLOURS[0])
    # The band of a handful of episodes can be huge; the picture shows all means but not the widest bands in full.
    spread = np.nanpercentile(np.concatenate([band.mean - band.half, band.mean + band.half, band.mean]), (2, 98))
    low, high = min(spread[0], np.nanmin(band.mean)), max(spread[1], np.nanmax(band.mean))
    if high > low:
        ax.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    _finish(ax, "return")
    return figure


def _evaluation(rows: list[dict[str, Any]], label: str) -> "Figure | None":
    names = names_in(rows, "evaluation")
    bounds = ("evaluation/min_return", "evaluation/max_return")
    ranges = {"evaluation/mean_return": bounds} if {"evaluation/mean_return", *bounds} <= set(names) else {}
    told = {"evaluation/std_return", "evaluation/episodes", *bounds} if ranges else set()  # no panels of their own
    note = " · shaded: worst to best episode" if ranges else ""
    kept = [name for name in names if name not in told]
    return _small_multiples(rows, kept, "Evaluation", label + note, marker="o", ranges=ranges)


def _small_multiples(
    rows: list[dict[str, Any]],
    names: list[str],
    title: str,
    label: str,
    *,
    marker: str = "",
    ranges: Mapping[str, tuple[str, str]] = MappingProxyType({}),  # names of the bounds of a shaded range
) -> "Figure | None":
    """One panel per name, each on its own scale."""
    if not names:
        return None
    wide = 2 if len(names) in (2, 4) else min(len(names), 3)
    figure, axes = _panels(title, label, -(-len(names) // wide), wide, (3.7, 1.9))
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
            ax.fill_between(x, low, high, color=COLOURS[i % len(COLOURS)], alpha=0.15, linewidth=0)
        _line(ax, curve.x, curve.mean, color=COLOURS[i % len(COLOURS)], linewidth=1.5, marker=dots, markersize=3.5)
        short, lowest = name.split("/", 1)[1], i >= len(names) - wide  # lowest of its column
        if len(axes) > 1:
            ax.set_title(short, fontsize=10, color=INK, loc="left")
        _finish(ax, "" if len(axes) > 1 else short, x_label="environment steps" if lowest else "")
    for ax in axes[len(names) :]:
        ax.set_visible(False)
    return figure


def _rows(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "metrics.jsonl"
    if not path.is_file():
        raise BadInput(f"{path} does not exist; expected a run folder such as results/<experiment>/<run-id>")
    return read_metrics(path)


def _distinct_names(folders: list[Path]) -> dict[Path, str]:
    """The last part of each path, or as many parts as it takes to tell them apart."""
    for parts in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = {folder: "/".join(folder.parts[-parts:]) for folder in folders}
        if len(set(names.values())) == len(folders):
            break
    return names


def _panels(title: str, subtitle: str, down: int, wide: int, size: tuple[float, float]) -> "tuple[Figure, list[Axes]]":
    """`down` × `wide` panels of `size` inches under one heading. Margins are fixed: measuring them doubles the time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    gap_x, gap_y, left, right, top, bottom = 0.65, 0.6, 0.75, 0.25, 0.75, 0.52  # inches
    top += 0.3 if down * wide > 1 else 0.0  # panels have titles of their own
    width = left + wide * size[0] + (wide - 1) * gap_x + right
    height = top + down * size[1] + (down - 1) * gap_y + bottom
    figure = Figure(figsize=(width, height), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(left / width, 1 - 0.2 / height, title, fontsize=13, fontweight="bold", color=INK, va="top")
    figure.text(left / width, 1 - 0.47 / height, subtitle, fontsize=9, color=FAINT, va="top")
    spaces = {"wspace": gap_x / size[0], "hspace": gap_y / size[1]}
    edges = {"left": left / width, "right": 1 - right / width, "top": 1 - top / height, "bottom": bottom / height}
    return figure, list(figure.subplots(down, wide, squeeze=False, gridspec_kw=spaces | edges).ravel())


def _figure(title: str, subtitle: str) -> "tuple[Figure, Axes]":
    figure, (ax,) = _panels(title, subtitle, 1, 1, (7.0, 3.4))
    return figure, ax


def _line(ax: "Axes", x: Array, y: Array, **style: Any) -> None:
    look: dict[str, Any] = {"linewidth": 2.0, "solid_capstyle": "round"} | style
    if len(x) == 1:
        look["marker"] = "o"
    ax.plot(x, y, **look)


def _band(ax: "Axes", band: Band, color: str, label: str | None = None, linestyle: str = "-") -> None:
    ax.fill_between(band.x, band.mean - band.half, band.mean + band.half, color=color, alpha=0.18, linewidth=0)
    _line(ax, band.x, band.mean, color=color, label=label, linestyle=linestyle)


def _finish(ax: "Axes", y_label: str, x_label: str = "environment steps") -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.set_xlabel(x_label, color=INK, fontsize=9.5)
    ax.set_ylabel(y_label, color=INK, fontsize=9.5)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value, letters_from=1e5)))
    ax.grid(True, color="#e6e6e6", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(colors=INK, labelsize=8.5, length=0)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color("#bdbdbd")


def _legend(ax: "Axes") -> None:
    legend = ax.legend(fontsize=8.5, frameon=True, framealpha=0.85, edgecolor="none", labelcolor=INK)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)  # a faint dot would not be found


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


def _save(figure: "Figure", path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    try:
        figure.savefig(draft, format="png")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path
