"""The picture of an ablation: learning curves beside a forest plot of the final scores."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from drl.tracking.curves import LEAST
from drl.tracking.figures import (
    INK,
    Look,
    Score,
    draw_forest,
    finish,
    look,
    make_panels,
    panel_title,
    save_figure,
    text_width,
)
from drl.tracking.plots import draw_curves
from drl.tracking.run_curves import RETURN, axis_words, curves_of, history_of

FULL, PLAIN = Look(INK, "-", "*"), Look(INK, "-", "p")


def draw_ablation(
    runs: Mapping[str, Sequence[Path]], scores: Mapping[str, Sequence[float]], switches: Sequence[str], out: Path
) -> Path:
    """`runs` and `scores` by variant: full, full - SWITCH, plain, plain + SWITCH. A switch has one color everywhere."""
    looks = {"full": FULL, "plain": PLAIN}
    for i, name in enumerate(switches):
        looks |= {f"full - {name}": look(i), f"plain + {name}": look(i)}
    halves = {
        "full recipe, and without one part": ["full", *(f"full - {name}" for name in switches)],
        "plain algorithm, and with one part": ["plain", *(f"plain + {name}" for name in switches)],
    }
    order = [name for names in halves.values() for name in names]
    seeds = max(len(values) for values in scores.values())
    band = ", 95 % intervals by percentile bootstrap over seeds" if seeds >= LEAST else ""
    rows = [Score(name, np.array(scores[name], float), looks[name]) for name in order]
    caption = f"means over {seeds} seed{'' if seeds == 1 else 's'}{band}; the rows on the right name the curves"
    height = max(3.2, 0.27 * len(rows))
    figure, axes = make_panels("Ablation", caption, 1, 3, (4.0, height), titled=True, right=0.3 + text_width(rows))
    curves = curves_of({name: [history_of(run) for run in runs[name]] for name in order}, RETURN)
    drawn = [
        curves._replace(lines={name: curves.lines[name] for name in names if name in curves.lines})
        for names in halves.values()
    ]
    for ax, title, half in zip(axes, halves, drawn, strict=False):
        draw_curves(ax, half, looks, "mean", thin=False)
        panel_title(ax, title)
        finish(ax, axis_words(curves.name, curves.smoothing))
    bounds = [ax.get_ylim() for ax in axes[:2]]
    for ax in axes[:2]:  # one scale, to compare them
        ax.set_ylim(min(low for low, _ in bounds), max(high for _, high in bounds))
    draw_forest(axes[2], rows, float(np.mean(scores["full"])), "return of the final agent")
    panel_title(axes[2], "final scores; the dashed line is the full recipe")
    return save_figure(figure, out)
