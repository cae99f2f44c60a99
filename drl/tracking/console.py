"""Console output of a learning step: three blocks, the same for every algorithm, plus one after an evaluation.

A terminal shows a live panel with a progress bar; a file or pipe gets throttled plain text. Fields that do not apply
and blocks without fields are left out.
"""

import atexit
import math
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TextIO

from drl.core.errors import BadInput
from drl.core.log import Log

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

REFRESH_SECONDS = 0.1  # shortest time between two updates of the live panel
COUNTS = ("rollout_len", "episodes_count", "timesteps_count", "rollouts_count", "total_timesteps")


class Block(NamedTuple):
    title: str
    fields: dict[str, str]  # name → displayed text


def blocks(log: Log, total_timesteps: int | None = None, window: int | None = None) -> list[Block]:
    """The blocks of one log, without fields that do not apply.

    >>> log = Log(env_steps=2048, episodes=3, learning_steps=1, rollout={"mean_reward": 1.0})
    >>> [(block.title, list(block.fields)) for block in blocks(log)]  # doctest: +NORMALIZE_WHITESPACE
    [('ROLLOUT STATISTICS', ['mean_reward']),
     ('TRAINER STATISTICS', ['episodes_count', 'timesteps_count', 'rollouts_count'])]
    """
    rollout = log.learn | log.rollout | log.time
    names = ("mean_ep_len", "mean_ep_return", "mean_reward", "mean_clipped_ratio", "approx_kl", "rollout_len")
    counters = {
        "episodes_count": log.episodes,
        "timesteps_count": log.env_steps,
        "rollouts_count": log.learning_steps,
    }
    if total_timesteps is not None:
        counters["total_timesteps"] = total_timesteps
    trainer = counters | log.trainer | log.time
    episodes = log.recent.get("window", window)
    recent = "RECENT EPISODES" if episodes is None else f"RECENT {int(episodes)} EPISODES"
    found = [
        Block("ROLLOUT STATISTICS", _shown(rollout, (*names, "time_elapsed"))),
        Block(recent, _shown(log.recent, ("mean_ep_len", "mean_ep_return", "terminated_rate", "success_rate"))),
        Block("TRAINER STATISTICS", _shown(trainer, (*counters, "total_timesteps", "clip_range", "steps_per_second"))),
        Block("EVALUATION", _shown(log.evaluation, tuple(log.evaluation))),
    ]
    return [block for block in found if block.fields]


def _shown(values: Mapping[str, float], names: tuple[str, ...]) -> dict[str, str]:
    return {name: _number(name, values[name]) for name in names if name in values}


def _number(name: str, value: float) -> str:
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


def plain_text(found: list[Block]) -> str:
    """Blocks as aligned text, for files and pipes."""
    width = max([18, *(len(name) for block in found for name in block.fields)]) + 2
    parts = []
    for block in found:
        lines = [f"  {name + ':':<{width}}{value:>13}" for name, value in block.fields.items()]
        parts.append("\n".join([block.title, "-" * 35, *lines]))
    return "=" * 35 + "\n" + "\n\n".join(parts) + "\n" + "=" * 35 + "\n"


