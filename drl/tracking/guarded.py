"""Trackers that cannot break or delay training.

`Guarded` switches a tracker off when it raises or exits, `InThread` also when it hangs. `BoardInThread` sends rows to
an external service, such as W&B, in a thread, so training never waits for it.
"""

import contextlib
import dataclasses
import math
import queue
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from drl.core.contracts import Tracker
from drl.core.log import Log

SECONDS = 10.0  # after which a call to a user's tracker counts as hanging
START_SECONDS, FINISH_SECONDS = 10.0, 60.0  # limits for connecting and for the last upload
BoardRow = dict[str, float]  # finite numbers of a log by name


class Ending(NamedTuple):
    """How a run ended."""

    folder: Path  # the run's folder: plots, videos, agent
    status: str = "finished"  # or the reason for the stop
    evaluation: dict[str, float] | None = None  # final agent's evaluation


@runtime_checkable
class Buffered(Protocol):
    """A tracker that writes later."""

    def flush(self) -> None:
        """Write buffered logs."""


@runtime_checkable
class Board(Tracker, Protocol):
    """A tracker with a `finish` method, called at the end of a run when plots and videos exist."""

    def finish(self, ending: Ending) -> None:
        """End the run with its evaluation, videos and files."""


class TrackerFailed(UserWarning):
    """A tracker raised and is switched off; training continues."""


def guard(tracker: Tracker) -> "Guarded":
    """Wrap a tracker so that its failure loses only its own output.

    >>> class Full:
    ...     def write(self, log): raise OSError("no space left on device")
    ...     def close(self): pass
    >>> tracker = guard(Full())
    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     for step in range(3): tracker.write(Log(step, 0, step))
    >>> [str(warning.message) for warning in seen]
    ['Full failed at env step 0; it is switched off and training continues: OSError: no space left on device']
    """
    return tracker if isinstance(tracker, Guarded) else Guarded(tracker)


class Guarded:
    """Forwards logs until the tracker raises; then warns once, closes it and forwards nothing more."""

    def __init__(self, tracker: Tracker):
        self.tracker = tracker
        self.error: BaseException | None = None  # why it was switched off

    def write(self, log: Log) -> None:
        self._try(lambda: self.tracker.write(log), f"at env step {log.env_steps}")

    def flush(self) -> None:
        """Flush the tracker if it has a buffer: a checkpoint must not be ahead of the files."""
        if isinstance(self.tracker, Buffered):
            self._try(self.tracker.flush, "when flushing")

    def finish(self, ending: Ending) -> None:
        """Call `finish` of a board."""
        if isinstance(board := self.tracker, Board):
            self._try(lambda: board.finish(ending), "at the end", last=True)

    def close(self) -> None:
        self._try(self.tracker.close, "when closing", last=True)

    def _try(self, call: Callable[[], None], when: str, last: bool = False) -> None:
        """Make a call unless the tracker is switched off. `last`: the call ends the tracker."""
        if self.error is not None:
            return
        try:
            call()
        except (Exception, SystemExit) as error:  # KeyboardInterrupt passes: it comes from the user
            self.error = error
            if not last:
                with contextlib.suppress(Exception, SystemExit):
                    self.tracker.close()
            name = type(self.tracker.tracker if isinstance(self.tracker, InThread) else self.tracker).__name__
            what = f"{when}; {'its output may be incomplete' if last else 'it is switched off'}"
            text = f"{name} failed {what} and training continues: {type(error).__name__}: {error}"
            warnings.warn(text, TrackerFailed, stacklevel=2)


class InThread:
    """Calls a tracker in its own thread and waits up to `seconds` for each call. Then it raises `TimeoutError` and
    never calls the tracker again. Calls keep their order, and a call is complete when it returns.

    The tracker gets copies of the logs. Anything it raises, even `SystemExit` or `KeyboardInterrupt`, is its own fault,
    because signals arrive in the main thread; here it becomes an `Exception`.
    """

    def __init__(self, tracker: Tracker, seconds: float | None = None):
        self.tracker: Tracker = tracker
        self.seconds: float = SECONDS if seconds is None else seconds
        self._over = False  # whether it hangs or is closed
        self._calls: queue.SimpleQueue[tuple[Callable[[], None], futures.Future[None]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=type(tracker).__name__, daemon=True).start()

    def write(self, log: Log) -> None:
        groups = {name: dict(numbers) for name, numbers in log.groups.items()}
        copy = dataclasses.replace(log, **groups, finished=list(log.finished))  # type: ignore[arg-type]
        self._call(lambda: self.tracker.write(copy))

    def flush(self) -> None:
        """Flush the tracker if it has a buffer."""
        if isinstance(self.tracker, Buffered):
            self._call(self.tracker.flush)

    def close(self) -> None:
        try:
            self._call(self.tracker.close)
        finally:
            self._over = True
            self._calls.put(None)

    def _call(self, call: Callable[[], None]) -> None:
        if self._over:
            return
        answer: futures.Future[None] = futures.Future()
        self._calls.put((call, answer))
        if not futures.wait([answer], self.seconds).done:
            self._over = True
            raise TimeoutError(f"it did not return within {self.seconds:g} seconds")
        if isinstance(error := answer.exception(), Exception):
            raise error
        if error is not None:
            raise RuntimeError(f"it raised {type(error).__name__}: {error}")

    def _work(self) -> None:
        """Thread body."""
        while (job := self._calls.get()) is not None:
            call, answer = job
            try:
                call()
            except BaseException as error:
                answer.set_exception(error)
            else:
                answer.set_result(None)


class BoardInThread(ABC):
    """A board that queues rows for a thread, which runs `_send`. `finish()` adds the run's files and ends; `close()`
    ends without them, and does nothing after `finish()`."""

    def __init__(self, after: int = -1):
        self.after = after  # learning steps logged by an earlier process; a resumed run repeats some of them
        self.ending: Ending | None = None  # set before the rows end
        self.error: Exception | None = None  # raised in the thread
        self._jobs: queue.SimpleQueue[BoardRow | None] = queue.SimpleQueue()  # None: no more rows
        self._ended = False
        self._thread = threading.Thread(target=self._work, name=type(self).__name__, daemon=True)
        self._thread.start()

    @abstractmethod
    def _send(self, rows: Iterator[BoardRow]) -> None:
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
