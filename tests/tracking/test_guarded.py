import warnings

import pytest

from drl.core.log import Log
from drl.tracking.guarded import TrackerFailed, guard


class Failing:
    def __init__(self, error, where="write"):
        self.error, self.where, self.writes, self.closes = error, where, 0, 0

    def write(self, log):
        self.writes += 1
        if self.where == "write":
            raise self.error

    def close(self):
        self.closes += 1
        if self.where == "close":
            raise self.error


def test_a_failing_tracker_warns_once_and_is_switched_off():
    failing = Failing(OSError("disk full"))
    tracker = guard(failing)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(4):
            tracker.write(Log(step, 0, step))
        tracker.close()
    assert [w.category for w in seen] == [TrackerFailed]
    assert "Failing" in str(seen[0].message)
    assert "OSError: disk full" in str(seen[0].message)
    assert (failing.writes, failing.closes) == (1, 1)


def test_failing_to_close_warns():
    tracker = guard(Failing(RuntimeError("late"), where="close"))
    tracker.write(Log(1, 0, 1))
    with pytest.warns(TrackerFailed, match="when closing.*RuntimeError: late"):
        tracker.close()


@pytest.mark.parametrize("where", ["write", "close"])
def test_an_interrupt_passes(where):
    tracker = guard(Failing(KeyboardInterrupt(), where))
    with pytest.raises(KeyboardInterrupt):
        getattr(tracker, where)(*([Log(1, 0, 1)] if where == "write" else []))
    assert tracker.error is None


def test_guarding_twice_is_guarding_once():
    tracker = guard(Failing(OSError()))
    assert guard(tracker) is tracker
