"""Findings of the doctor with evidence, as text, plain data or a figure."""

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drl.core.errors import html_picture, html_table, html_text, plural, printable
from drl.core.specs import Array, PlainDict
from drl.tracking.curves import thinned
from drl.tracking.figures import draw_line, finish, look, make_panels, panel_title, save_figure

PROBLEM, ADVICE = "problem", "advice"
BARS = "▁▂▃▄▅▆▇█"
STEPS = "environment steps"
WIDTH, SPARK = 110, 40  # columns of the text, and of a sparkline
POINTS = 500  # of a drawn curve


class Series(NamedTuple):
    """Numbers over environment steps or something else, the evidence of a finding."""

    label: str
    x: Array
    y: Array
    limit: float | None = None  # limit that they should not cross
    over: str = STEPS


@dataclass(frozen=True)
class Finding:
    """One likely problem."""

    name: str  # such as nan-reward
    severity: str  # problem · advice
    seen: str  # the evidence, with numbers
    change: str  # the advice, with a flag if there is one
    series: Series | None = field(default=None, repr=False)


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """All findings, and the data they are based on."""

    subject: str  # an environment or the folder of a run
    numbers: dict[str, float | str]  # general statistics
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be examined or drawn, and why
    pictures: tuple[str, ...] = field(default=(), compare=False)  # files

    @property
    def problems(self) -> int:
        """Number of findings that are problems."""
        return sum(finding.severity == PROBLEM for finding in self.findings)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"Diagnosis(subject={self.subject!r}, findings={self.names()})"

    def _repr_html_(self) -> str:
        rows = [(each.severity, each.name, each.seen, each.change) for each in self.findings]
        numbers = html_text(" · ".join(f"{name} {_short(value)}" for name, value in self.numbers.items()))
        table = html_table(("", "name", "seen", "change"), rows, self.subject) if rows else ""
        notes = "".join(html_text(f"note: {note}") for note in self.notes)
        pictures = "".join(html_picture(Path(path), "evidence") for path in self.pictures)
        return (table or html_text(f"{self.subject}: nothing to complain about")) + numbers + notes + pictures

    def names(self) -> list[str]:
        """Return the names of all findings in order."""
        return [finding.name for finding in self.findings]

    def plain(self) -> PlainDict:
        """Return plain data for JSON; numbers that are not finite become text."""
        findings = [{name: text for name, text in vars(each).items() if name != "series"} for each in self.findings]
        numbers = {
            name: value if isinstance(value, str) or np.isfinite(value) else str(value)
            for name, value in self.numbers.items()
        }
        plain: PlainDict = {"subject": self.subject, "problems": self.problems, "findings": findings}
        return plain | {"numbers": numbers, "notes": list(self.notes), "pictures": list(self.pictures)}

    def text(self) -> str:
        """Return the text for a terminal."""
        advice = len(self.findings) - self.problems
        counts = [plural(self.problems, "problem")] if self.problems or not advice else []
        counts += [plural(advice, "piece of advice", "pieces of advice")] if advice else []
        lines = [f"{self.subject}: {', '.join(counts) if self.findings else 'nothing to complain about'}"]
        lines += _wrapped("", " · ".join(f"{name} {_short(value)}" for name, value in self.numbers.items()))
        for finding in sorted(self.findings, key=lambda each: each.severity != PROBLEM):
            lines += ["", f"{finding.severity}: {finding.name}", *_wrapped("  seen    ", finding.seen)]
            if finding.series is not None:
                lines.append(f"          {sparkline(finding.series.y)}  {finding.series.label}")
            lines += _wrapped("  change  ", finding.change)
        lines += ["", *(line for note in self.notes for line in _wrapped("note: ", note))] if self.notes else []
        lines += [f"picture: {path}" for path in self.pictures]
        return "\n".join(map(printable, lines))  # run files are untrusted


def sparkline(values: Array, width: int = SPARK) -> str:
    """Draw numbers as a line of bars; numbers that are not finite become gaps.

    >>> sparkline(np.array([0.0, 1.0, np.nan, 7.0]))
    '▁▂ █'
    """
    small = np.asarray(values, float) / 2**20  # exact, and sums of the largest numbers do not overflow
    parts = np.array_split(small, min(len(small), width) or 1)
    means = np.array([part[np.isfinite(part)].mean() if np.isfinite(part).any() else np.nan for part in parts])
    finite = means[np.isfinite(means)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    span = high - low or 1.0
    return "".join(BARS[round((mean - low) / span * 7)] if np.isfinite(mean) else " " for mean in means)


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _wrapped(head: str, text: str) -> list[str]:
    """Wrap text to `WIDTH` columns, without a break between a flag and its value."""
    joined = re.sub(r"(--[\w-]+) ", "\\1\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(joined, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def draw_evidence(findings: Sequence[Finding], folder: Path, path: Path) -> Path:
    """Draw a panel for every finding with numbers over steps; the limit is dashed."""
    shown = [(finding.name, finding.series) for finding in findings if finding.series is not None]
    wide = math.ceil(math.sqrt(len(shown)))
    down = -(-len(shown) // wide)
    title = f"{folder.resolve().parent.name} / {folder.resolve().name}"
    about = "evidence of drl doctor; dashed: a limit that a healthy run does not cross"
    figure, axes = make_panels(title, about, down, wide, (3.0, 1.8), titled=True)
    for ax, (name, series) in zip(axes, shown, strict=False):
        if series.over == STEPS:
            points = thinned(len(series.y), POINTS)
            draw_line(ax, series.x[points], series.y[points], look(0))
        else:
            gap = float(series.x[1] - series.x[0]) if len(series.x) > 1 else 1.0
            ax.bar(series.x, series.y, width=0.8 * gap, color=look(0).color)
        if series.limit is not None and np.isfinite(series.limit):
            ax.axhline(series.limit, color=look(1).color, linestyle="--", linewidth=1.2)
        finish(ax, series.label, series.over)
        panel_title(ax, name)
    for ax in axes[len(shown) :]:
        ax.set_visible(False)
    path.parent.mkdir(exist_ok=True)
    return save_figure(figure, path)
