"""MLflow never blocks or breaks training; what it is given arrives in the store."""

import os
from types import SimpleNamespace

import pytest

from drl.core.errors import MissingExtra
from drl.core.log import Log
from drl.runs.folder.checkpoints import Checkpoints
from drl.runs.launch import resume, train
from drl.settings.experiment import Experiment
from drl.tracking import mlflow_runs
from drl.tracking.guarded import Ending, TrackerFailed, guard
from drl.tracking.mlflow_runs import MlflowTracker

TINY = {
    "env": "CartPole-v1", "total_timesteps": 512, "rollout_length": 32, "num_envs": 2, "minibatches": 2,
    "hidden_sizes": [8], "checkpoint_every": 192, "evaluate_every": 0, "evaluation_episodes": 1, "compile": "off",
    "quiet": True, "plots": True, "video": False, "tensorboard": False, "keep_checkpoints": 9, "seed": 3,
    "mlflow_experiment": "cartpole", "group": "five seeds",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_server(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", *mlflow_runs.UNLESS_SET):
        monkeypatch.delenv(name, raising=False)
    yield
    for name in mlflow_runs.UNLESS_SET:  # set by the tracker
        os.environ.pop(name, None)


@pytest.mark.full
def test_the_real_library_keeps_a_run_and_a_resumed_one_continues_it(tmp_path):
    from mlflow.tracking import MlflowClient

    folder = train(Experiment.from_flat(TINY | {"results_dir": str(tmp_path)}, "test"), console=False).folder
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("cartpole").experiment_id

    def steps(run):
        history = client.get_metric_history(run.info.run_id, "learn/policy_loss")
        return sorted(metric.step for metric in history)

    (run,) = client.search_runs([experiment])
    assert (run.info.run_name, run.info.status) == (folder.name, "FINISHED")
    about = {"algorithm": "ppo", "env": "CartPole-v1", "engine": "torch", "seed": "3", "group": "five seeds"}
    assert run.data.tags.items() >= about.items()
    assert run.data.params.items() >= {"gamma": "0.99", "hidden_sizes": "[8]", "seed": "3"}.items()
    assert steps(run) == [64 * i for i in range(1, 9)]
    assert "final/mean_return" in run.data.metrics
    assert {each.path for each in client.list_artifacts(run.info.run_id)} == {"agent", "plots"}
    assert (tmp_path / "mlartifacts" / run.info.run_id / "artifacts" / "agent" / "card.json").is_file()

    for newer in Checkpoints(folder / "checkpoints").stored()[1:]:  # as if it had been killed before these
        newer.rename(newer.with_name(f".{newer.name}"))
    metrics = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(metrics[:5]))
    resume(folder, console=False)
    (again,) = client.search_runs([experiment])
    assert (again.info.run_id, again.info.status) == (run.info.run_id, "FINISHED")
    assert steps(again) == sorted(
        [64 * i for i in range(1, 9)] + [384, 448, 512]
    )  # it continues at 192; rows up to 320 had arrived


class FakeClient:
    """Remembers what it is asked to log."""

    def __init__(self):
        self.batches, self.ends, self.artifacts = [], [], []

    def log_batch(self, run_id, metrics=(), params=()):
        self.batches.append([(metric.key, metric.value, metric.step) for metric in metrics])

    def log_artifacts(self, run_id, folder, part):
        self.artifacts.append(part)

    def set_terminated(self, run_id, status):
        self.ends.append(status)


@pytest.fixture
def client(monkeypatch):
    fake = FakeClient()
    monkeypatch.setattr(MlflowTracker, "_started", lambda self: (fake, "id"))
    return fake


def make(tmp_path):
    return MlflowTracker("experiment", {}, {}, tmp_path, "name", "id")


def log(step, **learn):
    return Log(env_steps=step, episodes=1, learning_steps=step, learn=learn)


@pytest.mark.full
@pytest.mark.parametrize(("status", "theirs"), [("finished", "FINISHED"), ("interrupted", "KILLED"), (None, "FAILED")])
def test_rows_go_together_and_a_run_ends_as_it_did(tmp_path, client, status, theirs):
    (tmp_path / "plots").mkdir()
    tracker = make(tmp_path)
    tracker.write(log(8, loss=0.5))
    tracker.write(log(16, loss=float("nan")))
    if status is None:
        tracker.close()
    else:
        tracker.finish(Ending(tmp_path, status, {"mean_return": 7.0}))
    tracker.close()
    rows = [metric for batch in client.batches for metric in batch]
    assert ("learn/loss", 0.5, 8) in rows
    assert [step for name, _, step in rows if name == "learn/loss"] == [8]
    assert (("final/mean_return", 7.0, 16) in rows) is (status is not None)
    assert client.artifacts == [], "an empty folder"
    assert client.ends == [theirs]


@pytest.mark.full
def test_a_transaction_is_never_too_large(tmp_path, client):
    tracker = make(tmp_path)
    for step in range(300):
        tracker.write(log(step, **{f"n{i}": 1.0 for i in range(20)}))
    tracker.close()
    assert max(len(batch) for batch in client.batches) <= mlflow_runs.MOST_METRICS
    assert sum(len(batch) for batch in client.batches) == 300 * 22


@pytest.mark.full
def test_a_store_that_cannot_be_used_costs_its_own_output_only(tmp_path, monkeypatch):
    monkeypatch.setattr(mlflow_runs, "PAUSES", ())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://at.all")
    tracker = guard(make(tmp_path))
    tracker.tracker._thread.join()
    with pytest.warns(TrackerFailed, match="training continues"):
        tracker.write(log(8))
    tracker.write(log(16))
    tracker.finish(Ending(tmp_path))
    assert not (tmp_path / "mlflow.db").exists(), "the user's own store counts"


def test_runs_that_start_together_try_again(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    calls = []

    class Racing:
        def __init__(self, tracking_uri):
            calls.append(tracking_uri)

        def get_experiment_by_name(self, name):
            return SimpleNamespace(experiment_id="7") if len(calls) > 2 else None

        def create_experiment(self, name, artifact_location):
            raise RuntimeError("RESOURCE_ALREADY_EXISTS")

    tracker = object.__new__(MlflowTracker)
    tracker.store, tracker.experiment = tmp_path, "experiment"
    assert tracker._opened(Racing)[1] == "7"
    assert calls == [f"sqlite:///{tmp_path}/mlflow.db"] * 3


def test_a_missing_library_is_told_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"drl-workshop\[mlflow\]"):
        train(Experiment.from_flat(TINY | {"results_dir": str(tmp_path / "results")}, "test"), console=False)
    assert not (tmp_path / "results").exists()
