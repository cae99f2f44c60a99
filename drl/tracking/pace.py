"""How fast this process works, and how long the rest takes at that speed."""

import time


class Pace:
    """Begins now, or `seconds` ago, with `done` of the work done by others: only what is done since then counts.

    >>> pace = Pace(done=50, seconds=10)
    >>> round(pace.left(60, of=100))  # ten in ten seconds, so far
    40
    """

    def __init__(self, done: float = 0.0, seconds: float = 0.0):
        self.before: float = done
        self.began: float = time.monotonic() - seconds

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began

    def left(self, done: float, of: float) -> float | None:
        """Seconds until `of` are done; None as long as nothing is known."""
        own = done - self.before
        return max(of - done, 0.0) * self.seconds / own if own > 0 else None
