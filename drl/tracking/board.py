"""Boards: trackers for external services, such as W&B, that also receive a run's files at its end.

A thread makes all calls to the service, so training never waits for it.
"""

import math
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from drl.core.contracts import Tracker
from drl.core.log import Log

START_SECONDS, FINISH_SECONDS = 10.0, 60.0  # limits for connecting and for the last upload

Row = dict[str, float]


class Ending(NamedTuple):
    """How a run ended."""

    folder: Path  # the run's folder: plots, videos, agent
    status: str = "finished"  # or the reason for the stop
    evaluation: dict[str, float] | None = None  # final agent's evaluation


class Board(Tracker, Protocol):
    """A tracker with a `finish` method, called at the end of a run when plots and videos exist."""

    def finish(self, ending: Ending) -> None:
        """End the run with its evaluation, videos and files."""


class BoardInThread(ABC):
    """A board that queues rows for a thread, which runs `_send`. `finish()` adds the run's files and ends; `close()`
    ends without them, and does nothing after `finish()`."""

    def __init__(self, after: int = -1):
        self.after = after  # learning steps logged by an earlier process; a resumed run repeats some of them
        self.ending: Ending | None = None  # set before the rows end
        self.error: Exception | None = None  # raised in the thread
        self._jobs: queue.SimpleQueue[Row | None] = queue.SimpleQueue()  # None: no more rows
        self._ended = False
        self._thread = threading.Thread(target=self._work, name=type(self).__name__, daemon=True)
        self._thread.start()

    @abstractmethod
    def _send(self, rows: Iterator[Row]) -> None:
        """Thread body: start a run, log rows until there are no more, add the files of `ending`, end the run."""

    def write(self, log: Log) -> None:
        if self.error is not None:
            raise self.error
        if log.learning_steps <= self.after:
            return
        values = {name: float(value) for name, value in log.flat().items()}
        self._jobs.put({name: value for name, value in values.items() if math.isfinite(value)})

    def finish(self, ending: Ending) -> None:
        """Add the run's files, then end the run."""
        if not self._ended:
            self.ending = ending
        self.close()

    def close(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._jobs.put(None)
        self._thread.join(START_SECONDS + FINISH_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError(f"it did not end within {START_SECONDS + FINISH_SECONDS:.0f} seconds")
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        try:
            self._send(iter(self._jobs.get, None))
        except Exception as error:
            self.error = error
        except BaseException as error:  # SystemExit in this thread does not come from the user
            self.error = RuntimeError(f"it raised {type(error).__name__}: {error}")
