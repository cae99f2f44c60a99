"""Findings of the doctor with evidence, as text or plain data."""

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drl.core.errors import html_picture, html_table, html_text, printable
from drl.core.specs import Array, PlainDict

PROBLEM, ADVICE = "problem", "advice"
BARS = "▁▂▃▄▅▆▇█"
STEPS = "environment steps"
WIDTH, SPARK = 110, 40  # columns of the text, and of a sparkline


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
        told = [
            {"name": each.name, "severity": each.severity, "seen": each.seen, "change": each.change}
            for each in self.findings
        ]
        numbers = {name: value if _is_plain(value) else str(value) for name, value in self.numbers.items()}
        plain: PlainDict = {"subject": self.subject, "problems": self.problems, "findings": told, "numbers": numbers}
        return plain | {"notes": list(self.notes), "pictures": list(self.pictures)}

    def text(self) -> str:
        """Return the text for a terminal."""
        advice = len(self.findings) - self.problems
        counts = [_counted(self.problems, "problem")] if self.problems or not advice else []
        counts += [f"{advice} piece{'s' if advice > 1 else ''} of advice"] if advice else []
        told = [f"{self.subject}: {', '.join(counts) if self.findings else 'nothing to complain about'}"]
        told += _wrapped("", " · ".join(f"{name} {_short(value)}" for name, value in self.numbers.items()))
        for finding in sorted(self.findings, key=lambda each: each.severity != PROBLEM):
            told += ["", f"{finding.severity}: {finding.name}", *_wrapped("  seen    ", finding.seen)]
            if finding.series is not None:
                told.append(f"          {sparkline(finding.series.y)}  {finding.series.label}")
            told += _wrapped("  change  ", finding.change)
        told += ["", *(line for note in self.notes for line in _wrapped("note: ", note))] if self.notes else []
        told += [f"picture: {path}" for path in self.pictures]
        return "\n".join(map(printable, told))  # run files are untrusted


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


def _is_plain(value: float | str) -> bool:
    return isinstance(value, str) or bool(np.isfinite(value))


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _wrapped(head: str, text: str) -> list[str]:
    """Wrap text to `WIDTH` columns, keeping flags with their values."""
    kept = re.sub(r"(--[\w-]+) ", "\\1\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(kept, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
