"""Runs whose settings are functions: written by name, imported only if trusted."""

import subprocess
import sys

import pytest
import yaml

from drl.core.errors import BadInput
from drl.settings.experiment import Experiment

MODULE = """
def warm(progress):
    return 1e-3 * min(progress / 0.1, 1.0)


def soft(x):
    return x / (1.0 + abs(x))


def thirds(rng, shape, gain):
    return gain * rng.uniform(-0.3, 0.3, shape)
"""
SCRIPT = """
import rates_of_mine as mine
from drl.algorithms.ppo import PPOConfig
from drl.core.configs import ModelConfig
from drl.settings.experiment import Experiment, RunConfig
from drl.runs.launch import train

run = RunConfig(num_envs=2, total_timesteps=256, checkpoint_every=64, evaluate_every=0, plots=False, video=False,
                tensorboard=False, quiet=True, compile="off", name="whole", device="cpu")
model = ModelConfig(hidden_sizes=(8,), activation=mine.soft, init=mine.thirds)
train(Experiment(run=run, model=model, learner=PPOConfig(rollout_length=32, learning_rate_schedule=mine.warm)))
"""


def python(folder, *arguments):
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)


def command(folder, *arguments):
    return python(folder, "-m", "drl.cli.entry", *arguments)


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """The account that began the run is another one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("functions")
    (folder / "rates_of_mine.py").write_text(MODULE)
    (folder / "script.py").write_text(SCRIPT)
    done = python(folder, "script.py")
    assert done.returncode == 0, done.stderr
    return folder


def run_of(folder, name):
    (run,) = folder.glob(f"results/{name}/*/")
    return run


@pytest.mark.full
def test_the_config_names_the_functions(folder):
    settings = yaml.safe_load((run_of(folder, "whole") / "config.yaml").read_text())
    names = {name: settings[name] for name in ("learning_rate", "learning_rate_schedule", "activation", "init")}
    assert names == {
        "learning_rate": 1e-3,
        "learning_rate_schedule": "rates_of_mine:warm",
        "activation": "rates_of_mine:soft",
        "init": "rates_of_mine:thirds",
    }


@pytest.mark.full
def test_they_are_imported_only_if_trusted(folder, stranger):
    run = str(run_of(folder, "whole"))
    refused = command(folder, "fork", run, "--set", "gamma=0.9")
    assert refused.returncode == 2
    assert "names the plugins rates_of_mine, and importing them runs their code" in refused.stderr
    assert "--trust" in refused.stderr
    assert refused.stderr.count("\n") == 1
    forked = command(folder, "fork", run, "--set", "total_timesteps=320", "name=forked", "--trust")
    assert forked.returncode == 0, forked.stderr
    rows = (run_of(folder, "forked") / "metrics.jsonl").read_text()
    assert '"trainer/learning_rate": 0.001' in rows


@pytest.mark.full
def test_an_agent_needs_the_module_to_act(folder, stranger):
    run = str(run_of(folder, "whole"))
    refused = command(folder, "evaluate", run, "--episodes", "1")
    assert refused.returncode == 3
    assert "--plugins rates_of_mine" in refused.stderr
    played = command(folder, "evaluate", run, "--episodes", "1", "--plugins", "rates_of_mine")
    assert played.returncode == 0, played.stderr


def test_a_file_cannot_name_functions_of_other_modules():
    """A config of a stranger is data: what it names is neither imported nor called."""
    with pytest.raises(BadInput, match=r"a file: learning_rate_schedule is 'os:abort'.*--plugins os"):
        Experiment.from_flat({"learning_rate_schedule": "os:abort"}, "a file")


def test_a_schedule_that_a_preset_contradicts_says_what_to_type():
    with pytest.raises(BadInput, match="give --learning-rate-end None, or another schedule"):
        Experiment.from_flat({"learning_rate_end": 0.0, "learning_rate_schedule": "constant"}, "a preset")
