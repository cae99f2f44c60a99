"""W&B never blocks, asks or kills; what it is given arrives."""

import shutil
import sys
import time
import types
import warnings

import pytest

from drl.core.errors import BadInput, MissingExtra
from drl.core.log import Log
from drl.runs.folder.checkpoints import Checkpoints
from drl.runs.launch import resume, train, train_seeds
from drl.search.search_worker import Job, run_job
from drl.settings.experiment import Experiment
from drl.tracking.guarded import Ending, TrackerFailed, guard
from drl.tracking.wandb_runs import WandbTracker


class FakeRun:
    id = "abc"

    def __init__(self):
        self.rows, self.artifacts, self.metrics, self.finished = [], [], [], 0

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))

    def log(self, row):
        self.rows.append(row)

    def log_artifact(self, artifact, aliases):
        self.artifacts.append((artifact, aliases))

    def finish(self):
        self.finished += 1


class FakeArtifact:
    def __init__(self, name, type, metadata):
        self.name, self.type, self.metadata = name, type, metadata
        self.manifest = types.SimpleNamespace(entries={})

    def add_dir(self, path, name):
        self.manifest.entries[name] = path

    add_file = add_dir


@pytest.fixture
def fake(monkeypatch):
    """A stand-in for the library: `fake.key`, and `fake.answer(mode)` that may raise or wait."""
    module = types.ModuleType("wandb")
    module.__spec__ = types.SimpleNamespace(name="wandb")
    module.key, module.answer, module.calls, module.runs = True, lambda mode: None, [], []
    module.login = lambda key=None, prompt=True, verify=True: module.key
    module.Settings = type("Settings", (dict,), {"model_fields": {"silent": None, "init_timeout": None}})
    module.Video = lambda path, format: ("video", path)
    module.Artifact = FakeArtifact

    def init(**options):
        module.calls.append(options)
        module.answer(options["mode"])
        module.runs.append(FakeRun())
        return module.runs[-1]

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    return module


def log(step=8, **learn):
    return Log(env_steps=step, episodes=1, learning_steps=step, learn=learn)


def test_config_metrics_videos_and_best_model_arrive(tmp_path, fake, capsys):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "final_agent.mp4").touch()
    (tmp_path / "models" / "best_agent").mkdir(parents=True)
    (tmp_path / "models" / "best_return_pi_ckpt.pth").touch()
    tracker = WandbTracker("project", {"gamma": 0.9}, tmp_path, name="first")
    tracker.write(log(8, loss=0.5))
    tracker.write(log(16, loss=float("nan")))
    tracker.finish(Ending(tmp_path))
    tracker.close()
    (run,) = fake.runs
    assert fake.calls[0].items() >= {"project": "project", "config": {"gamma": 0.9}, "mode": "online"}.items()
    assert fake.calls[0]["settings"] == {"silent": True, "init_timeout": 10.0}, "only settings this version knows"
    assert ("*", "env_steps") in run.metrics
    assert run.rows[0].items() >= {"env_steps": 8, "learn/loss": 0.5}.items()
    assert "learn/loss" not in run.rows[1]
    assert run.rows[2] == {"videos/final_agent": ("video", str(tmp_path / "videos" / "final_agent.mp4"))}
    ((artifact, aliases),) = run.artifacts
    assert set(artifact.manifest.entries) == {"best_agent", "best_return_pi_ckpt.pth"}
    assert artifact.metadata == {"config": {"gamma": 0.9}}, "one key: W&B refuses more than 100"
    assert aliases == ["best"]
    assert run.finished == 1
    assert capsys.readouterr().out == ""


def test_a_resumed_run_continues_its_run_at_wandb(tmp_path, fake):
    settings = {
        "env": "CartPole-v1", "total_timesteps": 512, "rollout_length": 32, "num_envs": 2, "minibatches": 2,
        "hidden_sizes": [8], "checkpoint_every": 192, "evaluate_every": 0, "evaluation_episodes": 1, "compile": "off",
        "quiet": True, "plots": False, "video": False, "tensorboard": False, "results_dir": str(tmp_path),
        "wandb_project": "project", "keep_checkpoints": 9,
    }  # fmt: skip
    folder = train(Experiment.from_flat(settings, "test"), console=False).folder
    for newer in Checkpoints(folder / "checkpoints").stored()[1:]:  # as if it had been killed before these
        newer.rename(newer.with_name(f".{newer.name}"))
    metrics = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(metrics[:5]))
    resume(folder, console=False)
    first, second = fake.calls
    assert first["id"] == second["id"]
    assert second["resume"] == "allow"
    steps = [[row["env_steps"] for row in run.rows if "env_steps" in row] for run in fake.runs]
    assert steps[0] == [64 * i for i in range(1, 9)]
    assert steps[1] == [384, 448, 512]  # it continues at 192; rows up to 320 had arrived


FUSED = {
    "algorithm": "ppo", "env": "CartPole-v1", "engine": "jax", "total_timesteps": 128, "rollout_length": 16,
    "num_envs": 4, "minibatches": 1, "epochs": 1, "hidden_sizes": [8], "evaluate_every": 0, "evaluation_episodes": 1,
    "quiet": True, "plots": False, "video": False, "tensorboard": False, "wandb_project": "project",
}  # fmt: skip


