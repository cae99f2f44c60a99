"""Progress of a command that runs many jobs: a bar with the time left on a terminal, a line per job elsewhere."""

from typing import TYPE_CHECKING, Self, TextIO

from drl.tracking.log_blocks import clock
from drl.tracking.pace import Pace

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID


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
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._bar = self._new_bar(*columns)
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
