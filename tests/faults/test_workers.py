"""Worker processes that raise, exit, crash, are killed or hang: named in time, and none is left behind."""

import functools
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from broken_envs import Broken
from fault_cases import LONG, some
from killed_parents import kill_the_parent

from drl.cli.entry import main
from drl.core.errors import EnvFailed
from drl.envs.async_vec_env import AsyncVecEnv

KIND = "workers"
pytestmark = pytest.mark.filterwarnings("default")

ENV = "tests.faults.broken_envs:Broken-v0"
TINY = "--num-envs 2 --total-timesteps 40 --evaluate-every 0 --evaluation-episodes 1 --compile off --threads 1 --quiet"
TINY += " --no-plots --no-video --no-tensorboard --hidden-sizes 8 --no-preset --vectorization async"
SETTINGS = {
    "ppo": "--rollout-length 8 --minibatches 1",
    "dqn": "--warmup 8 --batch-size 4 --capacity 100",
    "sac": "--warmup 8 --batch-size 4 --capacity 100",
}
SAID = {
    "hang": "no answer within 1 s; raise --worker-timeout",
    "spin": "no answer within 1 s; raise --worker-timeout",
    "locked": "no answer within 1 s; raise --worker-timeout",
    "die": "its worker process died (exit code 7)",
    "die0": "its worker process died (exit code 0)",
    "abort": f"its worker process died (exit code -{signal.SIGABRT.value})",
    "segfault": f"its worker process died (exit code -{signal.SIGSEGV.value})",
    "killed": "its worker process died (exit code -9)",
    "raise": "ValueError: the wheel came off",
    "exit": "SystemExit: 3",
    "keyboard": "KeyboardInterrupt",
}
HANGS = ("hang", "spin", "locked")
FAILS = [(f"{place}:{deed}", SAID[deed]) for deed in SAID for place in ("step", "reset", "worker")]


@pytest.fixture(autouse=True)
def _nobody_is_left_behind(monkeypatch):
    monkeypatch.setattr("drl.envs.async_vec_env.GRACE", 0.5)
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


def _train(tmp_path, capfd, algorithm, how):
    kwargs = [f"how={how}", f"continuous={algorithm == 'sac'}"]
    seconds = 1 if how.endswith(HANGS) else 60
    flags = [*TINY.split(), *SETTINGS[algorithm].split(), "--results-dir", str(tmp_path), "--worker-timeout"]
    code = main(["train", algorithm, "--env", ENV, "--env-kwargs", *kwargs, *flags, str(seconds)])
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    return code, err


@pytest.mark.default("0-step:hang-*", "13-*", "26-*")
@pytest.mark.parametrize(("number", "how", "said"), some([(i, *case) for i, case in enumerate(FAILS)], 5))
def test_it_is_named_in_time(tmp_path, capfd, tally, number, how, said):
    started = time.monotonic()
    code, err = _train(tmp_path, capfd, list(SETTINGS)[number % 3], how)
    assert code == 5
    assert "drl: environment 'Broken-v0', environment " in err
    assert said in err
    assert time.monotonic() - started < 60
    tally(KIND)


ENDS = ["hang", "spin", "locked", "die", "killed", "segfault", "raise", "exit", "keyboard"]


@pytest.mark.parametrize("deed", some(ENDS, 2))
def test_the_run_is_saved_whatever_happens_in_close(tmp_path, capfd, tally, deed):
    code, err = _train(tmp_path, capfd, "ppo", f"worker_close:{deed}")
    assert code == 0, err
    assert [json.loads(path.read_text())["status"] for path in tmp_path.rglob("run.json")] == ["finished"]
    if deed not in ("die", "killed", "segfault"):
        assert "environment 0' could not be closed" in err
    tally(KIND)


def _async(*hows, timeout=60.0):
    return AsyncVecEnv([functools.partial(Broken, how) for how in hows], 0, "Broken-v0", timeout=timeout)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1])
def test_one_that_is_killed_while_others_hang_is_named_at_once(tally, number):
    with _async("step:hang", "step:hang") as envs:
        envs.reset()
        envs.step(np.zeros(2, np.int64))
        envs.step(np.zeros(2, np.int64))
        threading.Timer(0.3, os.kill, (envs.processes[1].pid, number)).start()
        with pytest.raises(EnvFailed, match=rf"environment 1 .*died \(exit code -{number.value}\)"):
            envs.step(np.zeros(2, np.int64))
    tally(KIND)


