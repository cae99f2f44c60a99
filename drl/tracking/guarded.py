"""Trackers that cannot stop training."""

import contextlib
import warnings
from collections.abc import Callable

from drl.core.contracts import Tracker
from drl.core.log import Log


class TrackerFailed(UserWarning):
    """A tracker raised and is switched off; training continues."""


class Guarded:
    """Forwards logs until the tracker raises; then warns once, closes it and forwards nothing more."""

    def __init__(self, tracker: Tracker):
        self.tracker = tracker
        self.error: Exception | None = None  # why it was switched off

    def write(self, log: Log) -> None:
        self._try(lambda: self.tracker.write(log), f"at env step {log.env_steps}")

    def flush(self) -> None:
        """Write what the tracker holds back, if it does: a checkpoint must not be ahead of the files."""
        if (flush := getattr(self.tracker, "flush", None)) is not None:
            self._try(flush, "when flushing")

    def _try(self, call: Callable[[], None], when: str) -> None:
        if self.error is not None:
            return
        try:
            call()
        except Exception as error:  # KeyboardInterrupt and SystemExit pass: they come from the user
            self.error = error
            with contextlib.suppress(Exception):
                self.tracker.close()
            self._warn(error, f"{when}; it is switched off")

    def close(self) -> None:
        if self.error is not None:
            return
        try:
            self.tracker.close()
        except Exception as error:
            self.error = error
            self._warn(error, "when closing; its output may be incomplete")

    def _warn(self, error: Exception, what: str) -> None:
        name = type(self.tracker).__name__
        text = f"{name} failed {what} and training continues: {type(error).__name__}: {error}"
        warnings.warn(text, TrackerFailed, stacklevel=3)


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
