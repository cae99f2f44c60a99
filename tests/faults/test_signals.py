"""SIGINT, SIGTERM and SIGHUP, once, twice and thrice, wherever a run is: it stops soon, saves, and can be resumed."""

import json
import os
import signal
import time

import pytest
from fault_cases import some

from drl.cli.entry import main
from drl.runs import launch, session
from drl.runs.folder.checkpoints import Checkpoints
from drl.runs.folder.run_folder import Run
from drl.trainer.trainer import Trainer
from tests.faults import slow_env
from tests.run_files import rows

KIND = "signals"
SOON = 8.0  # seconds; 2 on a machine that is not busy with other tests
FLAGS = "--env tests.faults.slow_env:Slow-v0 --num-envs 2 --vectorization sync --hidden-sizes 8 --compile off"
FLAGS += (
    " --total-timesteps 512 --checkpoint-every 100 --evaluate-every 200 --evaluation-episodes 2 --num-checkpoints 0"
)
FLAGS += " --quiet --no-tensorboard"
PPO = ["train", "ppo", "--no-preset", *FLAGS.split(), "--rollout-length", "32", "--minibatches", "2"]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def send(number, times, wait=30.0):
    """The signals, and then work that takes long."""
    for _ in range(times):
        os.kill(os.getpid(), number)
    until = time.monotonic() + wait
    while time.monotonic() < until:
        time.sleep(0.01)


def once(function):
    """Calls a function only the first time."""
    calls = iter([function])
    return lambda: next(calls, lambda: None)()


def before(monkeypatch, owner, name, do):
    """Do something before a function is called."""
    real = getattr(owner, name)

    def wrapped(*arguments, **options):
        do()
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, wrapped)


def in_start_up(monkeypatch, fire):
    before(monkeypatch, launch, "open_trainer", fire)


def in_a_step(monkeypatch, fire):
    slow_env.SlowCartPole.steps = 0
    slow_env.first_do.append((300, fire))


def in_the_first_update(monkeypatch, fire):
    before(monkeypatch, Trainer, "_prepared", fire)


def in_evaluation(monkeypatch, fire):
    before(monkeypatch, session, "evaluate", fire)


def in_plots(monkeypatch, fire):
    before(monkeypatch, session, "plot_run", fire)


def in_the_film(monkeypatch, fire):
    before(monkeypatch, session, "film", fire)


PLACES = (in_start_up, in_a_step, in_the_first_update, in_evaluation, in_plots, in_the_film)
CASES = [(place, number, times) for place in PLACES for number in SIGNALS for times in (1, 2, 3)]
SAVING = [(number, times) for number in SIGNALS for times in (1, 2, 3)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert main([*PPO, "--results-dir", str(folder), "--no-plots", "--no-video"]) == 0
    return next(folder.rglob("run.json")).parent


@pytest.fixture(autouse=True)
def _no_harm_is_left():
    yield
    slow_env.first_do.clear()


def assert_resumed(folder, whole):
    assert main(["resume", str(folder), "--trust"]) == 0
    assert rows(folder) == rows(whole)
    (one,), (two,) = ((each / "agent").glob("weights-*") for each in (folder, whole))
    assert one.name == two.name
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


@pytest.mark.default("in_start_up-2-1", "in_a_step-15-2")
@pytest.mark.parametrize(("place", "number", "times"), some(CASES, 8))
def test_a_run_stops_soon_and_is_resumed(place, number, times, whole, tmp_path, monkeypatch, tally):
    sent = []

    def fire():
        sent.append(time.monotonic())
        send(number, times)

    with monkeypatch.context() as patch:
        place(patch, once(fire))
        assert main([*PPO, "--results-dir", str(tmp_path)]) == 128 + number
    assert time.monotonic() - sent[0] < SOON
    records = list(tmp_path.rglob("run.json"))
    if place is in_start_up:
        assert not records  # nothing was written
    else:
        (record,) = records
        over = place in (in_plots, in_the_film)
        expected = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}[number]
        assert json.loads(record.read_text())["status"] == ("finished" if over else expected)
        assert_resumed(record.parent, whole)
    tally("signals")


@pytest.mark.parametrize(("number", "times"), some(SAVING, 2))
@pytest.mark.parametrize("what", [(Checkpoints, "save"), (Run, "note")])
def test_what_is_being_saved_is_saved(what, number, times, whole, tmp_path, monkeypatch, tally):
    returned = []  # unless a signal breaks it off
    with monkeypatch.context() as patch:
        quick = once(lambda: returned.append(send(number, times, wait=0.2)))
        if what[0] is Run:  # the note of the end, not the first ones
            run_note = Run.note
            patch.setattr(Run, "note", lambda run, **e: (quick() if "final_evaluation" in e else 0, run_note(run, **e)))
        else:
            before(patch, *what, quick)
        assert main([*PPO, "--results-dir", str(tmp_path), "--no-plots", "--no-video"]) == 128 + number
    assert returned
    (record,) = tmp_path.rglob("run.json")
    assert not list(tmp_path.rglob("*.part"))
    assert_resumed(record.parent, whole)
    tally("signals")


@pytest.mark.parametrize(("number", "times"), some(SAVING, 1))
def test_an_endless_episode_is_left(number, times, tmp_path, tally):
    """REINFORCE learns from whole episodes and would wait forever."""
    slow_env.SlowCartPole.steps, started = 0, time.monotonic()
    slow_env.first_do.append((500, lambda: send(number, times)))
    flags = FLAGS.replace("Slow-v0", "Endless-v0").split()
    assert main(["train", "reinforce", "--no-preset", *flags, "--results-dir", str(tmp_path)]) == 128 + number
    assert time.monotonic() - started < SOON + 10
    assert len(list(tmp_path.rglob("checkpoints/step_*"))) == 1
    tally("signals")


def test_what_nohup_ignores_is_ignored(tmp_path, tally):
    before_it = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        slow_env.SlowCartPole.steps = 0
        slow_env.first_do.append((300, lambda: send(signal.SIGHUP, 1, wait=0.0)))
        assert main([*PPO, "--results-dir", str(tmp_path), "--no-plots", "--no-video"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before_it)
    tally("signals")
