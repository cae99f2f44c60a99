"""Collected faults of an environment."""

from dataclasses import dataclass, field

from drl.doctor.findings import PROBLEM, Finding


class Broken(Exception):
    """The environment cannot be played any further."""


@dataclass
class Complaints:
    """Faults by name: the first of each kind, and how often it was seen."""

    first: dict[str, tuple[str, str]] = field(default_factory=dict)  # name → (what was seen, what to change)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, seen: str, change: str) -> None:
        self.first.setdefault(name, (seen, change))
        self.counts[name] = self.counts.get(name, 0) + 1

    def findings(self) -> list[Finding]:
        """Return one finding for each kind, with its count."""
        often = {name: f" (and {count - 1:,} more times)" if count > 1 else "" for name, count in self.counts.items()}
        return [Finding(name, PROBLEM, seen + often[name], change) for name, (seen, change) in self.first.items()]
