"""Pictures of a search: scores by trial, importances, scores by setting."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drl.tracking import figures
from drl.tracking.figures import make_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from optuna import Study
    from optuna.trial import FrozenTrial


def draw_study(study: "Study", folder: Path) -> list[Path]:
    """`history.png`, `importances.png` and `slices.png`; a plot without data is skipped."""
    complete = [t for t in study.get_trials(deepcopy=False) if t.value is not None and t.state.name == "COMPLETE"]
    if not complete:
        return []
    pictures = {
        "history": _history(study, complete),
        "importances": _importances(study, complete),
        "slices": _slices(study, complete),
    }
    return [
        figures.save_figure(figure, folder / f"{name}.png") for name, figure in pictures.items() if figure is not None
    ]


def _history(study: "Study", complete: "list[FrozenTrial]") -> "Figure":
    figure, ax = figures.make_figure("Score by trial", study.study_name)
    numbers, scores = np.array([t.number for t in complete]), np.array([t.value for t in complete])
    ax.scatter(numbers, scores, s=18, alpha=0.6, color=figures.COLORS[0], linewidths=0, label="complete")
    pruned = [(t.number, v) for t in study.get_trials(deepcopy=False) if (v := _last_score(t)) is not None]
    if pruned:
        x, y = zip(*pruned, strict=True)
        ax.scatter(x, y, s=18, marker="x", color=figures.FAINT, linewidths=1, label="pruned, last score")
    ax.step(numbers, np.maximum.accumulate(scores), where="post", color=figures.COLORS[1], label="best so far")
    figures.finish(ax, "mean return", x_label="trial")
    figures.add_legend(figure, [ax])
    return figure


def _last_score(trial: "FrozenTrial") -> float | None:
    """The last score of a pruned trial; None for other trials."""
    values = trial.intermediate_values
    return float(values[max(values)]) if trial.state.name == "PRUNED" and values else None


def _importances(study: "Study", complete: "list[FrozenTrial]") -> "Figure | None":
    """PED-ANOVA: how strongly a setting separates the best tenth of the trials from the rest."""
    if len(complete) < 4 or len({t.value for t in complete}) < 2:
        return None
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental in Optuna 4
        try:
            shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
        except (RuntimeError, ValueError):  # too few distinct trials
            return None
    if not shares or not np.isfinite(list(shares.values())).all():
        return None
    names, values = list(shares)[::-1], np.array(list(shares.values()))[::-1]
    size, left = (6.0, 0.3 * len(names) + 0.3), 0.3 + max(map(len, names)) * figures.CHARACTER
    figure, (ax,) = figures.make_panels("Importance", f"{study.study_name} · PED-ANOVA", 1, 1, size, left=left)
    ax.barh(range(len(names)), values, color=figures.COLORS[0], height=0.6)
    for row, value in enumerate(values):
        ax.text(value + 0.01 * values.max(), row, f"{value:.2f}", va="center", fontsize=8.5, color=figures.INK)
    figures.finish(ax, "", x_label="share")
    figures.name_ticks(ax.yaxis, names)
    ax.grid(False, axis="y")
    ax.set_xlim(0, 1.1 * max(values.max(), 1e-9))
    return figure


def _slices(study: "Study", complete: "list[FrozenTrial]") -> "Figure":
    """Score against each setting; later trials are darker."""
    from matplotlib.colors import to_rgba

    names = list(dict.fromkeys(name for t in complete for name in t.params))
    wide = min(len(names), 3)
    caption = f"{study.study_name} · later trials are darker"
    down = -(-len(names) // wide)
    figure, axes = figures.make_panels("Score by setting", caption, down, wide, (3.7, 1.9), titled=True)
    for number, (ax, name) in enumerate(zip(axes, names, strict=False)):
        there = [t for t in complete if name in t.params]
        values, scores = [t.params[name] for t in there], np.array([t.value for t in there])
        distribution: Any = there[0].distributions[name]
        options = getattr(distribution, "choices", None)
        x = values if options is None else [options.index(value) for value in values]
        shades = [to_rgba(figures.COLORS[0], alpha) for alpha in np.linspace(0.25, 1.0, len(there))]
        ax.scatter(x, scores, s=16, color=shades, linewidths=0)
        figures.finish(ax, "mean return" if number % wide == 0 else "", x_label="")
        figures.panel_title(ax, name)
        if options is not None:
            figures.name_ticks(ax.xaxis, [str(option) for option in options])
            ax.set_xlim(-0.5, len(options) - 0.5)
        elif getattr(distribution, "log", False):
            make_log(ax, distribution.low, distribution.high)
    for ax in axes[len(names) :]:
        ax.set_visible(False)
    return figure
