"""`--compile auto`: what it chooses, from what, and that it says so."""

import json
import os

import pytest
import torch
import yaml
from torch import nn

from drl.algorithms.a2c import A2CConfig
from drl.algorithms.ppo import PPOConfig
from drl.algorithms.reinforce import ReinforceConfig
from drl.core.configs import NoSettings, ReplayConfig
from drl.engines.torch import compiled_update
from drl.engines.torch.compiled_update import Work, choose, planned_work
from drl.engines.torch.flat_optimizer import FlatOptimizer
from drl.runs.building import open_trainer
from drl.runs.launch import train
from drl.settings.experiment import Experiment
from drl.settings.presets import load_preset

TINY = {"num_envs": 2, "total_timesteps": 128, "rollout_length": 32, "hidden_sizes": [8], "evaluation_episodes": 1}
LEAN = {"video": False, "plots": False, "tensorboard": False, "threads": 1}


def mlp(width=64):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))


def choice_of(algorithm="ppo", env="CartPole-v1", **changes):
    settings = (load_preset(algorithm, env) or {}) | {"algorithm": algorithm, "env": env} | changes
    with open_trainer(Experiment.from_flat(settings, "test")) as trainer:
        return trainer.notes["compile"]


def test_the_work_of_a_run():
    ppo = PPOConfig(rollout_length=100, epochs=3, minibatches=4)
    assert planned_work(ppo, NoSettings(), 2, 1000) == Work(5 * 12, 50)
    assert planned_work(ppo, NoSettings(), 2, 1001) == Work(6 * 12, 50), "the last rollout is finished"
    assert planned_work(ppo, NoSettings(), 2, None) == Work(None, 50)
    assert planned_work(ppo, NoSettings(), 2, 1000, even=False) == Work(5 * 12, 50, even=False)
    uneven = PPOConfig(rollout_length=100, minibatches=3)
    assert not planned_work(uneven, NoSettings(), 1, 1000).even
    assert planned_work(A2CConfig(rollout_length=5), NoSettings(), 4, 200) == Work(10, 20)
    replay = ReplayConfig(batch_size=32, warmup=100, train_every=4, gradient_steps=2)
    assert planned_work(None, replay, 1, 1100) == Work(500, 32)
    assert planned_work(None, replay, 1, 50) == Work(0, 32), "it ends in the warm-up"
    assert planned_work(None, replay, 1, None) == Work(None, 32)
    assert planned_work(ReinforceConfig(), NoSettings(), 1, 1000).updates is None


def test_more_updates_or_more_rows_pay():
    model = mlp()
    assert [choose(Work(updates, 64), model).choice for updates in (100, 100_000_000)] == ["off", "on"]
    break_even = next(n for n in range(1000, 1_000_000, 1000) if choose(Work(n, 64), model).on)
    assert not choose(Work(break_even - 1000, 64), model).on
    assert choose(Work(break_even - 1000, 2048), model).on
    assert not choose(Work(break_even, 64, even=False), model).on, "two programs cost twice as much"


def test_the_reason_has_the_numbers():
    reason = choose(Work(1_000_000, 64), mlp()).reason
    assert "1,000,000 updates of 64 rows × 4,610 weights: saves about" in reason
    assert "costs about" in reason


class Own(nn.Linear):
    pass


@pytest.mark.parametrize(
    ("model", "updates", "reason"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 4)), 10**8, "convolutions"),
        (nn.Sequential(Own(4, 4)), 10**8, "networks of your own (Own)"),
        (mlp().to("meta"), 10**8, "the CPU only"),
        (mlp(2048), 10**8, "matrix products"),
        (mlp(), None, "does not say how many updates"),
    ],
)
def test_what_was_not_measured_stays_eager(model, updates, reason):
    choice = choose(Work(updates, 64), model)
    assert not choice.on
    assert reason in choice.reason


def test_presets_by_their_budget():
    choices = {steps: choice_of("dqn", total_timesteps=steps)["choice"] for steps in (2000, 1_000_000)}
    assert choices == {2000: "off", 1_000_000: "on"}
    assert choice_of("dqn", total_timesteps=1_000_000) == choice_of("dqn", total_timesteps=1_000_000)


def test_settings_come_before_the_rule():
    assert choice_of(compile="on", total_timesteps=128) == {"choice": "on", "reason": "as the settings say"}
    assert choice_of("dqn", compile="off", total_timesteps=10_000_000)["choice"] == "off"


@pytest.mark.parametrize(
    ("algorithm", "changes", "reason"),
    [
        ("dqn", {"total_timesteps": None, "num_episodes": 100_000}, "does not say how many updates"),
        ("reinforce", {"total_timesteps": 10**9}, "does not say how many updates"),
        ("ppo", {"total_timesteps": 10**9, "recurrent": "gru"}, "recurrent"),
    ],
)
def test_runs_that_stay_eager(algorithm, changes, reason):
    choice = choice_of(algorithm, **changes)
    assert choice["choice"] == "off"
    assert reason in choice["reason"]


def test_the_choice_is_made_before_the_learner_is_built(monkeypatch):
    seen = []

    def spy(method, device):
        seen.append(device)
        return method

    monkeypatch.setattr(compiled_update, "compile_method", spy)
    with open_trainer(Experiment.from_flat({"algorithm": "dqn", "total_timesteps": 10_000_000}, "test")) as trainer:
        assert trainer.notes["compile"]["choice"] == "on"
        assert trainer.algorithm.optimizer.program is not None
    assert seen == ["cpu"]


def test_the_log_and_the_run_folder_hold_the_choice(tmp_path, capsys):
    flat = {"algorithm": "ppo", "results_dir": str(tmp_path)} | TINY | LEAN
    folder = train(Experiment.from_flat(flat, "test")).folder
    record = json.loads((folder / "run.json").read_text())["compile"]
    assert record["choice"] == "off"
    assert f"compile: off ({record['reason']})" in capsys.readouterr().out
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert settings["compile"] == "off"
    longer = Experiment.from_flat(settings | {"total_timesteps": 10**9}, "test")
    with open_trainer(longer) as trainer:
        assert trainer.notes["compile"]["choice"] == "off", "a run that is continued keeps the choice"


def test_programs_are_kept_in_the_users_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DRL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda function, options: function)
    for given, folder in (("", str(tmp_path / "inductor")), ("mine", "mine")):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", given)
        if not given:
            monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
        FlatOptimizer(mlp(), lambda model, obs: model(obs), compiled=True)
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == folder
    monkeypatch.setenv("DRL_CACHE_DIR", "/proc/nowhere")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    FlatOptimizer(mlp(), lambda model, obs: model(obs), compiled=True)
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ, "where there is no such folder, the compiler has its own"