def test_signals_to_the_whole_group_leave_workers_to_the_parent(tally):
    with _async("never", "never") as envs:
        envs.reset()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for process in envs.processes:
                os.kill(process.pid, number)
        envs.step(np.zeros(2, np.int64))
        assert all(process.is_alive() for process in envs.processes)
    tally(KIND)


def test_an_interrupted_call_does_not_mix_up_answers(tally, monkeypatch):
    with _async("never", "never") as envs:
        envs.reset()

        def interrupt(_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(envs._selector, "select", interrupt)
            with pytest.raises(KeyboardInterrupt):
                envs.step(np.zeros(2, np.int64))
        with pytest.raises(EnvFailed, match="interrupted; make a new environment"):
            envs.step(np.zeros(2, np.int64))
    tally(KIND)


def test_workers_whose_spaces_differ(tally):
    fns = [Broken, functools.partial(Broken, continuous=True)]
    with pytest.raises(EnvFailed, match=r"environment 1 .*its spaces differ"):
        AsyncVecEnv(fns, 0, "Broken-v0")
    tally(KIND)


def test_one_that_cannot_play_its_actions_again_says_why(tally):
    with _async("never", "never") as envs:
        envs.reset()
        for _ in range(4):
            envs.step(np.zeros(2, np.int64))
        state = envs.state_dict()
    for how, said in (("step:raise", "ValueError: the wheel came off"), ("step:exit", "SystemExit: 3")):
        with _async("never", how) as envs:
            reason = envs.load_state_dict(state)
            assert reason.startswith(f"environment 1 of 'Broken-v0', played again with 4 actions, fails: {said}")
            assert envs.reset().shape == (2, 2), "the run can go on"
    tally(KIND, 2)


SCRIPT = """
import sys, threading, numpy as np
from drl.envs.make_vec_env import make_vec_env

def play():
    envs = make_vec_env("tests.faults.broken_envs:Broken-v0", 3, vectorization="async", timeout=1000.0,
                        env_kwargs={"how": sys.argv[1], "pids": sys.argv[2]})
    envs.reset()
    while True:
        envs.step(np.zeros(3, np.int64))

if sys.argv[3] == "main":
    play()
threading.Thread(target=play).start()
"""


ORPHANS = [(how, "main") for how in ("step:locked", "step:hang", "never", "step:spin", "reset:hang", "worker:locked")]
ORPHANS += [(how, "thread") for how in ("never", "step:hang", "step:spin", "reset:hang", "worker:hang")]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize(("how", "thread"), some(ORPHANS, 1))
def test_no_worker_survives_a_killed_parent(tmp_path, tally, how, thread):
    kill_the_parent([sys.executable, "-c", SCRIPT, how, str(tmp_path), thread], tmp_path, 4)
    tally(KIND)


@pytest.mark.skipif(not LONG, reason="a few seconds each")
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_no_worker_survives_a_parent_that_is_killed_while_it_starts_them(tmp_path, tally, processes):
    kill_the_parent([sys.executable, "-c", SCRIPT, "worker:hang", str(tmp_path), "main"], tmp_path, processes, 0.0)
    tally(KIND)


@pytest.mark.skipif(not LONG, reason="many seconds each")
@pytest.mark.parametrize("how", ["step:locked", "step:hang"])
@pytest.mark.parametrize("command", ["train", "search"])
def test_no_worker_survives_a_killed_command(tmp_path, tally, command, how):
    pids = tmp_path / "pids"
    pids.mkdir()
    config = tmp_path / "settings.yaml"
    settings = {"env_kwargs": [f"how={how}", f"pids={pids}"], "num_envs": 2}
    settings["vectorization"] = "async" if command == "train" else "sync"
    config.write_text(json.dumps(settings))
    common = ["dqn", "--env", ENV, "--config", str(config), "--results-dir", str(tmp_path / "results"), "--quiet"]
    more = [] if command == "train" else ["--n-jobs", "2", "--num-timesteps-per-trial", "99"]
    # The command's own environment, and two workers.
    kill_the_parent([sys.executable, "-m", "drl.cli.entry", command, *common, *more], pids, 3, 1.0)
    tally(KIND)
