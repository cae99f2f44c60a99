"""Figure of the evidence: a small curve for each finding."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from drl.core.specs import Array
from drl.doctor.findings import STEPS, Finding
from drl.tracking.curves import thinned
from drl.tracking.figures import draw_line, finish, look, make_panels, panel_title, save_figure

POINTS = 500  # per curve


def draw_evidence(findings: Sequence[Finding], folder: Path, path: Path) -> Path:
    """Draw a panel for every finding with numbers over steps; the limit is dashed."""
    shown = [(finding.name, finding.series) for finding in findings if finding.series is not None]
    wide = math.ceil(math.sqrt(len(shown)))
    down = -(-len(shown) // wide)
    title = f"{folder.resolve().parent.name} / {folder.resolve().name}"
    about = "evidence of drl doctor; dashed: a limit that a healthy run does not cross"
    figure, axes = make_panels(title, about, down, wide, (3.0, 1.8), titled=True)
    for ax, (name, series) in zip(axes, shown, strict=False):
        kept = thinned(len(series.y), POINTS)
        if series.over == STEPS:
            draw_line(ax, series.x[kept], series.y[kept], look(0))
        else:
            ax.bar(series.x, series.y, width=0.8 * _gap(series.x), color=look(0).color)
        if series.limit is not None and np.isfinite(series.limit):
            ax.axhline(series.limit, color=look(1).color, linestyle="--", linewidth=1.2)
        finish(ax, series.label, series.over)
        panel_title(ax, name)
    for ax in axes[len(shown) :]:
        ax.set_visible(False)
    path.parent.mkdir(exist_ok=True)
    return save_figure(figure, path)


def _gap(x: Array) -> float:
    """Distance between neighboring bars."""
    return float(x[1] - x[0]) if len(x) > 1 else 1.0
