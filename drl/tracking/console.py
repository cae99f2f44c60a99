"""Console output of training.

A terminal shows a live panel with a progress bar, in compact form if the terminal is small. A file or pipe gets a
throttled line per log with the share of the budget and the time left, and the blocks of the last log. The blocks are
the same for every algorithm; fields that do not apply and blocks without fields are left out.
"""

import atexit
import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TextIO

from drl.core.errors import BadInput, plural
from drl.core.log import Log

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live


REFRESH_SECONDS = 0.1  # shortest time between two updates of the live panel
COLUMNS, ROWS = 100, 40  # smallest terminal for a box per block; a smaller one gets a paragraph per block
# Fields that the compact form shows, by the first word of the block's title; other blocks show all fields.
MOST_WANTED: dict[str, tuple[str, ...]] = {
    "ROLLOUT": (),
    "TRAINER": ("timesteps_count", "total_timesteps", "episodes_count", "clip_range", "steps_per_second"),
    "EVALUATION": ("mean_return", "std_return", "success_rate", "episodes"),
}
COUNTS = ("rollout_len", "episodes_count", "timesteps_count", "rollouts_count", "total_timesteps", "gradient_steps")
IN_ROLLOUT = ("mean_clipped_ratio", "approx_kl")  # update metrics shown with the rollout
# Order of update metrics; other names follow.
LEARNING = (
    "loss", "policy_loss", "actor_loss", "value_loss", "critic_loss", "entropy", "temperature", "explained_variance",
    "clip_fraction", "mean_q", "mean_error", "grad_norm", "actor_grad_norm", "critic_grad_norm",
)  # fmt: skip
SETTINGS = ("learning_rate", "epsilon", "noise_sigma")  # current values of schedules, shown with the updates
MOST_SHOWN = 12  # numbers of an info, and of your own; files have all of them


class Block(NamedTuple):
    """One block of the console."""

    title: str
    fields: dict[str, str]  # name → displayed text


