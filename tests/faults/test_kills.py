"""SIGKILL at random moments: a resumed run has the metrics and the weights of one that was never killed."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fault_cases import LONG, some

from drl.cli.entry import main
from drl.core.state_files import read_sealed
from drl.runs.folder.checkpoints import Checkpoints
from tests.run_files import rows, weights

KIND = "SIGKILL"
LEAN = "--no-preset --num-envs 2 --hidden-sizes 16 --total-timesteps 1500 --checkpoint-every 200 --evaluate-every 500"
LEAN += " --evaluation-episodes 2 --quiet --no-plots --no-video --no-tensorboard"
REPLAY = "--warmup 100 --batch-size 16 --capacity 400 --updates-per-log 40"
CASES = {
    "ppo": "--rollout-length 32 --minibatches 2 --normalize-obs --normalize-reward",
    "a2c": "--rollout-length 16",
    "reinforce": "--episodes-per-step 2",
    "dqn": f"{REPLAY} --prioritized --n-step 3 --noisy --dueling --distributional c51",
    "ddpg": f"{REPLAY} --env Pendulum-v1",
    "td3": f"{REPLAY} --env Pendulum-v1",
    "sac": f"{REPLAY} --env Pendulum-v1 --vectorization async",
    "tqc": f"{REPLAY} --env Pendulum-v1",
    "crossq": f"{REPLAY} --env Pendulum-v1 --critic-hidden-sizes 16",
    "normalized_sac": f"{REPLAY} --env Pendulum-v1",
}
JAX = {
    "ppo": "--rollout-length 32 --minibatches 2",
    "dqn": f"{REPLAY} --prioritized",
    "sac": f"{REPLAY} --env Pendulum-v1 --vectorization sync",
}
KILLS = 8 if LONG else 2  # of each algorithm, one run after the other
JAX_KILLS = 2


def words(algorithm, flags, folder):
    env = [] if "--env" in flags else ["--env", "CartPole-v1"]
    eager = [] if "--compile" in flags or "jax" in flags else ["--compile", "off"]
    return ["train", algorithm, *LEAN.split(), *eager, *env, *flags.split(), "--results-dir", str(folder)]


def quietly(arguments):
    """The body of a process that will be killed."""
    os.setpgid(0, 0)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    os._exit(main(arguments))


def forked(arguments):
    process = multiprocessing.get_context("fork").Process(target=quietly, args=(arguments,))
    process.start()
    return process


def started(arguments):
    return subprocess.Popen([sys.executable, "-m", "drl.cli.entry", *arguments], stdout=subprocess.DEVNULL)


def kill_and_resume(start, arguments, folder, seconds, kills, rng):
    """Kill the run at random moments, then let it end; how many kills hit it while it ran."""
    hits = 0
    for attempt in range(kills + 1):
        run = next((path.parent for path in folder.rglob("run.json")), None)
        process = start(["resume", str(run)] if run else arguments)
        if attempt == kills:
            process.join() if hasattr(process, "join") else process.wait()
            break
        time.sleep(rng.uniform(0.0, 0.6 * seconds))
        alive = process.is_alive() if hasattr(process, "is_alive") else process.poll() is None
        if alive:
            os.kill(process.pid, signal.SIGKILL)
        process.join() if hasattr(process, "join") else process.wait()
        run = next((path.parent for path in folder.rglob("run.json")), None)
        if run is not None and alive:
            hits += 1
            assert read_sealed(run / "run.json", 2)["status"] != "running"
            agents = [*run.glob("agent/card.json"), *run.glob("models/best_agent/card.json")]
            assert main(["evaluate", str(run), "--episodes", "1"]) == (0 if agents else 2)
            stored = Checkpoints(run / "checkpoints").stored()
            assert len(stored) <= 3  # one may be about to be deleted
    return hits


@pytest.fixture
def _nobody_is_left_behind():
    yield
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("_nobody_is_left_behind")
@pytest.mark.parametrize("algorithm", some(list(CASES), 1))
def test_pytorch(algorithm, tmp_path, tally):
    check(algorithm, CASES[algorithm], forked, KILLS, tmp_path, tally)


if LONG:  # a process of JAX takes many seconds to start, and must not be forked

    @pytest.mark.parametrize("algorithm", JAX)
    def test_jax(algorithm, tmp_path, tally):
        check(algorithm, f"{JAX[algorithm]} --engine jax", started, JAX_KILLS, tmp_path, tally)

    @pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
    def test_compiled(algorithm, tmp_path, tally):
        check(algorithm, f"{CASES[algorithm]} --compile on", started, 1, tmp_path, tally)


def check(algorithm, flags, start, kills, tmp_path, tally):
    began = time.monotonic()
    process = start(words(algorithm, flags, tmp_path / "whole"))
    process.join() if hasattr(process, "join") else process.wait()
    seconds = time.monotonic() - began
    whole = next((tmp_path / "whole").rglob("run.json")).parent
    hits, rng = 0, random.Random(algorithm + flags)
    for number in range(3 if LONG else 1):
        folder = tmp_path / f"killed{number}"
        hits += kill_and_resume(start, words(algorithm, flags, folder), folder, seconds, kills, rng)
        (run,) = (path.parent for path in folder.rglob("run.json"))
        assert rows(run) == rows(whole)
        assert weights(run) == weights(whole)
        best = [each / "models" / "best_agent" / "card.json" for each in (run, whole)]
        assert best[0].exists() == best[1].exists()
        assert not best[0].exists() or best[0].read_text() == best[1].read_text()
        record = read_sealed(run / "run.json", 2)
        assert record["status"] == "finished"
        assert all(each["resumed"] == "exact" for each in record.get("resumed", []))
        assert not list(Path(run).rglob("*.part"))
    tally("SIGKILL", hits)
