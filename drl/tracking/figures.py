"""The style of all figures: panels, lines, bands, forest plots, axes, legends, files. Files are written atomically.

Figures use matplotlib's Agg canvas directly: no window, no pyplot, no state shared with the user's own figures.
"""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from drl.core.errors import BadInput
from drl.core.safe_files import draft_of
from drl.core.specs import Array, PlainDict
from drl.tracking.curves import Band, Estimate, interval_of, short_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, FAINT, GRID = "#2b2b2b", "#757575", "#e6e6e6"
# Okabe and Ito's colors for the color-blind, without yellow, which is hard to see on white.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK)
Dashes = str | tuple[int, tuple[float, ...]]
LINES: tuple[Dashes, ...] = ("-", (0, (5, 1.5)), (0, (6, 1.5, 1.2, 1.5)), (0, (1.5, 1.2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Suffix → metadata, so that files contain no date.
FORMATS: dict[str, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
CHARACTER = 0.068  # upper bound of a character's width at 9 points, in inches
TICK_STEPS = ((1,), (1, 3), (1, 2, 5), range(1, 10))  # of a decade of a logarithmic axis
MOST_TICKS = 6  # of a logarithmic axis


class Look(NamedTuple):
    """Style of a line. Dashes and marker distinguish lines in grayscale."""

    color: str
    dashes: Dashes = "-"
    marker: str = "o"


def look(number: int) -> Look:
    """Return the style of one line among several; the first 28 differ."""
    return Look(COLORS[number % len(COLORS)], LINES[number % len(LINES)], MARKERS[number % len(MARKERS)])


def make_panels(
    title: str,
    subtitle: str,
    down: int,
    wide: int,
    size: tuple[float, float],
    *,
    titled: bool = False,  # whether the panels have titles
    left: float = 0.9,
    right: float = 0.25,
) -> "tuple[Figure, list[Axes]]":
    """Make `down` × `wide` panels of `size` inches under one title. Margins are fixed: measuring doubles the time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    gap_x, gap_y, top, bottom = 0.8, 0.6, 0.75, 0.52  # inches
    width = left + wide * size[0] + (wide - 1) * gap_x + right
    lines = textwrap.wrap(subtitle, int((width - left - right) / CHARACTER)) or [""]
    top += 0.16 * (len(lines) - 1) + (0.3 if titled else 0.0)
    height = top + down * size[1] + (down - 1) * gap_y + bottom
    figure = Figure(figsize=(width, height), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    plain: PlainDict = {"va": "top", "parse_math": False}  # a folder name may contain a $
    figure.text(left / width, 1 - 0.2 / height, title, fontsize=13, fontweight="bold", color=INK, **plain)
    figure.text(left / width, 1 - 0.47 / height, "\n".join(lines), fontsize=9, color=FAINT, **plain)
    spaces = {"wspace": gap_x / size[0], "hspace": gap_y / size[1]}
    edges = {"left": left / width, "right": 1 - right / width, "top": 1 - top / height, "bottom": bottom / height}
    return figure, list(figure.subplots(down, wide, squeeze=False, gridspec_kw=spaces | edges).ravel())


def make_figure(title: str, subtitle: str) -> "tuple[Figure, Axes]":
    """Make a figure with one panel."""
    figure, (ax,) = make_panels(title, subtitle, 1, 1, (7.0, 3.4))
    return figure, ax


def make_grid(title: str, subtitle: str, count: int, size: tuple[float, float]) -> "tuple[Figure, list[Axes]]":
    """Make `count` panels in at most three columns; several have room for titles."""
    wide = _columns(count)
    figure, axes = make_panels(title, subtitle, -(-count // wide), wide, size, titled=count > 1)
    for ax in axes[count:]:
        ax.set_visible(False)
    return figure, axes[:count]


def finish_grid(axes: "Sequence[Axes]", names: Sequence[str], smoothings: Sequence[str]) -> None:
    """Finish the panels of a grid, one per metric: its name is the title, or part of the axis if there is one panel."""
    for i, (ax, name, smoothing) in enumerate(zip(axes, names, smoothings, strict=True)):
        if len(axes) > 1:
            panel_title(ax, name)
        lowest = i >= len(axes) - _columns(len(axes))  # of its column
        text = smoothing if len(axes) > 1 else axis_words(name, smoothing)
        finish(ax, text, x_label="environment steps" if lowest else "")


def _columns(count: int) -> int:
    return 2 if count in (2, 4) else min(count, 3)


def axis_words(name: str, smoothing: str) -> str:
    """Return the title of an axis, in one or two lines."""
    return f"{name}\n{smoothing}" if smoothing else name


def draw_line(
    ax: "Axes",
    x: Array,
    y: Array,
    look: Look,
    *,
    label: str | None = None,
    width: float = 2.0,
    alpha: float | None = None,
    marks: int = 0,  # markers along the line, at most one per point
) -> None:
    """Draw a curve; a single point is drawn as a dot."""
    shift = MARKERS.index(look.marker) / len(MARKERS) if look.marker in MARKERS and len(x) > 2 * marks else 0.0
    places = (np.arange(marks) + shift) / max(marks - 1 + shift, 1) * (len(x) - 1)  # shifted against other lines
    ax.plot(
        x,
        y,
        color=look.color,
        linestyle=look.dashes,
        marker=look.marker if marks or len(x) == 1 else "",
        markevery=sorted(set(places.round().astype(int).tolist())) if marks and len(x) > marks else None,
        markersize=5,
        label=label,
        linewidth=width,
        alpha=alpha,
        solid_capstyle="round",
    )


def draw_band(ax: "Axes", band: Band, look: Look, *, label: str | None = None, marks: int = 0) -> None:
    """Draw a line with an interval around it."""
    ax.fill_between(band.x, band.low, band.high, color=look.color, alpha=0.18, linewidth=0)
    draw_line(ax, band.x, band.center, look, label=label, marks=marks)


def draw_reference(ax: "Axes", x: float) -> None:
    """Draw a dashed vertical line."""
    ax.axvline(x, color=FAINT, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)


def draw_interval(ax: "Axes", row: float, estimate: Estimate, look: Look, size: float = 40) -> None:
    """Draw a number and its interval in a row; `size` is the area of its marker."""
    value, low, high = estimate
    if low is not None and high is not None:
        ax.plot([low, high], [row, row], color=look.color, linewidth=2.2, solid_capstyle="butt", zorder=3)
    ax.scatter([value], [row], s=size, color=look.color, marker=look.marker, linewidths=0, zorder=4)


class Score(NamedTuple):
    """The scores of the seeds of one variant."""

    label: str
    seeds: Array
    look: Look


def draw_forest(ax: "Axes", scores: Sequence[Score], reference: float, x_label: str) -> None:
    """Draw a row per score from the top: its seeds, its mean and interval, and both as numbers on the right. A vertical
    line is at `reference`."""
    draw_reference(ax, reference)
    wide = max(len(score.label) for score in scores)
    largest = max(float(np.abs(score.seeds).max()) for score in scores)
    digits = 0 if largest >= 1000 else 1 if largest >= 10 else 3
    for row, (label, seeds, look) in enumerate(scores):
        mean, low, high = estimate = interval_of(seeds)
        ax.scatter(seeds, np.full(len(seeds), row), s=9, color=look.color, alpha=0.45, linewidths=0, zorder=2)
        draw_interval(ax, row, estimate, look, size=50)
        numbers = f"{mean:,.{digits}f}" + ("" if low is None else f"  [{low:,.{digits}f}, {high:,.{digits}f}]")
        for text, offset in ((label, 0.1), (numbers.replace("-", "−"), 0.1 + (wide + 2) * CHARACTER)):
            ax.annotate(
                text,
                (1.0, row),
                xycoords=("axes fraction", "data"),
                xytext=(72 * offset, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
                color=INK,
                parse_math=False,
            )
    finish(ax, "", x_label=x_label)
    ax.set_yticks([])
    ax.set_ylim(len(scores) - 0.4, -0.6)


def text_width(scores: Sequence[Score]) -> float:
    """Return the width in inches of the rows' text to the right of the panel."""
    return (max(len(score.label) for score in scores) + 26) * CHARACTER


def finish(ax: "Axes", y_label: str, x_label: str = "environment steps", fractions: bool = False) -> None:
    """Add axis titles, ticks and grid. `fractions` are allowed as ticks of x."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.set_xlabel(x_label, color=INK, fontsize=9.5)
    ax.set_ylabel(y_label, color=INK, fontsize=9.5)
    steps = [1, 2, 2.5, 5, 10]
    ax.xaxis.set_major_locator(MaxNLocator(5 if fractions else 6, integer=not fractions, steps=steps))
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=steps))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value, letters_from=1e5)))
    ax.grid(True, color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(colors=INK, labelsize=8.5, length=0)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color("#bdbdbd")


def name_ticks(axis: "Axis", names: Sequence[str]) -> None:
    """Label the ticks 0, 1, 2, … with names."""
    axis.set_ticks(list(range(len(names))), list(names))
    for text in axis.get_ticklabels():
        text.set_parse_math(False)


def panel_title(ax: "Axes", text: str) -> None:
    """Set the title of one of several panels."""
    ax.set_title(text, fontsize=10, color=INK, loc="left", parse_math=False)


def add_legend(figure: "Figure", axes: "Sequence[Axes]") -> None:
    """Add one legend for all axes below them, in as many columns as fit. The figure grows by its height."""
    from matplotlib.collections import PathCollection

    named = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if not named:
        return
    width, height = figure.get_size_inches()
    left, right = axes[0].get_position().x0, max(ax.get_position().x1 for ax in axes)
    room = (max(right, left + 0.4) - left) * width
    labels = [textwrap.fill(label, int(room / CHARACTER) - 6) for label in named]
    for columns in range(min(len(named), 4), 0, -1):
        legend = figure.legend(
            list(named.values()),
            labels,
            ncols=columns,
            loc="lower left",
            borderaxespad=0,
            borderpad=0,
            fontsize=8.5,
            frameon=False,
            labelcolor=INK,
            handlelength=4,  # shows the dashes
        )
        extent = legend.get_window_extent()
        if extent.width / figure.dpi <= room or columns == 1:
            break
        legend.remove()
    for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
        text.set_parse_math(False)
        if isinstance(handle, PathCollection):  # small faint dots are hard to see in a legend
            handle.set(alpha=1.0, sizes=[25.0])
    grown = extent.height / figure.dpi + 0.15
    legend.set_bbox_to_anchor((left, 0.15 / (height + grown)))
    # Make room at the bottom; everything else keeps its size and its distance from the top.
    figure.set_size_inches(width, height + grown)
    scale = height / (height + grown)
    for ax in figure.axes:
        place = ax.get_position()
        ax.set_position((place.x0, 1 - (1 - place.y0) * scale, place.width, place.height * scale))
    for title in figure.texts:
        title.set_y(1 - (1 - title.get_position()[1]) * scale)


def make_log(ax: "Axes", low: float, high: float) -> None:
    """Make the x axis logarithmic, from `low` to `high`."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator(log_ticks(low, high)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    edge = (high / low) ** 0.04 if high > low else 1.1
    ax.set_xlim(low / edge, high * edge)


def log_ticks(low: float, high: float) -> list[float]:
    """Return up to six round numbers from `low` to `high`.

    >>> log_ticks(1e-4, 1e-2), log_ticks(1e-4, 2e-3), log_ticks(16, 100)
    ([0.0001, 0.0003, 0.001, 0.003, 0.01], [0.0001, 0.0002, 0.0005, 0.001, 0.002], [20.0, 50.0, 100.0])
    >>> log_ticks(1e-12, 1.0)
    [1e-12, 1e-09, 1e-06, 0.001, 1.0]
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    inside = []
    for steps in TICK_STEPS:
        every = [float(f"{step}e{decade}") for decade in decades for step in steps]
        inside.append([tick for tick in every if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)])
    few = [ticks for ticks in inside if len(ticks) <= MOST_TICKS]
    return max(few, key=len) if few else inside[0][:: -(-len(inside[0]) // MOST_TICKS)]


def tick_text(value: float) -> str:
    """
    >>> [tick_text(value) for value in (3e-4, 1e-3, 0.01, 0.5, 1.0, 500.0, 20_000.0, 1e6)]
    ['3e-4', '1e-3', '1e-2', '0.5', '1', '500', '2e4', '1e6']
    """
    if 0.1 <= value < 10_000:
        return f"{value:g}"
    digits, power = f"{value:.3e}".split("e")
    return f"{float(digits):g}e{int(power)}"


def picture_format(path: Path) -> str:
    """Return the picture format of a path's suffix."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise BadInput(f"{path} has the suffix {path.suffix!r}; expected a picture with one of {known}")
    return kind


def save_figure(figure: "Figure", path: Path) -> Path:
    """Write a picture in the format of its suffix. Equal figures give equal bytes; text in PDF and SVG stays text."""
    import matplotlib

    kind = picture_format(path)
    plain = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "drl"}
    with matplotlib.rc_context(plain), draft_of(path) as draft:  # type: ignore[arg-type]
        figure.savefig(draft, format=kind, metadata=FORMATS[kind])
    return path
