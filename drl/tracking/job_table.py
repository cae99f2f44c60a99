"""Progress of runs on many nodes: a table above the bar on a terminal, lines elsewhere."""

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TextIO

from drl.core.errors import plural
from drl.tracking.job_bar import JobBar
from drl.tracking.log_blocks import clock
from drl.tracking.pace import Pace

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.progress import Progress, ProgressColumn

REFRESH_SECONDS = 0.5  # between two redraws on a terminal
LINE_SECONDS = 60.0  # between two summary lines without a terminal
ORDER = ("running", "waiting")  # order of the rows
MOST_ROWS, OTHER_LINES = 40, 8  # rows of the table; other lines on the terminal


@dataclass(frozen=True)
class JobRow:
    """Status of one run."""

    name: str
    node: str = ""
    status: str = "waiting"
    steps: int = 0
    score: float | None = None  # mean return of the last episodes
    share: float = 0.0  # of the budget
    left: float | None = None  # seconds

    def cells(self) -> tuple[str, ...]:
        """Return the texts of the columns."""
        score = "" if self.score is None else f"{self.score:.2f}"
        left = "" if self.left is None else clock(self.left)
        return (self.name, self.node, self.status, f"{self.steps:,}" if self.steps else "", score, left)


class JobTable(JobBar):
    """A table with a row per job that is running or waiting; `note` changes a row.

    >>> table = JobTable()
    >>> table.begin("2 seeds", 2)
    >>> table.note("seed 0", node="one", status="running", steps=1000, score=21.0, share=0.5)
    >>> table.note("seed 1")
    >>> table.summary()
    '1 running on 1 node, 1 waiting, 1,000 steps'
    """

    def __init__(self, quiet: bool = False, stream: TextIO | None = None):
        self.rows: dict[str, JobRow] = {}  # set before the bar, which draws them
        super().__init__(quiet, stream)
        self._paces: dict[str, Pace] = {}
        self._drawn = self._told = time.monotonic()

    def _new_bar(self, *columns: "ProgressColumn") -> "Progress":
        from rich.progress import Progress

        table = self

        class WithTable(Progress):
            def get_renderable(self) -> "Group":
                return table._drawing(super().get_renderable())

        return WithTable(*columns, console=self.console, auto_refresh=False, disable=not self.live)

    def note(self, name: str, **changes: object) -> None:
        """Update a row."""
        row = replace(self.rows.get(name, JobRow(name)), **changes)  # type: ignore[arg-type]
        if row.status != "running":
            self._paces.pop(name, None)
            row = replace(row, left=None)
        elif row.share > 0:
            pace = self._paces.setdefault(name, Pace(row.share))
            row = replace(row, left=pace.left(row.share, of=1.0))
        self.rows[name] = row

    def remove(self, name: str) -> None:
        """Remove a row."""
        self.rows.pop(name, None)
        self._paces.pop(name, None)

    def tick(self) -> None:
        """Redraw after changes, at limited frequency."""
        now = time.monotonic()
        if self.live and now - self._drawn >= REFRESH_SECONDS:
            self._drawn = now
            self._bar.refresh()
        elif not self.live and now - self._told >= LINE_SECONDS:
            self._told = now
            self.say(f"{self._done:4d} of {self._total}  {self.summary()}")

    def summary(self) -> str:
        """Summarize all runs in one line."""
        running = [row for row in self.rows.values() if row.status == "running"]
        nodes = len({row.node for row in running})
        parts = [f"{len(running)} running on {nodes} node{'s' * (nodes != 1)}"] if running else []
        if waiting := len(self.rows) - len(running):
            parts.append(f"{waiting} waiting")
        return ", ".join([*parts, plural(sum(row.steps for row in running), "step")])

    def _drawing(self, bar: "RenderableType") -> "Group":
        from rich.console import Group
        from rich.table import Table

        drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
        for heading in ("run", "node", "status", "steps", "return", "time left"):
            drawn.add_column(heading, justify="left" if heading in ("run", "node", "status") else "right", no_wrap=True)
        rows = sorted(self.rows.values(), key=lambda row: ORDER.index(row.status) if row.status in ORDER else -1)
        room = min(max(self.console.height - OTHER_LINES, 1), MOST_ROWS)
        for row in rows[:room]:
            drawn.add_row(*row.cells())
        more = [f"and {len(rows) - room} more: {self.summary()}"] if len(rows) > room else []
        return Group(*([drawn] if rows else []), *more, bar)
