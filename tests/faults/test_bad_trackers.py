"""Trackers that raise, exit, hang or change the log: the run is the same as without them."""

import json
import threading
import time
import warnings

import pytest
from fault_cases import some

from drl.runs.extras import Extras
from drl.runs.launch import train
from drl.settings.experiment import Experiment
from drl.tracking import guarded
from drl.tracking.guarded import InThread, TrackerFailed, guard

KIND = "trackers"
LEAN = {"num_envs": 2, "rollout_length": 16, "hidden_sizes": [8], "minibatches": 1, "total_timesteps": 192}
LEAN |= {"quiet": True, "plots": False, "video": False, "tensorboard": False, "compile": "off"}
LEAN |= {"checkpoint_every": 64, "evaluate_every": 96, "evaluation_episodes": 1}


class Bad:
    """Does `fault` in one of its methods, from its `after`-th call on."""

    def __init__(self, where, fault, after=2):
        self.where, self.fault, self.after, self.calls, self.seen = where, fault, after, 0, []

    def write(self, log):
        self.seen.append(log.env_steps)
        self._do("write", log)

    def flush(self):
        self._do("flush", None)

    def close(self):
        self._do("close", None)

    def _do(self, method, log):
        if method == self.where:
            self.calls += 1
            if self.calls >= (self.after if method == "write" else 1):
                self.fault(log)


def raising(error):
    def fault(log):
        raise error

    return fault


def hang(log):
    threading.Event().wait()


def spin(log):
    end = time.monotonic() + 4  # holds the interpreter like a loop without an end
    while time.monotonic() < end:
        pass


def clear(log):
    for name in ("rollout", "recent", "trainer", "learn", "time", "evaluation"):
        getattr(log, name).clear()
    log.finished.clear()


def inflate(log):
    log.recent["mean_ep_return"] = 1e9  # a best model, and a stop at a return, would follow it
    log.evaluation["mean_return"] = 1e9
    log.learn["loss"] = "nonsense"


def rewind(log):
    log.env_steps = log.episodes = log.learning_steps = 0


def replace(log):
    log.finished, log.rollout, log.recent = None, None, None


def grow(log):
    log.finished.extend(log.finished * 3)
    log.rollout["rollout_len"] = 10**9


FAULTS = {
    f"{name} in {where}": (where, fault)
    for where in ("write", "flush", "close")
    for name, fault in {
        "OSError": raising(OSError("no space left on device")),
        "TimeoutError": raising(TimeoutError("its own")),
        "SystemExit": raising(SystemExit(3)),
        "KeyboardInterrupt": raising(KeyboardInterrupt()),
        "GeneratorExit": raising(GeneratorExit()),
        "RecursionError": lambda log: (lambda f: f(f))(lambda f: f(f)),
        "hanging": hang,
        "spinning": spin,
    }.items()
}
CHANGES = {f"{change.__name__} the log": ("write", change) for change in (clear, inflate, rewind, replace, grow)}
SILENT = set(CHANGES)  # nothing failed, so nothing is said


def run(folder, name, trackers=None):
    settings = LEAN | {"algorithm": "ppo", "results_dir": str(folder), "name": name, "stop_at_return": 1e6, "window": 1}
    return train(Experiment.from_flat(settings, "test"), Extras(trackers=trackers or ()), console=False).folder


def digest(folder):
    """Metrics without the clock, the weights' checksum, the best model and the status."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    plain = [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]
    weights = [path.name for place in ("agent", "models/best_agent") for path in (folder / place).glob("weights-*")]
    return plain, weights, json.loads((folder / "run.json").read_text())["status"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return digest(run(tmp_path_factory.mktemp("good"), "good"))


@pytest.mark.parametrize("case", some(list(FAULTS | CHANGES), 5))
def test_the_run_is_the_same_as_without_the_tracker(case, undisturbed, tmp_path, monkeypatch, tally):
    monkeypatch.setattr(guarded, "SECONDS", 1.5)  # a busy machine may let a thread wait
    bad, good = Bad(*(FAULTS | CHANGES)[case]), Bad("nowhere", hang)
    started = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = run(tmp_path, "bad", lambda _: [bad, good])
    assert digest(folder) == undisturbed
    assert good.seen == [row["env_steps"] for row in undisturbed[0]], "the trackers behind it see the true logs"
    said = [str(warning.message) for warning in caught if warning.category is TrackerFailed]
    assert len(said) == (0 if case in SILENT else 1), said
    assert all("Bad failed" in text and "training continues" in text for text in said)
    if "write" in case and case not in SILENT:
        assert len(bad.seen) == 2, "it is called no more"
    assert time.monotonic() - started < 60
    tally(KIND)


def test_calls_keep_their_order_and_are_made_when_they_return():
    seen = Bad("nowhere", hang)
    tracker = guard(InThread(seen))
    for step in range(200):
        tracker.write(_log(step))
        assert seen.seen[-1] == step
    tracker.close()
    assert seen.seen == list(range(200))


def test_a_hanging_tracker_is_waited_for_once(tally):
    tracker = guard(InThread(Bad("write", hang, after=1), seconds=0.2))
    started = time.monotonic()
    with pytest.warns(TrackerFailed, match=r"did not return within 0\.2 seconds"):
        tracker.write(_log(0))
    for step in range(50):
        tracker.write(_log(step))
    tracker.flush()
    tracker.close()
    assert time.monotonic() - started < 2
    tally(KIND)


def test_what_a_hanging_tracker_holds_does_not_change_under_it(tally):
    """It may wake up much later: its log is its own."""
    held, go_on = [], threading.Event()

    class Slow(Bad):
        def write(self, log):
            go_on.wait(10)
            held.append(dict(log))

    tracker, log = guard(InThread(Slow("nowhere", hang), seconds=0.2)), _log(7)
    before = dict(log)
    with pytest.warns(TrackerFailed):
        tracker.write(log)
    log.recent["mean_ep_return"] = -1.0
    go_on.set()
    for _ in range(100):
        time.sleep(0.01)
        if held:
            break
    assert held == [before]
    tally(KIND)


def _log(step):
    return guarded.Log(step, 0, step, recent={"mean_ep_return": 1.0})