class ConsoleTracker:
    """Prints logs. `live=None` selects the panel if `stream` is a terminal and plain text otherwise.

    Plain text shows the first log, the last, every log with an evaluation, and in between one per `seconds`. With
    `every` it shows every `every`-th learning step instead, independent of the clock. With `blocks_every` it shows all
    blocks of every such learning step in place of lines.

    >>> tracker = ConsoleTracker(total_timesteps=100, window=10, every=1)
    >>> tracker.write(Log(50, 2, 1, recent={"mean_ep_return": 21.5}))
     50%  step 50 · 2 episodes · mean_ep_return 21.5
    >>> tracker.close()
    ===================================
    RECENT 10 EPISODES
    -----------------------------------
      mean_ep_return:             21.50
    <BLANKLINE>
    TRAINER STATISTICS
    -----------------------------------
      episodes_count:                 2
      timesteps_count:               50
      rollouts_count:                 1
      total_timesteps:              100
    ===================================
    """

    def __init__(
        self,
        total_timesteps: int | None = None,  # budget, for the progress bar
        total_episodes: int | None = None,  # budget in episodes; the budget reached first counts
        window: int | None = None,  # N of RECENT N EPISODES if the log has none
        stream: TextIO | None = None,  # default: standard output
        live: bool | None = None,
        *,
        every: int | None = None,  # plain text: learning steps between two prints
        seconds: float = 5.0,  # plain text: seconds between two prints, unless `every` is given
        blocks_every: int | None = None,  # plain text: learning steps between two prints of all blocks
        label: str = "",  # which of several runs is shown
    ):
        for name, value in (("every", every), ("blocks_every", blocks_every)):
            if value is not None and value < 1:
                raise BadInput(f"got {name}={value}; expected at least 1 learning step, or None to throttle by time")
        if every is not None and blocks_every is not None:
            raise BadInput(f"got every={every} and blocks_every={blocks_every}; give one of them")
        self.total_timesteps: int | None = total_timesteps
        self.total_episodes: int | None = total_episodes
        self.window: int | None = window
        self.stream: TextIO = sys.stdout if stream is None else stream
        self.live: bool = _is_live(self.stream) if live is None else live
        self.every: int | None = every or blocks_every
        self.seconds: float = seconds
        self.label: str = label
        self.in_blocks: bool = blocks_every is not None
        self._panel: Live | None = None  # from the first log until close
        self._last: Log | None = None
        self._shown: Log | None = None
        self._shown_at = 0.0
        self._evaluated: Log | None = None  # the panel keeps the latest evaluation
        self._updated: Log | None = None  # and the latest update: a log of a replay algorithm may have none
        self._pace: Pace | None = None  # of this process, in shares of the budget; from the first log
        self._earlier = 0.0  # training seconds of earlier processes of a resumed run

    def write(self, log: Log) -> None:
        self._last = log
        if log.evaluation:
            self._evaluated = log
        if log.learn:
            self._updated = log
        if self._pace is None:
            self._begin(log)
        if self._due(log):
            self._show(log)

    def close(self) -> None:
        """Show the last log and release the terminal. May be called twice."""
        try:
            if self._last is not None and not self.live and not (self.in_blocks and self._last is self._shown):
                self._print(plain_text(self._blocks(self._last)))
            elif self._last is not None and self._last is not self._shown:
                self._show(self._last)
        finally:
            self._last = self._shown = None
            if self._panel is not None:
                panel, self._panel = self._panel, None
                atexit.unregister(panel.stop)
                panel.stop()

    def _begin(self, log: Log) -> None:
        """Read from the first log how much was trained before it."""
        took, speed = log.time.get("time_elapsed", 0.0), log.time.get("steps_per_second", 0.0)
        steps, episodes = log.env_steps - log.rollout.get("rollout_len", 0), log.episodes - len(log.finished)
        self._pace = Pace(self._share(log, steps, episodes) or 0.0, took)
        self._earlier = max(log.env_steps / speed - took, 0.0) if speed > 0 else 0.0

    def _due(self, log: Log) -> bool:
        if log.evaluation or (self._shown is None and not self.in_blocks):
            return True
        if self.every is not None and not self.live:
            return log.learning_steps % self.every == 0
        return time.monotonic() - self._shown_at >= (REFRESH_SECONDS if self.live else self.seconds)

    def _show(self, log: Log) -> None:
        if not self.live:
            self._print(plain_text(self._blocks(log)) if self.in_blocks else self._line(log))
        elif self._panel is None:
            self._open_panel(log)
        else:
            self._panel.update(self._render(log, self._panel.console), refresh=True)
        self._shown, self._shown_at = log, time.monotonic()

    def _print(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()

    def _line(self, log: Log) -> str:
        share, left = self._share(log), self._times(log).get("time_left")
        parts = ["" if share is None else f"{share:4.0%}", "" if left is None else f"{clock(left)} left", self.label]
        return "  ".join([*filter(None, parts), str(log)]) + "\n"

    def _open_panel(self, log: Log) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self.stream, force_terminal=True)
        self._panel = Live(
            self._render(log, console),
            console=console,
            auto_refresh=False,  # a refresh thread could hold its lock during a fork of worker processes
            # Other prints appear above the panel; redirected output stays in its file.
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
        )
        atexit.register(self._panel.stop)  # restores the cursor if close() is never called
        self._panel.start(refresh=True)

    def _blocks(self, log: Log) -> list[Block]:
        if not log.learn and self._updated is not None:
            log = replace(log, learn=self._updated.learn, trainer=self._updated.trainer | log.trainer)
        return blocks(log, self.total_timesteps, self.window, self._times(log))

    def _render(self, log: Log, console: "Console") -> "Group":
        shown = self._blocks(log)
        if self._evaluated is not None:
            evaluation = Block(f"EVALUATION at {self._evaluated.env_steps:,}", blocks(self._evaluated)[-1].fields)
            shown = [*(block for block in shown if block.title != "EVALUATION"), evaluation]
        return draw(shown, self._status(log), console.width, console.height)

    def _status(self, log: Log) -> "RenderableType":
        """Return the progress bar with elapsed and remaining time."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        share, times = self._share(log), self._times(log)
        status = Table.grid(padding=(0, 2))
        spans = (("time_left", "left"), ("total_time", "so far"))
        words = [f"{clock(times[name])} {word}" for name, word in spans if name in times]
        if share is None:
            status.add_row(plural(log.env_steps, "step"), plural(log.episodes, "episode"), *words, self.label)
        else:
            bar = ProgressBar(total=1.0, completed=share, width=24, complete_style="cyan", finished_style="green")
            status.add_row(bar, f"{share:4.0%}", *words, self.label)
        return status

    def _share(self, log: Log, env_steps: float | None = None, episodes: int | None = None) -> float | None:
        """Return the used share of the budget at this log or these counts; None without a budget."""
        shares = []
        if total := log.trainer.get("total_timesteps", self.total_timesteps):
            shares.append((log.env_steps if env_steps is None else env_steps) / total)
        if self.total_episodes:
            shares.append((log.episodes if episodes is None else episodes) / self.total_episodes)
        return min(max(shares), 1.0) if shares else None

    def _times(self, log: Log) -> dict[str, float]:
        """Return elapsed seconds, earlier processes included, and seconds left at this process's speed."""
        if self._pace is None or not log.time:
            return {}
        share = self._share(log)
        left = None if share is None else self._pace.left(share, of=1.0)
        return {"total_time": self._earlier + self._pace.seconds} | ({} if left is None else {"time_left": left})


