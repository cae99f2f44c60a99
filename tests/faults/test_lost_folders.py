"""The run's folder is full, read-only, deleted or moved while it trains: training goes on and nothing is lost."""

import errno
import json
import os
import shutil
import warnings

import pytest
from failing_disk import Disk, failing
from fault_cases import some

from drl.core.errors import SaveFailed
from drl.runs import launch
from drl.runs.folder import run_writer
from drl.runs.folder.checkpoints import Checkpoints
from drl.runs.folder.run_writer import SavingFailed
from drl.runs.launch import is_unfinished, resume, train
from drl.settings.experiment import Experiment
from tests.run_files import rows, weights

KIND = "run folders"
LEAN = {
    "env": "CartPole-v1", "num_envs": 2, "hidden_sizes": [8], "total_timesteps": 640, "checkpoint_every": 100,
    "evaluate_every": 0, "evaluation_episodes": 1, "compile": "off", "quiet": True, "plots": False, "video": False,
    "tensorboard": False, "seed": 3,
}  # fmt: skip
ALGORITHMS = {
    "ppo": {"rollout_length": 32, "minibatches": 2},
    "dqn": {"warmup": 60, "batch_size": 8, "capacity": 200, "updates_per_log": 30},
}


class ReadOnly(Disk):
    """Nothing below the folder can be changed."""

    def fails(self, name):
        if super().fails(name):
            raise self.error()
        return False

    def error(self):
        return OSError(errno.EROFS, os.strerror(errno.EROFS))


class Fault:
    """A tracker that does harm at one log and, if it is told to, ends it at another."""

    def __init__(self, harm, at, ends=None):
        self.harm, self.at, self.ends, self.count = harm, at, ends, 0

    def write(self, log):
        self.count += 1
        if self.count == self.at:
            self.harm()
        if self.ends is not None and self.count == self.ends[0]:
            self.ends[1]()

    def close(self):
        """Nothing."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Undisturbed runs."""
    folder = tmp_path_factory.mktemp("whole")
    return {algorithm: run(algorithm, folder, None) for algorithm in ALGORITHMS}


def run(algorithm, folder, fault, **settings):
    flat = LEAN | ALGORITHMS[algorithm] | {"algorithm": algorithm, "results_dir": str(folder)} | settings
    own = launch._trackers
    with pytest.MonkeyPatch.context() as patch:
        if fault is not None:
            patch.setattr(launch, "_trackers", lambda _, run, console: [*own(_, run, console), fault(run)])
        return train(Experiment.from_flat(flat, "test"), console=False)


def assert_same(finished, other):
    assert finished.status == "finished"
    assert rows(finished.folder) == rows(other.folder)
    assert weights(finished.folder) == weights(other.folder)
    episodes = [(each.folder / "episodes.jsonl").read_text() for each in (finished, other)]
    assert episodes[0] == episodes[1]
    assert len((finished.folder / "progress.csv").read_text().splitlines()) == len(rows(other.folder)) + 1
    assert json.loads((finished.folder / "run.json").read_text())["status"] == "finished"
    assert not is_unfinished(finished.folder)


CASES = [(algorithm, at) for at in (1, 2, 4, 7) for algorithm in ALGORITHMS]


@pytest.mark.parametrize(("algorithm", "at"), some(CASES, 2))
@pytest.mark.parametrize("harm", ["deleted", "moved"])
def test_a_folder_that_is_not_there_any_more(whole, tmp_path, tally, algorithm, at, harm):
    def fault(run):
        def do_harm():
            if harm == "deleted":
                shutil.rmtree(run.folder)
            else:
                run.folder.rename(tmp_path / "moved")

        return Fault(do_harm, at)

    with pytest.warns(SavingFailed, match="deleted" if harm == "deleted" else "moved to") as warned:
        finished = run(algorithm, tmp_path / "results", fault)
    assert len(warned) == 1
    assert_same(finished, whole[algorithm])
    if harm == "moved":
        assert finished.folder == tmp_path / "moved"
    tally("run folders")


