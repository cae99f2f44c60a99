"""Forest plots: one row per final score, with its interval."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from drl.core.specs import Array
from drl.tracking.curves import LEAST, bootstrap
from drl.tracking.figures import CHARACTER, FAINT, INK, Look, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Score(NamedTuple):
    """The scores of the seeds of one variant."""

    label: str
    seeds: Array
    look: Look


class Interval(NamedTuple):
    """A mean and the ends of its 95 % interval."""

    mean: float
    low: float | None  # None with fewer than three seeds
    high: float | None


def interval_of(seeds: Array) -> Interval:
    """Compute the percentile bootstrap interval over seeds.

    >>> interval_of(np.array([4.0, 4.0, 4.0])), interval_of(np.array([4.0, 5.0]))
    (Interval(mean=4.0, low=4.0, high=4.0), Interval(mean=4.5, low=None, high=None))
    """
    low, high = map(float, bootstrap(seeds)) if len(seeds) >= LEAST else (None, None)
    return Interval(float(seeds.mean()), low, high)


def text_width(scores: Sequence[Score]) -> float:
    """Return the width in inches of the rows' text to the right of the panel."""
    return (max(len(score.label) for score in scores) + 26) * CHARACTER


def draw_forest(ax: "Axes", scores: Sequence[Score], reference: float, x_label: str) -> None:
    """Draw a row per score from the top: its seeds, its mean and interval, and both as numbers on the right.

    A vertical line is drawn at `reference`.
    """
    ax.axvline(reference, color=FAINT, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
    wide = max(len(score.label) for score in scores)
    largest = max(float(np.abs(score.seeds).max()) for score in scores)
    digits = 0 if largest >= 1000 else 1 if largest >= 10 else 3
    for row, score in enumerate(scores):
        mean, low, high = interval_of(score.seeds)
        color = score.look.color
        ax.scatter(score.seeds, np.full(len(score.seeds), row), s=9, color=color, alpha=0.45, linewidths=0, zorder=2)
        numbers = f"{mean:,.{digits}f}"
        if low is not None and high is not None:
            ax.plot([low, high], [row, row], color=color, linewidth=2.2, solid_capstyle="butt", zorder=3)
            numbers += f"  [{low:,.{digits}f}, {high:,.{digits}f}]"
        ax.scatter([mean], [row], s=50, color=color, marker=score.look.marker, linewidths=0, zorder=4)
        for text, offset in ((score.label, 0.1), (numbers.replace("-", "−"), 0.1 + (wide + 2) * CHARACTER)):
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