class ConsoleTracker:
    """Prints the blocks. `live=None` selects the panel if `stream` is a terminal and plain text otherwise.

    Plain text shows the first log, the last, every log with an evaluation, and in between one per `seconds`. With
    `every` it shows every `every`-th learning step instead, independent of the clock.

    >>> tracker = ConsoleTracker(total_timesteps=100, window=10, every=1)
    >>> tracker.write(Log(50, 2, 1, recent={"mean_ep_return": 21.5}))
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
    >>> tracker.close()
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
    ):
        if every is not None and every < 1:
            raise BadInput(f"got every={every}; expected 1 or more learning steps, or None to go by the clock")
        self.total_timesteps, self.total_episodes, self.window = total_timesteps, total_episodes, window
        self.stream = sys.stdout if stream is None else stream
        self.live = _is_terminal(self.stream) and os.environ.get("TERM") != "dumb" if live is None else live
        self.every, self.seconds = every, seconds
        self._panel: Live | None = None  # from the first log until close
        self._last: Log | None = None
        self._shown: Log | None = None
        self._shown_at = 0.0
        self._evaluated: Log | None = None  # the panel keeps the latest evaluation

    def write(self, log: Log) -> None:
        self._last = log
        if log.evaluation:
            self._evaluated = log
        if self._due(log):
            self._show(log)

    def close(self) -> None:
        """Show the last log and release the terminal. May be called twice."""
        try:
            if self._last is not None and self._last is not self._shown:
                self._show(self._last)
        finally:
            self._last = self._shown = None
            if self._panel is not None:
                panel, self._panel = self._panel, None
                atexit.unregister(panel.stop)
                panel.stop()

    def _due(self, log: Log) -> bool:
        if self._shown is None or log.evaluation:
            return True
        if self.every is not None and not self.live:
            return log.learning_steps % self.every == 0
        return time.monotonic() - self._shown_at >= (REFRESH_SECONDS if self.live else self.seconds)

    def _show(self, log: Log) -> None:
        if not self.live:
            self.stream.write(plain_text(blocks(log, self.total_timesteps, self.window)))
            self.stream.flush()
        elif self._panel is None:
            self._open_panel(log)
        else:
            self._panel.update(self._render(log), refresh=True)
        self._shown, self._shown_at = log, time.monotonic()

    def _open_panel(self, log: Log) -> None:
        from rich.console import Console
        from rich.live import Live

        self._panel = Live(
            self._render(log),
            console=Console(file=self.stream, force_terminal=True),
            auto_refresh=False,  # a refresh thread could hold its lock during a fork of worker processes
            # Other prints appear above the panel; redirected output stays in its file.
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
        )
        atexit.register(self._panel.stop)  # restores the cursor if close() is never called
        self._panel.start(refresh=True)

    def _render(self, log: Log) -> "Group":
        from rich import box
        from rich.columns import Columns
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        found = blocks(log, self.total_timesteps, self.window)
        if self._evaluated is not None:
            shown = blocks(self._evaluated)[-1]
            found = [block for block in found if block.title != "EVALUATION"]
            found.append(Block(f"EVALUATION at {self._evaluated.env_steps:,}", shown.fields))
        panels = []
        height = max(len(block.fields) for block in found) + 2
        for block in found:
            table = Table.grid(padding=(0, 2), expand=True)
            table.add_column(style="dim", no_wrap=True)
            table.add_column(justify="right", no_wrap=True)
            for name, value in block.fields.items():
                table.add_row(name, value)
            title = Text(block.title, style="bold cyan")
            panels.append(Panel(table, title=title, box=box.ROUNDED, border_style="dim", width=38, height=height))
        share = self._share(log)
        status = Table.grid(padding=(0, 2))
        if share is None:
            status.add_row(f"{log.env_steps:,} steps", f"{log.episodes:,} episodes")
        else:
            left = self._seconds_left(log)
            bar = ProgressBar(total=1.0, completed=share, width=36, complete_style="cyan", finished_style="green")
            status.add_row(bar, f"{share:4.0%}", "" if left is None else f"{_clock(left)} left")
        return Group(Columns(panels, padding=(0, 1)), status)

    def _share(self, log: Log) -> float | None:
        """Share of the budget used; None without a budget."""
        shares = []
        if total := self._total(log):
            shares.append(log.env_steps / total)
        if self.total_episodes:
            shares.append(log.episodes / self.total_episodes)
        return min(max(shares), 1.0) if shares else None

    def _total(self, log: Log) -> float | None:
        return log.trainer.get("total_timesteps", self.total_timesteps)

    def _seconds_left(self, log: Log) -> float | None:
        """Seconds until the first budget is used up, at the current speed."""
        speed = log.time.get("steps_per_second", 0.0)
        steps = []
        if total := self._total(log):
            steps.append(total - log.env_steps)
        if self.total_episodes and log.episodes:
            steps.append((self.total_episodes - log.episodes) * log.env_steps / log.episodes)
        return max(min(steps), 0.0) / speed if steps and speed > 0 else None


class QuietConsole:
    """Prints one line at the end.

    >>> console = QuietConsole()
    >>> console.write(Log(2048, 9, 1, recent={"mean_ep_return": 21.5, "window": 9}, time={"time_elapsed": 1.25}))
    >>> console.close()
    2,048 steps · 9 episodes · mean_ep_return 21.50 over the last 9 · 1.25 s
    """

    def __init__(self, stream: TextIO | None = None):
        self.stream = sys.stdout if stream is None else stream
        self._last: Log | None = None
        self._seconds = 0.0  # sum over logs

    def write(self, log: Log) -> None:
        self._last = log
        self._seconds += log.time.get("time_elapsed", 0.0)

    def close(self) -> None:
        if self._last is None:
            return
        log, self._last = self._last, None
        parts = [f"{log.env_steps:,} steps", f"{log.episodes:,} episodes"]
        parts += [f"{name} {value}" for name, value in _shown(log.recent, ("mean_ep_return", "success_rate")).items()]
        if "window" in log.recent and len(parts) > 2:
            parts[-1] += f" over the last {int(log.recent['window'])}"
        parts += [f"evaluation {value}" for value in _shown(log.evaluation, ("mean_return",)).values()]
        parts += _shown({"time_elapsed": self._seconds}, ("time_elapsed",)).values()
        self.stream.write(" · ".join(parts) + "\n")
        self.stream.flush()


def _is_terminal(stream: object) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
