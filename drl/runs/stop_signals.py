"""Signals that stop a run: it saves what it has and can be resumed."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from drl.core.errors import Interrupted

SignalHandler = Callable[[int, FrameType | None], object] | int | None
STATUS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}  # of a stopped run
PATIENCE = 1.0  # seconds after which a signal interrupts the step of an environment


class StopSignals:
    """Handles SIGINT, SIGTERM and SIGHUP inside its `with` block, in the main thread only. A signal that is ignored,
    such as SIGHUP under nohup, stays ignored.

    After the first signal, `stopped()` is True and the current step may end. `Interrupted` is raised in an environment
    step that takes longer than `PATIENCE`, and inside `at_once()`. A second signal raises it anywhere except inside
    `held()`, which is for saving.
    """

    def __init__(self) -> None:
        self.seen: int | None = None  # the first signal
        self.count: int = 0  # of signals so far
        self.may_be_left: Callable[[], bool] = lambda: False  # whether it is safe to interrupt now
        self._leaving = False  # inside `at_once`
        self._holding = False  # inside `held`
        self._previous: dict[int, SignalHandler] = {}

    def __enter__(self) -> "StopSignals":
        with contextlib.suppress(ValueError):
            handled = [number for number in STATUS if signal.getsignal(number) is not signal.SIG_IGN]
            self._previous = {number: signal.signal(number, self._note) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        if signal.SIGALRM in self._previous:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, the first signal raises `Interrupted`."""
        if self.seen is not None:
            raise Interrupted(self.seen)
        self._leaving = True
        try:
            yield
        finally:
            self._leaving = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside, no signal raises."""
        before, self._holding = self._holding, True
        try:
            yield
        finally:
            self._holding = before

    def _note(self, number: int, frame: FrameType | None) -> None:
        first = self.seen is None
        self.count += 1
        self.seen = number if first else self.seen
        if not self._holding and (self._leaving or not first):
            raise Interrupted(self.seen)
        if first:
            self._previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._lose_patience)
            signal.setitimer(signal.ITIMER_REAL, PATIENCE, PATIENCE)

    def _lose_patience(self, number: int, frame: FrameType | None) -> None:
        if not self._holding and self.may_be_left():
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            raise Interrupted(self.seen)

    def stopped(self) -> bool:
        """Whether a signal has come."""
        return self.seen is not None

    @property
    def status(self) -> str:
        """The status of a run that ends now."""
        return "finished" if self.seen is None else STATUS[signal.Signals(self.seen)]