class QuietConsole:
    """Prints one line at the end.

    >>> console = QuietConsole()
    >>> console.write(Log(2048, 9, 1, recent={"mean_ep_return": 21.5, "window": 9}, time={"time_elapsed": 1.25}))
    >>> console.close()
    2,048 steps · 9 episodes · mean_ep_return 21.50 over the last 9 · 1.25 s
    """

    def __init__(self, stream: TextIO | None = None):
        self.stream: TextIO = sys.stdout if stream is None else stream
        self._last: Log | None = None
        self._seconds = 0.0  # sum over logs

    def write(self, log: Log) -> None:
        self._last = log
        self._seconds += log.time.get("time_elapsed", 0.0)

    def close(self) -> None:
        if self._last is None:
            return
        log, self._last = self._last, None
        parts = [plural(log.env_steps, "step"), plural(log.episodes, "episode")]
        names = [name for name in ("mean_ep_return", "success_rate") if name in log.recent]
        parts += [f"{name} {number(name, log.recent[name])}" for name in names]
        if "window" in log.recent and len(parts) > 2:
            parts[-1] += f" over the last {int(log.recent['window'])}"
        if "mean_return" in log.evaluation:
            parts.append(f"evaluation {number('mean_return', log.evaluation['mean_return'])}")
        parts.append(number("time_elapsed", self._seconds))
        self.stream.write(" · ".join(parts) + "\n")
        self.stream.flush()