@pytest.mark.parametrize(("algorithm", "at"), some(CASES, 2))
@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_room_comes_back(whole, tmp_path, tally, algorithm, at, kind, monkeypatch):
    monkeypatch.setattr(run_writer, "RETRY", 0.0 if at % 2 else 1000.0)  # back at once, or when the run ends
    monkeypatch.setattr(run_writer, "MEMORY", memory := tmp_path / "memory")
    memory.mkdir()
    home = tmp_path / "results"
    disk = (ReadOnly if kind == "read-only" else Disk)(home, "full")
    fault = Fault(lambda: setattr(disk, "fails_at", 0), at, (at + 2, lambda: setattr(disk, "fails_at", None)))
    with failing(disk), pytest.warns(SavingFailed, match="until there is room") as warned:
        finished = run(algorithm, home, lambda run: fault)
    assert len(warned) == 1
    assert finished.folder.is_relative_to(home)
    assert_same(finished, whole[algorithm])
    assert list(memory.iterdir()) == []
    assert Checkpoints(finished.folder / "checkpoints").load_newest()["trainer"]
    assert Checkpoints(finished.folder / "checkpoints").steps()[-1] == rows(finished.folder)[-1]["env_steps"]
    tally("run folders")


@pytest.mark.parametrize(("algorithm", "at"), some(CASES, 1))
def test_another_folder(whole, tmp_path, tally, algorithm, at, monkeypatch):
    """The disk stays full: the run ends in --fallback-dir, or in memory with exit code 4."""
    monkeypatch.setattr(run_writer, "LAST_TRIES", (0.0, 0.0))
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(run_writer, "MEMORY", memory)
    for fallback in (str(tmp_path / "elsewhere"), None):
        disk = Disk(tmp_path / "results", "full")
        fault = Fault(lambda disk=disk: setattr(disk, "fails_at", 0), at)
        with failing(disk), warnings.catch_warnings():
            warnings.simplefilter("ignore", SavingFailed)
            if fallback is not None:
                finished = run(algorithm, tmp_path / "results", lambda run, fault=fault: fault, fallback_dir=fallback)
                assert finished.folder.is_relative_to(tmp_path / "elsewhere")
                assert_same(finished, whole[algorithm])
            else:
                with pytest.raises(SaveFailed, match="in memory: copy it") as failed:
                    run(algorithm, tmp_path / "results", lambda run, fault=fault: fault)
                assert failed.value.exit_code == 4
        tally("run folders")
    (kept,) = memory.rglob("metrics.jsonl")
    assert rows(kept.parent) == rows(whole[algorithm].folder)
    assert weights(kept.parent) == weights(whole[algorithm].folder)


def test_no_room_anywhere(whole, tmp_path, tally, monkeypatch):
    """Nothing can be written from some log on, and then again: rows and state waited in memory."""
    monkeypatch.setattr(run_writer, "LAST_TRIES", (0.0,))
    disk = Disk(tmp_path, "full")
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(run_writer, "MEMORY", memory)
    fault = Fault(lambda: setattr(disk, "fails_at", 0), 2, (6, lambda: setattr(disk, "fails_at", None)))
    with failing(disk), pytest.warns(SavingFailed, match="fallback failed, too"):
        finished = run("ppo", tmp_path / "results", lambda run: fault)
    assert_same(finished, whole["ppo"])
    tally("run folders")


def test_a_run_in_its_fallback_folder_can_be_resumed(whole, tmp_path, tally):
    class Bomb(BaseException):
        """As SIGKILL: nothing is saved any more."""

    def explode():
        raise Bomb

    disk = Disk(tmp_path / "results", "full")
    fault = Fault(lambda: setattr(disk, "fails_at", 0), 2, (7, explode))
    with failing(disk), pytest.warns(SavingFailed), pytest.raises(Bomb):
        run("dqn", tmp_path / "results", lambda run: fault, fallback_dir=str(tmp_path / "elsewhere"))
    finished = resume(next((tmp_path / "elsewhere").rglob("run.json")).parent, console=False)
    assert_same(finished, whole["dqn"])
    tally("run folders")
