"""The evidence of findings as one picture of small curves."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from drl.doctor.findings import Finding
from drl.tracking.curves import thinned
from drl.tracking.figures import draw_line, finish, look, make_panels, panel_title, save_figure

WIDE, POINTS = 3, 500  # panels side by side; points of a curve


def draw_evidence(findings: Sequence[Finding], folder: Path, path: Path) -> Path:
    """A panel for every finding with numbers over steps; what they should not cross is dashed."""
    shown = [(finding.name, finding.series) for finding in findings if finding.series is not None]
    wide = min(WIDE, len(shown))
    down = -(-len(shown) // wide)
    title = f"{folder.resolve().parent.name} / {folder.resolve().name}"
    figure, axes = make_panels(title, "evidence of drl doctor", down, wide, (3.0, 1.8), titled=True)
    for number, (ax, (name, series)) in enumerate(zip(axes, shown, strict=False)):
        kept = thinned(len(series.y), POINTS)
        draw_line(ax, series.x[kept], series.y[kept], look(0))
        if series.limit is not None and np.isfinite(series.limit):
            ax.axhline(series.limit, color=look(1).color, linestyle="--", linewidth=1.2)
        finish(ax, series.label, "environment steps" if number >= len(shown) - wide else "")
        panel_title(ax, name)
    for ax in axes[len(shown) :]:
        ax.set_visible(False)
    path.parent.mkdir(exist_ok=True)
    return save_figure(figure, path)