@pytest.mark.full
def test_the_seeds_of_one_program_are_runs_of_one_group(tmp_path, fake):
    flat = FUSED | {"num_seeds": 2, "results_dir": str(tmp_path)}
    finished = train_seeds(Experiment.from_flat(flat, "test"), console=False)
    calls = sorted(fake.calls, key=lambda call: call["name"])
    assert [call["name"] for call in calls] == [each.folder.name for each in finished]
    assert {call["group"] for call in calls} == {f"CartPole-v1_ppo_{finished[0].folder.name}"}
    assert {call["job_type"] for call in calls} == {"ppo"}
    assert {call["reinit"] for call in calls} == {"create_new"}, "or the second seed would end the first"
    assert [run.finished for run in fake.runs] == [1, 1]
    assert [len([row for row in run.rows if "env_steps" in row]) for run in fake.runs] == [2, 2]
    for folder in (each.folder for each in finished):
        for checkpoint in Checkpoints(folder / "checkpoints").stored():
            shutil.rmtree(checkpoint)
    resume(finished[1].folder, console=False)
    assert {call["group"] for call in fake.calls[2:]} == {calls[0]["group"]}
    assert {call["id"] for call in fake.calls[2:]} == {call["id"] for call in calls}


def test_a_group_can_be_given_and_needs_a_board(tmp_path, fake):
    flat = FUSED | {"engine": "torch", "group": "mine", "results_dir": str(tmp_path), "compile": "off"}
    train(Experiment.from_flat(flat, "test"), console=False)
    assert fake.calls[0]["group"] == "mine"
    with pytest.raises(BadInput, match="group is 'mine' without W&B and MLflow; add --wandb-project"):
        Experiment.from_flat(flat | {"wandb_project": None}, "test")


def test_a_trial_of_a_search_is_a_run_of_its_group(tmp_path, fake):
    own = {"engine": "torch", "group": "study", "results_dir": str(tmp_path), "compile": "off"}
    outcome = run_job(Job(3, FUSED | own, 1), lambda *_: False, lambda: False)
    assert outcome.state == "complete", outcome.error
    assert fake.calls[0].items() >= {"group": "study", "name": "trial 3", "job_type": "ppo"}.items()
    assert [row["env_steps"] for row in fake.runs[0].rows] == [64, 128]
    assert fake.runs[0].finished == 1


def refuse(mode):
    if mode == "online":
        raise ConnectionError("no route")


@pytest.mark.parametrize(("key", "answer", "why"), [(False, None, "no W&B key"), (True, refuse, "does not answer")])
def test_offline_with_one_line_saying_so(tmp_path, fake, capsys, key, answer, why):
    fake.key = key
    fake.answer = answer or fake.answer
    tracker = WandbTracker("project", {}, tmp_path)
    tracker.write(log())
    tracker.finish(Ending(tmp_path))
    assert fake.calls[-1]["mode"] == "offline"
    assert len(fake.calls) == (1 if not key else 2)
    (line,) = capsys.readouterr().out.splitlines()
    assert why in line
    assert f"wandb sync {tmp_path}" in line
    assert fake.runs[-1].rows[0]["env_steps"] == 8


def test_the_users_own_mode_is_kept_in_silence(tmp_path, fake, capsys, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    WandbTracker("project", {}, tmp_path).finish(Ending(tmp_path))
    assert [call["mode"] for call in fake.calls] == ["disabled"]
    assert capsys.readouterr().out == ""


def test_training_does_not_wait_for_a_slow_answer(tmp_path, fake):
    fake.answer = lambda mode: time.sleep(0.5)
    started = time.monotonic()
    tracker = WandbTracker("project", {}, tmp_path)
    for step in range(100):
        tracker.write(log(step))
    assert time.monotonic() - started < 0.3
    tracker.close()
    assert len(fake.runs[0].rows) == 100, "what was written meanwhile is not lost"


def test_a_failure_costs_its_own_output_only(tmp_path, fake):
    def broken(mode):
        raise OSError("disk full")

    fake.answer = broken
    tracker = WandbTracker("project", {}, tmp_path)
    tracker._thread.join()
    guarded = guard(tracker)
    with pytest.warns(TrackerFailed, match="disk full"):
        guarded.write(log())
    guarded.write(log())
    guarded.finish(Ending(tmp_path))
    late = guard(WandbTracker("project", {}, tmp_path))
    with pytest.warns(TrackerFailed, match="failed at the end; its output may be incomplete .* disk full"):
        late.finish(Ending(tmp_path))


def test_a_missing_library_is_told_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"drl-workshop\[wandb\]"):
        WandbTracker("project", {}, tmp_path)


@pytest.mark.full
def test_the_real_library_keeps_an_offline_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "best_return_pi_ckpt.pth").write_bytes(b"weights")
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrackerFailed)
        tracker = WandbTracker("project", {"hidden_sizes": [64]}, tmp_path, name="real")
        tracker.write(log(8, loss=0.5))
        tracker.finish(Ending(tmp_path))
    assert tracker.error is None
    (kept,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 60
    while b"learn/loss" not in kept.read_bytes():  # W&B's own process writes it, a moment later if the machine is busy
        assert time.monotonic() < deadline
        time.sleep(0.1)