class StartupProgress:
    """Reports progress before the first log, which may take minutes: after 1.5 seconds and then from time to time. On a
    terminal it overwrites one line. `text` is called in a thread.

    >>> waiting = StartupProgress(lambda: "step 12")
    >>> waiting.end()
    """

    def __init__(self, text: Callable[[], str], stream: TextIO | None = None, *, seconds: float = 1.5):
        self.text: Callable[[], str] = text
        self.seconds: float = seconds
        self.stream: TextIO = sys.stdout if stream is None else stream
        self.live: bool = _is_live(self.stream)
        self._shown = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="waiting", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop reporting and clear the line on a terminal. May be called twice."""
        self._ended.set()
        self._thread.join()
        if self.live and self._shown:
            self._write("\r\x1b[K")
            self._shown = False

    def _work(self) -> None:
        started, pause = time.monotonic(), self.seconds
        while not self._ended.wait(pause):
            text = f"before the first log, {clock(time.monotonic() - started)}: {self.text()}"
            self._write(f"\r\x1b[K{text}" if self.live else f"{text}\n")
            self._shown, pause = True, self.seconds if self.live else 10 * self.seconds

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed pipe does not end the run
            self.stream.write(text)
            self.stream.flush()


def _is_terminal(stream: object) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())  # a user's stream may have no `isatty`


def _is_live(stream: TextIO) -> bool:
    """Whether lines of this stream can be overwritten."""
    return _is_terminal(stream) and os.environ.get("TERM") != "dumb"


class Pace:
    """Speed since now, or since `seconds` ago. `done` is the work finished before, which does not count.

    >>> pace = Pace(done=50, seconds=10)
    >>> round(pace.left(60, of=100))  # ten in ten seconds
    40
    """

    def __init__(self, done: float = 0.0, seconds: float = 0.0):
        self.before: float = done
        self.began: float = time.monotonic() - seconds

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def left(self, done: float, of: float) -> float | None:
        """Estimate the seconds until `of` are finished; None while nothing is known."""
        own = done - self.before
        return max(of - done, 0.0) * self.seconds / own if own > 0 else None


def blocks(
    log: Log, total_timesteps: int | None = None, window: int | None = None, times: Mapping[str, float] | None = None
) -> list[Block]:
    """Return the blocks of one log. `times` are additional durations in seconds, such as the time left.

    >>> log = Log(env_steps=2048, episodes=3, learning_steps=1, rollout={"mean_reward": 1.0}, learn={"loss": 0.5})
    >>> [(block.title, list(block.fields)) for block in blocks(log)]  # doctest: +NORMALIZE_WHITESPACE
    [('ROLLOUT STATISTICS', ['mean_reward']),
     ('TRAINER STATISTICS', ['episodes_count', 'timesteps_count', 'rollouts_count']),
     ('LEARNING', ['loss'])]
    """
    rollout = log.learn | log.rollout | log.time
    names = ("mean_ep_len", "mean_ep_return", "mean_reward", *IN_ROLLOUT, "rollout_len", "time_elapsed")
    counters = {"episodes_count": log.episodes, "timesteps_count": log.env_steps, "rollouts_count": log.learning_steps}
    if total_timesteps is not None:
        counters["total_timesteps"] = total_timesteps
    trainer = counters | log.trainer | log.time
    shown = (*counters, "total_timesteps", "clip_range", "steps_per_second")
    others = sorted(set(log.learn) - set(LEARNING) - set(IN_ROLLOUT)) + sorted(set(log.trainer) - set(shown))
    episodes = log.recent.get("window", window)
    recent = "RECENT EPISODES" if episodes is None else f"RECENT {int(episodes)} EPISODES"
    lengths = {name: clock(each) for name, each in (times or {}).items()}
    every = [
        Block("ROLLOUT STATISTICS", _shown(rollout, names)),
        Block(recent, _shown(log.recent, ("mean_ep_len", "mean_ep_return", "terminated_rate", "success_rate"))),
        Block("TRAINER STATISTICS", _shown(trainer, shown) | lengths),
        Block("LEARNING", _shown(log.trainer | log.learn, (*LEARNING, *SETTINGS, *others))),
        Block("EVALUATION", _shown(log.evaluation, tuple(log.evaluation))),
        Block("INFO", _shown(log.info, tuple(log.info)[:MOST_SHOWN])),
        Block("CUSTOM", _shown(log.custom, tuple(log.custom)[:MOST_SHOWN])),
    ]
    return [block for block in every if block.fields]


def _shown(values: Mapping[str, float], names: tuple[str, ...]) -> dict[str, str]:
    return {name: number(name, values[name]) for name in names if name in values}


def number(name: str, value: float) -> str:
    """Format a number as short as readable."""
    if not math.isfinite(value):
        return str(float(value))
    if name in COUNTS or isinstance(value, int):
        return f"{int(value):,}"
    if name == "time_elapsed":
        return f"{value:,.2f} s"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}" if size < 1e9 else f"{value:.3e}"
    if size >= 10 or size == 0:
        return f"{value:.2f}"
    if size >= 1:
        return f"{value:.3f}"
    return f"{value:.4f}" if size >= 0.001 else f"{value:.2e}"


def clock(seconds: float) -> str:
    """
    >>> clock(3725.4)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def plain_text(shown: list[Block]) -> str:
    """Format blocks as aligned text, for files and pipes."""
    width = max([18, *(len(name) for block in shown for name in block.fields)]) + 2
    parts = []
    for block in shown:
        lines = [f"  {name + ':':<{width}}{value:>13}" for name, value in block.fields.items()]
        parts.append("\n".join([block.title, "-" * 35, *lines]))
    return "=" * 35 + "\n" + "\n\n".join(parts) + "\n" + "=" * 35 + "\n"


def draw(shown: list[Block], status: "RenderableType", columns: int, rows: int) -> "Group":
    """Lay out the blocks above the status for a terminal of this size."""
    from rich.columns import Columns
    from rich.console import Group

    if columns < COLUMNS or rows < ROWS:
        return Group(*_compact(shown), status)
    height = max(len(block.fields) for block in shown) + 2
    return Group(Columns([_box(block, height) for block in shown], padding=(0, 1)), status)


def _box(block: Block, height: int) -> "RenderableType":
    from rich import box
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, value in block.fields.items():
        table.add_row(name, value)
    title = Text(block.title, style="bold cyan")
    return Panel(table, title=title, box=box.ROUNDED, border_style="dim", width=38, height=height)


def _compact(shown: list[Block]) -> "list[RenderableType]":
    """Return a paragraph per block, with its most important fields."""
    from rich.text import Text

    everything = {name: value for block in shown for name, value in block.fields.items()}
    lines: list[RenderableType] = []
    for block in shown:
        fields, word = block.fields, block.title.split()[0]
        if word in MOST_WANTED:
            fields = {name: fields[name] for name in MOST_WANTED[word] if name in fields}
        if word == "LEARNING" and "approx_kl" in everything:
            fields = {"approx_kl": everything["approx_kl"]} | fields
        if fields:
            pairs = "  ".join(f"{name}={value}" for name, value in fields.items())  # a name stays with its value
            lines.append(Text.assemble((block.title, "bold cyan"), "  ", pairs))
    return lines
