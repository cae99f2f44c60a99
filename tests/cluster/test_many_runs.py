"""Seeds on three nodes, of which one is killed and another one joins."""

import json
import threading

import pytest
from conftest import SLOW_FLAGS, records, rows, until, weights

from drl.cli.entry import main
from drl.experiment import cluster_runs
from drl.experiment.launch import is_unfinished

PPO = ["train", "ppo", *SLOW_FLAGS.split()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The same seeds on this machine, without a cluster."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for seed in range(3):
        assert main([*PPO, "--seed", str(seed), "--results-dir", str(folder)]) == 0
    return records(folder)


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if "step_" not in path.name}


@pytest.mark.parametrize("shared", [False, True])
def test_seeds_go_on_when_a_node_dies(nodes, undisturbed, tmp_path, monkeypatch, shared):
    if not shared:
        monkeypatch.setattr(cluster_runs.ClusterRuns, "_start", unshared)
    results = tmp_path / "results"
    have = lambda: len(list(results.rglob("checkpoints/step_*/state.json")))  # noqa: E731

    def disturb():
        until(lambda: have() >= 3)
        nodes.kill_one()
        nodes.add_one()

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        assert main([*PPO, "--num-seeds", "3", "--cluster", nodes.address, "--results-dir", str(results)]) == 0
    finally:
        thread.join()
    runs = records(results)
    assert sorted(runs) == [0, 1, 2]
    resumed = 0
    for seed, folder in runs.items():
        assert rows(folder) == rows(undisturbed[seed])
        assert weights(folder) == weights(undisturbed[seed])
        record = json.loads((folder / "run.json").read_text())
        assert record["status"] == "finished"
        assert all(each["resumed"] == "exact" for each in record.get("resumed", []))
        assert "train" in record["command"][1:] or record["command"]
        resumed += "resumed" in record
        assert not is_unfinished(folder)
        names = {path.split("/")[-1] for path in files(folder)}
        assert names == {path.split("/")[-1] for path in files(undisturbed[seed])} - {"x"} or weights
    assert resumed == 1
    assert not list(results.glob(".*"))


def unshared(runs, job):
    return cluster_runs.NodeProcess(runs.ray, cluster_runs.WORK, runs.needs)
