"""The second document: a workshop in JAX. Network = backbone + head, functional state, tracker, experiments."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from drl.engines.jax.backbones import MLP
from drl.engines.jax.models import LogitsHead, Model

ROOT = Path(__file__).parents[2]
DRL = [sys.executable, "-m", "drl.cli.entry"]
NO_JAX = """import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {gone!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Nowhere())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] in {gone!r} else real(name, *rest)
"""


def without(tmp_path, *gone):
    """An environment in which these packages cannot be imported."""
    (tmp_path / "sitecustomize.py").write_text(NO_JAX.format(gone=gone))
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


def run(command, tmp_path, env=None, code=0):
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=env)
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout + result.stderr


def test_a_network_is_a_backbone_and_a_head_and_its_state_is_apart():
    backbone = MLP((4,), hidden_sizes=(8,))
    network = Model(backbone, LogitsHead(backbone.features, 2))
    params = network.init(np.random.default_rng(0))
    forward = jax.jit(network.apply)
    obs = np.ones((3, 4), np.float32)
    first = forward(params, obs)
    np.testing.assert_array_equal(forward(params, obs), first)  # a pure function: nothing is remembered
    changed = {name: array * 2 for name, array in params.items()}
    assert not np.allclose(forward(changed, obs), first)
    swapped = Model(MLP((4,), hidden_sizes=(16, 16)), LogitsHead(16, 2))  # another backbone, the same head
    assert swapped.apply(swapped.init(np.random.default_rng(0)), obs).shape == (3, 2)


@pytest.mark.full
@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_the_quick_start_runs_with_and_without_jax(tmp_path, engine):
    """`python experiments/cartpole_reinforce.py --engine jax` leaves its files; torch needs no JAX."""
    env = None if engine == "jax" else without(tmp_path, "jax", "jaxlib")
    command = [sys.executable, str(ROOT / "experiments" / "cartpole_reinforce.py"), "--steps", "600"]
    run([*command, "--engine", engine], tmp_path, env)
    folder = next((tmp_path / "results" / "cartpole_reinforce_by_hand").iterdir())
    for name in ("metrics.jsonl", "plots/return.png", "videos/final_agent.mp4", "agent/card.json"):
        assert (folder / name).stat().st_size, name


def test_no_experiment_ends_in_a_traceback_for_a_missing_extra(tmp_path):
    env = without(tmp_path, "jax", "jaxlib", "Box2D")
    for script in ("acrobot_reinforce.py", "lunarlander_reinforce.py"):
        command = [sys.executable, str(ROOT / "experiments" / script), "--steps", "100", "--engine", "jax"]
        said = run(command, tmp_path, env, code=2)
        assert "'jax', which cannot be imported; install it with: pip install 'drl-workshop[jax]'" in said
    said = run([*DRL, "train", "ppo", "--env", "LunarLander-v3"], tmp_path, env, code=2)
    assert "which cannot be imported; install it with: pip install 'drl-workshop[box2d]'" in said


def test_without_the_development_tools_pytest_says_what_to_install(tmp_path):
    env = without(tmp_path, "optuna", "wandb")
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", str(ROOT / "tests" / "designs")]
    said = run(command, tmp_path, env, code=4)
    assert "ERROR: these tests need the extra 'test' (missing: optuna)" in said
    assert "pip install -c constraints.txt -e '.[test]'" in said


@pytest.mark.full
def test_an_extra_that_is_there_but_broken_names_what_is_missing(tmp_path):
    """gymnax 1.0.1 imports six and does not declare it."""
    env = without(tmp_path, "six")
    command = [
        sys.executable,
        "-m",
        "drl.cli.entry",
        "train",
        "ppo",
        "--env",
        "gymnax:Breakout-MinAtar",
        "--engine",
        "jax",
    ]
    assert "the module 'six" in run(command, tmp_path, env, code=2)
