"""Run folders and agents of an earlier commit (b5e9109) load, resume and evaluate.

`stored_runs/` holds runs that a signal stopped in the middle, each with its checkpoint and its agent. They were signed
by another account. Numbers are compared within a tolerance only: the last bits depend on the processor.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

import drl
from drl.cli.entry import main
from tests.commands import run_here

STORED = Path(__file__).with_name("stored_runs")
OUTPUTS = json.loads((STORED / "outputs.json").read_text())
NAMES = sorted(path.name for path in STORED.iterdir() if path.is_dir())


@pytest.fixture
def folder(request, tmp_path):
    """A copy, since to resume a run changes it."""
    return shutil.copytree(STORED / request.param, tmp_path / "results" / request.param)


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_there_is_one_of_every_kind_and_they_are_small():
    assert NAMES == ["dqn_fused", "ppo_jax", "ppo_torch", "rainbow_torch", "sac_jax", "sac_torch"]
    assert sum(path.stat().st_size for path in STORED.rglob("*") if path.is_file()) < 400_000


@pytest.mark.default("ppo_torch", "sac_jax")
@pytest.mark.parametrize("folder", NAMES, indirect=True)
def test_a_stored_run_resumes_to_its_budget_and_is_evaluated(folder):
    before = lines(folder, "metrics.jsonl")
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "terminated"
    budget = yaml.safe_load((folder / "config.yaml").read_text())["total_timesteps"]
    run_here(main, "resume", folder, cwd=folder.parents[1])
    record, after = json.loads((folder / "run.json").read_text()), lines(folder, "metrics.jsonl")
    assert record["status"] == "finished"
    assert record["env_steps"] >= budget
    assert after[: len(before)] == before, "rows that were written stay as they are"
    steps = [row["env_steps"] for row in after]
    assert steps == sorted(set(steps))
    shown = run_here(main, "evaluate", folder, "--episodes", "2", cwd=folder.parents[1])
    assert "2 episodes" in shown.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_agent_computes_what_it_did(name):
    """`outputs.json` has what the earlier commit computed for a few observations."""
    agent, known = drl.load_agent(STORED / name / "agent", strict=True), OUTPUTS[name]
    outputs = agent.explain(np.asarray(known["obs"], np.float32))
    assert outputs.keys() == known["outputs"].keys()
    for key, values in known["outputs"].items():
        np.testing.assert_allclose(outputs[key], values, rtol=1e-4, atol=1e-4)
