"""`drl search` as people type it, killed in the middle and typed again."""

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from drl.cli.entry import COMMANDS
from drl.cli.studies import run_search as main
from drl.cli.train import read_experiment
from drl.core.errors import BadInput

COMMAND = [sys.executable, "-m", "drl.cli.entry", "search", "ppo", "--env", "drl/Match-v0", "--config", "small.yaml"]
COMMAND += ["--num-timesteps-per-trial", "300", "--reports", "2", "--evaluation-episodes", "4", "--rerun-best", "1"]


def count(database, state):
    with contextlib.closing(sqlite3.connect(database, timeout=0.05)) as connection:
        return connection.execute("select count(*) from trials where state = ?", (state,)).fetchone()[0]


def kill_within_a_trial(process, database):
    """When two trials are complete and one is running; the process stands still while we look."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        with contextlib.suppress(sqlite3.OperationalError):  # not there yet, or stopped while writing
            if count(database, "COMPLETE") >= 2 and count(database, "RUNNING") == 1:
                process.kill()
                return
        process.send_signal(signal.SIGCONT)
    process.kill()
    raise AssertionError("no trial was seen running")


@pytest.mark.full
def test_a_killed_search_loses_only_its_running_trial(tmp_path):
    (tmp_path / "small.yaml").write_text("num_envs: 2\nrollout_length: 16\nepochs: 1\nminibatches: 1\n")
    folder = tmp_path / "results" / "drl_Match-v0_ppo_search"
    with subprocess.Popen([*COMMAND, "--n-trials", "1000"], cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        kill_within_a_trial(process, folder / "study.db")
    done = count(folder / "study.db", "COMPLETE") + count(folder / "study.db", "PRUNED")
    result = subprocess.run(
        [*COMMAND, "--n-trials", str(done + 2)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    assert f"{done} of them already there" in result.stdout
    assert f"was killed; it lost: trial {done}" in result.stdout
    assert "honest score" in result.stdout
    best = json.loads((folder / "best.json").read_text())
    assert best["trials"]["lost"] == 1
    assert best["trials"]["complete"] + best["trials"]["pruned"] == done + 2
    assert (folder / "history.png").exists()
    experiment, _ = read_experiment("ppo", ["--config", str(folder / "best.yaml")])
    assert experiment.run.env == "drl/Match-v0"
    assert experiment.to_flat().items() >= best["best"][0]["settings"].items()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["pp0"], "did you mean 'ppo'"),
        (["ppo", "--mode", "most"], "'base' or 'all'"),
        (["ppo", "--pruner", "often"], "'median', 'hyperband' or"),
        (["ppo", "--n-trials", "0"], "at least 1"),
        (["ppo", "--n-trails", "3"], "--n-trials"),
        (["ppo", "--num-timesteps-per-trial", "9", "--num-episodes-per-trial", "9"], "give one budget"),
        (["dqn", "--env", "Pendulum-v1"], "dqn takes discrete actions"),
        (["dqn", "--config", "other.yaml"], "other.yaml is for ppo; expected dqn"),
    ],
)
def test_bad_input_is_told_before_anything_is_written(tmp_path, monkeypatch, arguments, hint):
    (tmp_path / "other.yaml").write_text("algorithm: ppo\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=hint):
        main(arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["other.yaml"]


def test_the_command_is_listed():
    assert COMMANDS["search"][0] == "studies:run_search"
