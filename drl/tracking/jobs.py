"""Progress of a command that runs many jobs: a bar with the time left on a terminal, a line per job elsewhere. For
runs on many nodes, a table stands above the bar.
"""

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TextIO

from drl.core.errors import plural
from drl.tracking.console import Pace, clock

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.progress import Progress, ProgressColumn, TaskID


REFRESH_SECONDS = 0.5  # between two redraws on a terminal
LINE_SECONDS = 60.0  # between two summary lines without a terminal
ORDER = ("running", "waiting")  # order of the rows
MOST_ROWS, OTHER_LINES = 40, 8  # rows of the table; other lines on the terminal


class JobBar:
    """Counts finished jobs. It has no thread; each event redraws it.

    The time left is estimated from the jobs of this process; `done` jobs were finished before.

    >>> with JobBar(quiet=True) as bar:
    ...     bar.begin("ablation", 14, done=12)
    ...     bar.advance("plain, seed 0: 21.00")
    """

    def __init__(self, quiet: bool = False, stream: TextIO | None = None):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

        self.console: Console = Console(file=stream, quiet=quiet, soft_wrap=True, highlight=False)
        self.live: bool = self.console.is_terminal and not quiet
        name, left = TextColumn("{task.description}"), TextColumn("{task.fields[left]}")
        self._bar = self._new_bar(name, BarColumn(), MofNCompleteColumn(), left)
        self._task: TaskID
        self._done = self._total = 0
        self._pace = Pace()

    def _new_bar(self, *columns: "ProgressColumn") -> "Progress":
        from rich.progress import Progress

        return Progress(*columns, console=self.console, auto_refresh=False, disable=not self.live)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """Start counting `total` jobs."""
        self._done, self._total, self._pace = min(done, total), total, Pace(min(done, total))
        self._task = self._bar.add_task(title, total=total, completed=self._done, left="")
        self._bar.refresh()

    def advance(self, text: str, title: str | None = None, show: bool = False, step: int = 1) -> None:
        """Count a finished job. `text` is printed if there is no terminal, with `show` always. `title`: new title."""
        self._done += step
        left = self._pace.left(self._done, self._total)
        words = "" if left is None else f"{clock(left)} left"
        self._bar.update(self._task, completed=self._done, left=words, description=title)
        self._bar.refresh()
        if not self.live:
            self.say(f"{self._done:4d} of {self._total}  {text}" + (f"  ({words})" if words else ""))
        elif show:
            self.say(text)

    def say(self, text: str) -> None:
        """Print, above the bar if there is one."""
        self.console.print(text, markup=False)


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
        steps = f"{self.steps:,}" if self.steps else ""
        score = "" if self.score is None else f"{self.score:.2f}"
        return self.name, self.node, self.status, steps, score, "" if self.left is None else clock(self.left)


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
        self._drawn = self._printed = time.monotonic()

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
        elif not self.live and now - self._printed >= LINE_SECONDS:
            self._printed = now
            self.say(f"{self._done:4d} of {self._total}  {self.summary()}")

    def summary(self) -> str:
        """Summarize all runs in one line."""
        running = [row for row in self.rows.values() if row.status == "running"]
        nodes = len({row.node for row in running})
        parts = [f"{len(running)} running on {plural(nodes, 'node')}"] if running else []
        if waiting := len(self.rows) - len(running):
            parts.append(f"{waiting} waiting")
        return ", ".join([*parts, plural(sum(row.steps for row in running), "step")])

    def _drawing(self, bar: "RenderableType") -> "Group":
        from rich.console import Group
        from rich.table import Table

        drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
        for i, heading in enumerate(("run", "node", "status", "steps", "return", "time left")):
            drawn.add_column(heading, justify="left" if i < 3 else "right", no_wrap=True)
        rows = sorted(self.rows.values(), key=lambda row: ORDER.index(row.status) if row.status in ORDER else -1)
        room = min(max(self.console.height - OTHER_LINES, 1), MOST_ROWS)
        for row in rows[:room]:
            drawn.add_row(*row.cells())
        more = [f"and {len(rows) - room} more: {self.summary()}"] if len(rows) > room else []
        return Group(*([drawn] if rows else []), *more, bar)
