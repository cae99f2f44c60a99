"""Signals that stop a run: it saves what it has and can be resumed."""

import contextlib
import signal
from collections.abc import Callable
from types import FrameType

SignalHandler = Callable[[int, FrameType | None], object] | int | None
STATUS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}  # of a stopped run


class StopSignals:
    """Handles SIGINT, SIGTERM and SIGHUP inside its `with` block: the first signal stops the run after the current
    step of the environments, a second one interrupts at once. It does nothing outside the main thread."""

    def __init__(self) -> None:
        self.seen: int | None = None
        self._previous: dict[int, SignalHandler] = {}

    def __enter__(self) -> "StopSignals":
        with contextlib.suppress(ValueError):
            self._previous = {number: signal.signal(number, self._note) for number in STATUS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.seen is not None:
            raise KeyboardInterrupt
        self.seen = number

    def stopped(self) -> bool:
        return self.seen is not None

    @property
    def status(self) -> str:
        return "finished" if self.seen is None else STATUS[signal.Signals(self.seen)]
