"""Figure of a comparison: aggregates with intervals, performance profiles, probabilities of improvement."""

from pathlib import Path
from typing import TYPE_CHECKING

from drl.analysis.comparison import Comparison
from drl.analysis.resampling import Estimate
from drl.core.errors import plural
from drl.tracking.curves import Band
from drl.tracking.figures import (
    CHARACTER,
    FAINT,
    INK,
    Look,
    add_legend,
    draw_band,
    draw_line,
    finish,
    look,
    make_panels,
    name_ticks,
    panel_title,
    save_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW = 0.3  # inches


def draw_comparison(result: Comparison, out: Path) -> Path:
    """Draw three panels, or two if there is only one algorithm."""
    labels = list(result.contestants)
    looks = {label: look(i) for i, label in enumerate(labels)}
    raw = not result.normalization.low
    unit = "return" if raw else "normalized score"
    runs = {len(each.scores) for each in result.contestants.values()}
    counts = plural(min(runs), "seed") if len(runs) == 1 else f"{min(runs)} to {plural(max(runs), 'seed')}"
    envs = result.envs[0] if len(result.envs) == 1 else f"{len(result.envs)} environments"
    caption = (
        f"{counts} per environment; score: {result.score_is}; normalization: {result.normalization.words}; "
        "95 % intervals by stratified bootstrap"
    )
    rows = max(len(labels) * len(result.aggregates[labels[0]]), len(result.pairs))
    wide = 3 if result.pairs else 2
    names = [f"{pair.first} over {pair.second}" for pair in result.pairs]
    longest = max([len(name) for name in result.aggregates[labels[0]]], default=0)
    right = 0.3 + max([len(name) for name in names], default=0) * CHARACTER
    figure, axes = make_panels(
        f"{' and '.join(labels) if len(labels) < 4 else f'{len(labels)} algorithms'} on {envs}",
        caption,
        1,
        wide,
        (3.6, max(2.6, ROW * rows)),
        titled=True,
        left=0.4 + longest * CHARACTER,
        right=right,
    )
    _draw_aggregates(axes[0], result, looks, unit)
    for label, profile in result.profiles.items():
        if profile.low is None or profile.high is None:
            draw_line(axes[1], result.thresholds, profile.share, looks[label], label=label)
        else:
            band = Band(result.thresholds, profile.share, profile.low, profile.high)
            draw_band(axes[1], band, looks[label], label=label, marks=6)
    finish(axes[1], "share of runs above it", x_label=unit)
    if not raw:
        _plain_ticks(axes[1])
    axes[1].set_ylim(-0.03, 1.03)
    panel_title(axes[1], "performance profile")
    if result.pairs:
        _draw_pairs(axes[2], [pair.probability for pair in result.pairs], names)
    add_legend(figure, axes)
    return save_figure(figure, out)


def _draw_aggregates(ax: "Axes", result: Comparison, looks: dict[str, Look], unit: str) -> None:
    names = list(result.aggregates[next(iter(looks))])
    step = 0.7 / len(looks)
    for row, name in enumerate(names):
        for i, label in enumerate(looks):
            _draw_row(ax, row + (i - (len(looks) - 1) / 2) * step, result.aggregates[label][name], looks[label])
    finish(ax, "", x_label=unit)
    if unit != "return":
        _plain_ticks(ax)
    name_ticks(ax.yaxis, names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    panel_title(ax, "aggregates")


def _draw_pairs(ax: "Axes", probabilities: list[Estimate], names: list[str]) -> None:
    ax.axvline(0.5, color=FAINT, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
    for row, probability in enumerate(probabilities):
        _draw_row(ax, row, probability, Look(INK))
    finish(ax, "", x_label="probability that a run scores higher")
    _plain_ticks(ax)
    ax.set_xlim(-0.03, 1.03)
    name_ticks(ax.yaxis, names)
    ax.yaxis.tick_right()
    ax.tick_params(length=0)
    ax.set_ylim(len(names) - 0.5, -0.5)
    panel_title(ax, "probability of improvement")


def _draw_row(ax: "Axes", row: float, estimate: Estimate, look: Look) -> None:
    if estimate.low is not None and estimate.high is not None:
        ends = [estimate.low, estimate.high]
        ax.plot(ends, [row, row], color=look.color, linewidth=2.2, solid_capstyle="butt", zorder=3)
    ax.scatter([estimate.value], [row], s=40, color=look.color, marker=look.marker, linewidths=0, zorder=4)


def _plain_ticks(ax: "Axes") -> None:
    """Allow fractions as ticks of x; `finish` allows only whole numbers."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
