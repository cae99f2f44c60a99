"""Seeds and a search on three nodes, of which one is killed and another one joins; signals; a driver that is killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from conftest import ROOT, SLOW_FLAGS, commands, records, rows, until, weights

from drl.cli.entry import main
from drl.experiment.run_folder import is_in_use
from drl.search.run_search import SearchConfig, search
from drl.search.search_worker import Job, run_job

PPO = ["train", "ppo", *SLOW_FLAGS.split()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The same seeds on this machine, without a cluster."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert main([*PPO, "--num-seeds", "3", "--results-dir", str(folder)]) == 0
    return records(folder)


@pytest.fixture
def disturbed():
    """Does something beside the test, and waits for its end."""
    threads = []

    def begin(work):
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield begin
    for thread in threads:
        thread.join()


def saved(folder):
    """Runs that have a checkpoint."""
    return {file.parents[2] for file in folder.rglob("checkpoints/step_*/state.json")}


def names(folder):
    """Of all files but those with a step, a checksum or a time in their name."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name for name in found if not any(part in name for part in ("step_", "weights-", "tfevents"))}


@pytest.mark.parametrize("shared", [True, False])
def test_seeds_go_on_when_a_node_dies(nodes, undisturbed, disturbed, tmp_path, shared):
    """With a URL everything comes back through the driver, as from nodes that do not see its folder."""
    results, url = tmp_path / "results", tmp_path / "url"
    flags = ["--num-seeds", "3", "--cluster", nodes.address, "--results-dir", str(results)]
    flags += [] if shared else ["--results-url", url.as_uri()]

    def disturb():
        until(lambda: len(saved(results)) == 3)
        nodes.kill_one()
        nodes.add_one()

    disturbed(disturb)
    assert main([*PPO, *flags]) == 0
    runs = records(results)
    assert sorted(runs) == [0, 1, 2]
    for seed, folder in runs.items():
        assert rows(folder) == rows(undisturbed[seed])
        assert weights(folder) == weights(undisturbed[seed])
        assert names(folder) == names(undisturbed[seed])
        if not shared:
            copy = url / folder.relative_to(results)
            assert names(copy) == names(folder) - {".lock"}
            assert all((copy / name).read_bytes() == (folder / name).read_bytes() for name in names(copy))
    told = [json.loads((folder / "run.json").read_text()) for folder in runs.values()]
    assert [record["status"] for record in told] == ["finished"] * 3
    assert [[each["resumed"] for each in record["resumed"]] for record in told if "resumed" in record] == [["exact"]]
    assert not list(results.glob(".*"))


def test_a_search_goes_on_when_a_node_dies(nodes, disturbed, tmp_path, monkeypatch):
    """Its trials have the scores that they have elsewhere."""
    asked = []
    monkeypatch.setattr("drl.search.run_search._Plan.job", watched := _watch(asked))
    assert watched
    settings = {"num_envs": 2, "rollout_length": 16, "hidden_sizes": [8], "epochs": 1, "minibatches": 1}
    settings |= {"vectorization": "sync", "compile": "off"}

    def disturb():
        until(lambda: len(asked) >= 3)
        nodes.kill_one()
        nodes.add_one()

    disturbed(disturb)
    config = SearchConfig(
        env="tests.cluster.waiting_env:Waiting-v0", n_trials=5, n_jobs=3, num_timesteps_per_trial=512, reports=4,
        evaluation_episodes=1, rerun_best=1, rerun_seeds=1, plots=False, quiet=True, results_dir=str(tmp_path),
        cluster=nodes.address,
    )  # fmt: skip
    result = search("ppo", config, settings)
    assert result.counts["complete"] + result.counts["pruned"] == 5
    assert not result.counts["lost"]
    job = next(job for job in asked if job.number == result.ranking[-1].number)
    assert run_job(job, lambda *_: False, lambda: False).score == result.ranking[-1].score


def _watch(asked):
    from drl.search.run_search import _Plan

    real = _Plan.job

    def job(plan, *arguments) -> Job:
        asked.append(real(plan, *arguments))
        return asked[-1]

    return job


@contextlib.contextmanager
def command(nodes, folder, *flags):
    """The driver as a process of its own."""
    words = [sys.executable, "-m", "drl.cli.entry", *PPO, "--cluster", nodes.address, "--results-dir", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "start_new_session": True}
    with subprocess.Popen([*words, *flags], env=environment, **quiet) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_signal_saves_every_run(nodes, tmp_path):
    endless = ["--total-timesteps", "1000000000", "--checkpoint-every", "128"]
    url = ["--results-url", (tmp_path / "url").as_uri()]
    with command(nodes, tmp_path / "results", "--num-seeds", "2", *endless, *url) as process:
        until(lambda: len(saved(tmp_path / "results")) == 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 128 + signal.SIGTERM
    for folder in records(tmp_path / "results").values():
        record = json.loads((folder / "run.json").read_text())
        assert record["status"] == "terminated"
        assert record["env_steps"] > 128
        assert f"step_{record['env_steps']:012d}" in os.listdir(folder / "checkpoints"), "the last step is saved"
        assert not is_in_use(folder)
    until(lambda: not training())


def test_a_driver_that_is_killed_leaves_no_process(nodes, tmp_path):
    with command(nodes, tmp_path, "--num-seeds", "2", "--total-timesteps", "1000000000") as process:
        until(lambda: len(saved(tmp_path)) == 2)
        assert len(training()) == 2
        process.kill()
    until(lambda: not training())
    assert not any(is_in_use(folder) for folder in records(tmp_path).values())


def training():
    """The processes that train."""
    return [pid for pid, words in commands().items() if "run_program" in words]
