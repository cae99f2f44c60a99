"""The shared look of all plots: panels, lines, bands, axes. Files are written atomically.

Figures use matplotlib's Agg canvas directly: no window, no pyplot, no state shared with the user's own figures.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from drl.core.safe_files import draft_of
from drl.core.specs import Array
from drl.tracking.curves import Band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#6b6b6b")
INK, FAINT = "#2b2b2b", "#8a8a8a"


def make_panels(
    title: str, subtitle: str, down: int, wide: int, size: tuple[float, float]
) -> "tuple[Figure, list[Axes]]":
    """`down` × `wide` panels of `size` inches under one title. Margins are fixed: measuring them doubles the time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    gap_x, gap_y, left, right, top, bottom = 0.65, 0.6, 0.75, 0.25, 0.75, 0.52  # inches
    top += 0.3 if down * wide > 1 else 0.0  # room for the panels' titles
    width = left + wide * size[0] + (wide - 1) * gap_x + right
    height = top + down * size[1] + (down - 1) * gap_y + bottom
    figure = Figure(figsize=(width, height), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(left / width, 1 - 0.2 / height, title, fontsize=13, fontweight="bold", color=INK, va="top")
    # parse_math is off because a folder name may contain a $.
    figure.text(left / width, 1 - 0.47 / height, subtitle, fontsize=9, color=FAINT, va="top", parse_math=False)
    spaces = {"wspace": gap_x / size[0], "hspace": gap_y / size[1]}
    edges = {"left": left / width, "right": 1 - right / width, "top": 1 - top / height, "bottom": bottom / height}
    return figure, list(figure.subplots(down, wide, squeeze=False, gridspec_kw=spaces | edges).ravel())


def make_figure(title: str, subtitle: str) -> "tuple[Figure, Axes]":
    figure, (ax,) = make_panels(title, subtitle, 1, 1, (7.0, 3.4))
    return figure, ax


def draw_line(
    ax: "Axes",
    x: Array,
    y: Array,
    *,
    color: str,
    label: str | None = None,
    linestyle: str = "-",
    linewidth: float = 2.0,
    alpha: float | None = None,
    marker: str = "",
    markersize: float | None = None,
) -> None:
    """A curve; a single point is drawn as a dot."""
    ax.plot(
        x,
        y,
        color=color,
        label=label,
        linestyle=linestyle,
        linewidth=linewidth,
        alpha=alpha,
        marker="o" if len(x) == 1 else marker,
        markersize=markersize,
        solid_capstyle="round",
    )


def draw_band(
    ax: "Axes",
    band: Band,
    color: str,
    label: str | None = None,
    linestyle: str = "-",
    bounds: tuple[float, float] = (-float("inf"), float("inf")),  # the band is clipped to these
) -> None:
    low, high = (np.clip(edge, *bounds) for edge in (band.mean - band.half, band.mean + band.half))
    ax.fill_between(band.x, low, high, color=color, alpha=0.18, linewidth=0)
    draw_line(ax, band.x, band.mean, color=color, label=label, linestyle=linestyle)


def finish(ax: "Axes", y_label: str, x_label: str = "environment steps") -> None:
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


def add_legend(ax: "Axes") -> None:
    legend = ax.legend(fontsize=8.5, frameon=True, framealpha=0.85, edgecolor="none", labelcolor=INK)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)  # a faint dot is hard to see in a legend


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


def save_figure(figure: "Figure", path: Path) -> Path:
    with draft_of(path) as draft:
        figure.savefig(draft, format="png")
    return path
