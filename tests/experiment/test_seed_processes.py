"""`--num-seeds` where seeds are processes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from drl.core.configs import ModelConfig
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.engines.torch.agents import PolicyAgent
from drl.engines.torch.models import make_policy_value_model
from drl.runs.many_runs import _agent_of

QUIET = ["--no-plots", "--no-video", "--no-tensorboard", "--quiet", "--hidden-sizes", "8", "--evaluate-every", "0"]


@pytest.mark.full
def test_a_signal_saves_every_run(tmp_path):
    """It reaches the whole group, as from a terminal; each run gets it once and saves its last step."""
    command = [sys.executable, "-m", "drl.cli.entry", "train", "ppo", "--num-seeds", "2", "--workers", "2"]
    command += ["--total-timesteps", "100000000", "--results-dir", str(tmp_path), *QUIET]
    environ, pipe = os.environ | {"OMP_NUM_THREADS": "1"}, subprocess.PIPE
    with subprocess.Popen(command, start_new_session=True, env=environ, stdout=pipe, text=True) as process:
        deadline = time.monotonic() + 120
        while len([file for file in tmp_path.rglob("metrics.jsonl") if file.stat().st_size]) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGINT
    folders = [file.parent for file in tmp_path.rglob("run.json")]
    assert said.splitlines()[-1] == f"resume: drl resume {' '.join(map(str, sorted(folders)))}"
    records = [json.loads((folder / "run.json").read_text()) for folder in folders]
    assert [record["status"] for record in records] == ["interrupted"] * 2
    for folder, record in zip(folders, records, strict=True):
        assert f"step_{record['env_steps']:012d}" in os.listdir(folder / "checkpoints")


def test_every_seed_has_its_own_model(tmp_path):
    """A user's module, or a function that makes one."""

    def make(obs_spec, action_spec):
        return make_policy_value_model(obs_spec, action_spec, ModelConfig(hidden_sizes=(4,)), torch.Generator())

    specs = ObsSpec("box", (3,)), ActionSpec("discrete", sizes=(2,))
    for seed in (1, 2):
        model = make(*specs)
        with torch.no_grad():
            next(model.parameters()).fill_(seed)
        PolicyAgent(model, EnvSpecs(*specs)).save(tmp_path / str(seed))
    for given in (make(*specs), make):
        agents = [_agent_of(tmp_path / str(seed), given) for seed in (1, 2)]
        assert [next(agent.model.parameters())[0, 0].item() for agent in agents] == [1.0, 2.0]
