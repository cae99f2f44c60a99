"""Speed of this process, and the time left at that speed."""

import time


class Pace:
    """Speed since now, or since `seconds` ago. `done` is the work finished before, which does not count.

    >>> pace = Pace(done=50, seconds=10)
    >>> round(pace.left(60, of=100))  # ten in ten seconds, so far
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
