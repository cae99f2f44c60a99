"""Seeds and a search on three nodes, of which one is killed and another one joins; signals; a driver that is killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from three_nodes import LONG, ROOT, SLOW_FLAGS, records, training, until

import drl
from drl.analysis import ablation
from drl.cli.entry import main
from drl.runs.folder.run_folder import is_in_use
from drl.runs.many_runs import RunFailed
from drl.search.run_search import run_search
from drl.search.search_plan import SearchConfig
from drl.search.search_worker import Job, run_job
from drl.settings.experiment import Experiment
from tests.cluster.waiting_env import ExitingCartPole
from tests.run_files import rows, weights

pytestmark = pytest.mark.full

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
    try:
        return {file.parents[2] for file in folder.rglob("checkpoints/step_*/state.json")}
    except FileNotFoundError:  # an old one was just deleted
        return set()


def names(folder):
    """Of all files but those with a step, a checksum or a time in their name."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name for name in found if not any(part in name for part in ("step_", "weights-", "tfevents"))}


@pytest.mark.parametrize("shared", [False, True] if LONG else [False])
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
    monkeypatch.setattr("drl.search.search_plan.SearchPlan.job", watched := _watch(asked))
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
    result = run_search("ppo", config, settings)
    assert result.counts["complete"] + result.counts["pruned"] == 5
    assert not result.counts["lost"]
    job = next(job for job in asked if job.number == result.ranking[-1].number)
    assert run_job(job, lambda *_: False, lambda: False).score == result.ranking[-1].score


def _watch(asked):
    from drl.search.search_plan import SearchPlan

    real = SearchPlan.job

    def job(plan, *arguments) -> Job:
        asked.append(real(plan, *arguments))
        return asked[-1]

    return job


def test_an_ablation_has_the_scores_of_one_machine(nodes, tmp_path, monkeypatch):
    two = {"plain": {"double": False}, "full": {"double": True}}
    monkeypatch.setattr(ablation, "variants", lambda switches: two)
    monkeypatch.setattr(ablation, "draw_ablation", lambda *_: None)
    tiny = {"algorithm": "dqn", "env": "drl/Match-v0", "total_timesteps": 120, "warmup": 20, "batch_size": 16}
    tiny |= {"num_envs": 1, "quiet": True, "name": "parts", "compile": "off", "updates_per_log": 50}
    base = Experiment.from_flat(tiny | {"results_dir": str(tmp_path), "cluster": nodes.address}, "test")
    folder, table = ablation.ablate_experiment(base, seeds=1, episodes=3)
    assert {row["variant"] for row in table} == set(two)
    assert len(list(folder.glob("*/*/run.json"))) == 2
    elsewhere = Experiment.from_flat(tiny | {"results_dir": str(tmp_path / "here")}, "test")
    assert ablation.ablate_experiment(elsewhere, seeds=1, workers=2, episodes=3)[1] == table


def test_a_process_that_exits_is_told_and_not_repeated(nodes, tmp_path):
    """The environment is an object of this process."""
    quiet = {"results_dir": str(tmp_path), "console": False, "vectorization": "sync"}
    with pytest.raises(RunFailed, match="seed 5: its process ended with exit code 7"):
        drl.train_seeds("ppo", env=lambda: ExitingCartPole(), seeds=[5], cluster=nodes.address, **quiet)
    (record,) = tmp_path.rglob("run.json")
    assert json.loads(record.read_text())["status"] == "unfinished"


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
        assert f"step_{record['env_steps']:012d}" in os.listdir(folder / "checkpoints"), "the last step is saved"
        assert not is_in_use(folder)
    until(lambda: not training())


def test_a_driver_that_is_killed_leaves_no_process(nodes, tmp_path):
    with command(nodes, tmp_path, "--num-seeds", "2", "--total-timesteps", "1000000000") as process:
        until(lambda: len(saved(tmp_path)) == 2)
        assert len(training()) == 2
        process.kill()
    until(lambda: not training())
    assert len(records(tmp_path)) == 2
    until(lambda: not any(is_in_use(folder) for folder in records(tmp_path).values()))


@pytest.mark.filterwarnings("ignore:collector")
def test_a_run_goes_on_when_the_node_of_a_collector_dies(nodes, disturbed, tmp_path):
    """Each node has one of three collectors; the run with one collector is undisturbed."""
    flags = [*PPO, "--num-envs", "3", "--env-blocks", "3", "--cluster", nodes.address, "--results-dir"]
    assert main([*flags, str(tmp_path / "calm"), "--num-collectors", "1"]) == 0

    def disturb():
        until(lambda: saved(tmp_path / "results"))
        nodes.kill_one()
        nodes.add_one()

    disturbed(disturb)
    assert main([*flags, str(tmp_path / "results"), "--num-collectors", "3", "--collector-restarts", "9"]) == 0
    (calm,), (run,) = records(tmp_path / "calm").values(), records(tmp_path / "results").values()
    assert rows(run) == rows(calm)
    assert weights(run) == weights(calm)
    until(lambda: not training())
