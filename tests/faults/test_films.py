"""Whatever the renderer does, a trained run is saved and finished; it is left soon, and nobody is left behind."""

import json
import os
import signal
import sys
import threading
import time

import pytest
from fault_cases import some
from killed_parents import alive, kill_the_parent, until

from drl.cli.entry import main

KIND = "films"
pytestmark = pytest.mark.filterwarnings("default")

TINY = "ppo --env tests.faults.broken_envs:Broken-v0 --no-preset --num-envs 2 --total-timesteps 32 --evaluate-every 0"
TINY += " --evaluation-episodes 1 --compile off --quiet --no-plots --no-tensorboard --hidden-sizes 8 --vectorization"
TINY += " sync --rollout-length 8 --minibatches 1"
SAID = {
    "abort": f"its process died (exit code -{signal.SIGABRT.value})",
    "segfault": f"its process died (exit code -{signal.SIGSEGV.value})",
    "killed": "its process died (exit code -9)",
    "die0": "its process died (exit code 0)",
    "hang": "no answer within 4 s",
    "spin": "no answer within 4 s",
    "locked": "no answer within 4 s",
    "exit": "SystemExit: 3",
    "memory": "MemoryError",
    "pipe": "BrokenPipeError: the simulator is gone",
}
HANGS = ("hang", "spin", "locked")


def flags(folder, deed, **more):
    options = [word for name, value in more.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return ["train", *TINY.split(), "--results-dir", str(folder), "--env-kwargs", f"how=render:{deed}", *options]


def run_in(folder):
    (record,) = folder.rglob("run.json")
    return record.parent, json.loads(record.read_text())


@pytest.mark.default("killed")
@pytest.mark.parametrize("deed", some(list(SAID), 4))
def test_a_renderer_that_breaks_costs_one_line(tmp_path, capfd, tally, deed):
    seconds = 4 if deed in HANGS else 60
    assert main(flags(tmp_path, deed, worker_timeout=seconds)) == 0
    folder, record = run_in(tmp_path)
    assert record["status"] == "finished"
    assert (folder / "agent" / "card.json").is_file()
    assert list((folder / "videos").iterdir()) == []
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("drl: warning: the run has no video: environment")
    assert SAID[deed] in line
    tally(KIND)


def test_evaluate_says_its_numbers_before_a_film_fails(tmp_path, capfd, tally):
    assert main([*flags(tmp_path, "abort"), "--no-video"]) == 0
    folder, _ = run_in(tmp_path)
    capfd.readouterr()
    assert main(["evaluate", str(folder), "--trust", "--episodes", "2", "--video"]) == 5
    out, err = capfd.readouterr()
    assert "mean return 7.00" in out
    assert "cannot be drawn: its process died" in err
    assert main(["replay", str(folder), "--trust", "--video"]) == 5
    assert "cannot be drawn: its process died" in capfd.readouterr().err
    tally(KIND, 2)


def in_children(pids):
    """The processes other than this one that made an environment."""
    return [int(file.name) for file in pids.iterdir() if int(file.name) != os.getpid()]


@pytest.mark.parametrize("number", some([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], 1))
def test_a_signal_ends_a_film_that_hangs(tmp_path, tally, number):
    pids = tmp_path / "pids"
    pids.mkdir()

    def send():
        until(lambda: in_children(pids))
        time.sleep(0.5)  # it is drawing now
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    command = flags(tmp_path, "locked", worker_timeout=600)
    assert main([*command[:-2], f"pids={pids}", *command[-2:]]) == 128 + number
    sender.join()
    assert run_in(tmp_path)[1]["status"] == "finished"
    until(lambda: not any(alive(pid) for pid in in_children(pids)))
    tally(KIND)


@pytest.mark.full
@pytest.mark.parametrize("deed", some(["locked", "hang", "spin"], 1))
def test_a_film_ends_with_a_parent_that_is_killed(tmp_path, tally, deed):
    pids = tmp_path / "pids"
    pids.mkdir()
    command = flags(tmp_path, deed, worker_timeout=600)
    command = [sys.executable, "-m", "drl.cli.entry", *command[:-2], f"pids={pids}", *command[-2:]]
    kill_the_parent(command, pids, 2)  # the one that trains and the one that draws
    tally(KIND)
