"""Guards around trackers: a tracker that raises, exits or hangs is switched off, and training continues."""

import contextlib
import dataclasses
import queue
import threading
import warnings
from collections.abc import Callable
from concurrent import futures

from drl.core.contracts import Tracker
from drl.core.log import GROUPS, Log
from drl.tracking.board import Ending

SECONDS = 10.0  # after which a call to a user's tracker counts as hanging


class TrackerFailed(UserWarning):
    """A tracker raised and is switched off; training continues."""


class Guarded:
    """Forwards logs until the tracker raises; then warns once, closes it and forwards nothing more."""

    def __init__(self, tracker: Tracker):
        self.tracker = tracker
        self.error: BaseException | None = None  # why it was switched off

    def write(self, log: Log) -> None:
        self._try(lambda: self.tracker.write(log), f"at env step {log.env_steps}")

    def flush(self) -> None:
        """Flush the tracker if it has a buffer: a checkpoint must not be ahead of the files."""
        if (flush := getattr(self.tracker, "flush", None)) is not None:
            self._try(flush, "when flushing")

    def finish(self, ending: Ending) -> None:
        """Call `finish` of trackers that have it, then close them."""
        if (finish := getattr(self.tracker, "finish", None)) is not None:
            self._end(lambda: finish(ending), "at the end")

    def _try(self, call: Callable[[], None], when: str) -> None:
        if self.error is not None:
            return
        try:
            call()
        except (Exception, SystemExit) as error:  # KeyboardInterrupt passes: it comes from the user
            self.error = error
            with contextlib.suppress(Exception, SystemExit):
                self.tracker.close()
            self._warn(error, f"{when}; it is switched off")

    def close(self) -> None:
        self._end(self.tracker.close, "when closing")

    def _end(self, call: Callable[[], None], when: str) -> None:
        if self.error is not None:
            return
        try:
            call()
        except (Exception, SystemExit) as error:
            self.error = error
            self._warn(error, f"{when}; its output may be incomplete")

    def _warn(self, error: BaseException, what: str) -> None:
        name = type(getattr(self.tracker, "tracker", self.tracker)).__name__
        text = f"{name} failed {what} and training continues: {type(error).__name__}: {error}"
        warnings.warn(text, TrackerFailed, stacklevel=3)


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
        groups = {name: dict(getattr(log, name)) for name in GROUPS}
        copy = dataclasses.replace(log, **groups, finished=list(log.finished))  # type: ignore[arg-type]
        self._call(lambda: self.tracker.write(copy))

    def flush(self) -> None:
        """Flush the tracker if it has a buffer."""
        if (flush := getattr(self.tracker, "flush", None)) is not None:
            self._call(flush)

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


def guard(tracker: Tracker) -> Guarded:
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
