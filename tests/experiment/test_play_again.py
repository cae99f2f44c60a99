"""Recorded episodes are played again exactly, and the one in which an environment failed, too."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from drl.cli.entry import main
from drl.core.errors import BadInput, EnvFailed, UnusableFile
from drl.core.log import Episode, Log, Played
from drl.envs.env_names import find_object
from drl.runs.launch import train
from drl.settings.experiment import Experiment
from drl.tracking.files import EpisodeTracker, read_episode

SMALL = {
    "num_envs": 3, "total_timesteps": 600, "rollout_length": 32, "minibatches": 2, "hidden_sizes": [8], "quiet": True,
    "plots": False, "video": False, "tensorboard": False, "compile": "off", "evaluate_every": 0, "keep_checkpoints": 0,
    "evaluation_episodes": 1,
}  # fmt: skip


def trained(folder, algorithm="ppo", **settings):
    flat = SMALL | {"algorithm": algorithm, "results_dir": str(folder)} | settings
    return train(Experiment.from_flat(flat, "test"), console=False).folder


@pytest.mark.default("settings0", "settings2")
@pytest.mark.parametrize(
    "settings",
    [
        {"env": "CartPole-v1"},
        {"env": "CartPole-v1", "vectorization": "async", "frame_stack": 2},
        {"env": "Pendulum-v1"},
        {"env": "MovieRec-v1", "vectorization": "sync"},
    ],
)
def test_every_episode_of_a_run_is_played_again(settings, tmp_path, capsys):
    folder = trained(tmp_path, **settings)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    finished = [episode for row in rows for episode in row["finished"]]
    assert finished
    for number, (total, length, _, _) in enumerate(finished, start=1):
        assert main(["replay", str(folder), "--episode", str(number)]) == 0
        assert f"{length} steps, return {total:g}\n" in capsys.readouterr().out
    returns = [episode[0] for episode in finished]
    for which, expected in (("best", max(returns)), ("worst", min(returns)), ("last", returns[-1])):
        assert read_episode(folder, which).episode_return == expected


def test_a_film_of_an_episode(tmp_path, capsys):
    folder = trained(tmp_path, env="CartPole-v1", total_timesteps=200)
    assert main(["replay", str(folder), "--episode", "worst", "--video"]) == 0
    assert (tmp_path / capsys.readouterr().out.strip()).stat().st_size > 1000


def test_what_cannot_be_played_again_says_so(tmp_path):
    folder = trained(tmp_path, env="CartPole-v1", vectorization="native", total_timesteps=200)
    assert not (folder / "episodes.jsonl").exists()
    with pytest.raises(BadInput, match="has no recorded episodes"):
        read_episode(folder, "best")
    folder = trained(tmp_path, env="CartPole-v1", total_timesteps=200)
    for which, said in (("999", "not 999"), ("middle", "expected best"), ("crash", "no environment failed")):
        with pytest.raises(BadInput, match=said):
            read_episode(folder, which)
    (folder / "episodes.jsonl").write_text('{"learning_steps": 1, "episodes": [[1, 0, 5, 9, 9.0]]}\n')
    with pytest.raises(UnusableFile, match="does not hold episodes"):
        read_episode(folder, "best")


def test_an_environment_that_does_not_repeat_itself_is_named(tmp_path, capsys):
    folder = trained(tmp_path, env="CartPole-v1", total_timesteps=200)
    row = json.loads((folder / "episodes.jsonl").read_text().splitlines()[0])
    row["episodes"][0][4] += 1.0  # as if it had had another return
    (folder / "episodes.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["replay", str(folder), "--episode", str(row["episodes"][0][0])]) == EnvFailed.exit_code
    assert "does not repeat itself" in capsys.readouterr().err


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_episode_of_a_crash_is_kept(vectorization, tmp_path, capsys):
    env = "tests.experiment.crashing_env:Crashing-v0"
    place = r"left its track \(.*crashing_env\.py:11\)"
    with pytest.raises(EnvFailed, match=f"failed after .* {place}\n") as failed:
        trained(tmp_path, env=env, vectorization=vectorization, total_timesteps=5000)
    (run,) = (path.parent for path in tmp_path.rglob("run.json"))
    report = (run / "error.txt").read_text()
    assert "left its track" in report
    again = f"the episode again: drl replay {run} --episode crash"
    assert report.endswith(f"\n{again}\n")
    assert failed.value.__notes__[-1] == f"the traceback: {run / 'error.txt'}\n{again}"
    assert main(["replay", str(run), "--episode", "crash", "--trust"]) == EnvFailed.exit_code
    assert re.search(f"the environment fails again: RuntimeError: the cart {place}", capsys.readouterr().err)
    if vectorization == "sync":
        assert main(["replay", str(run), "--episode", "crash", "--trust", "--video"]) == 0
        assert (run / "videos" / "episode_crash.mp4").stat().st_size


def test_actions_of_every_kind_are_read_as_they_were_written(tmp_path):
    kinds = [
        np.array([0, 1, 1]),
        np.array([[3, -200], [5, 70000]]),
        np.array([[0.1, -0.3]], np.float32),
        np.array([[True, False]]).astype(np.int8),
    ]
    for number, actions in enumerate(kinds):
        folder = tmp_path / str(number)
        folder.mkdir()
        tracker = EpisodeTracker(folder / "episodes.jsonl")
        episode = Episode(1.0, len(actions), True, None, 2, Played(7, actions))
        tracker.write(Log(env_steps=9, episodes=4, learning_steps=1, finished=[episode._replace(played=None), episode]))
        tracker.close()
        read = read_episode(folder, "4")
        assert (read.number, read.env_index, read.played.seed) == (4, 2, 7)
        assert np.array_equal(read.played.actions, actions)
        assert read.played.actions.dtype == (np.float32 if actions.dtype.kind == "f" else np.int64)


FRAGILE = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

STEPS = 0


class Fragile(CartPoleEnv):
    def step(self, action):
        global STEPS
        STEPS += 1
        return super().step(action) if STEPS < 100 else [][0]
"""


def test_a_crash_that_does_not_recur_says_so(tmp_path, monkeypatch, capsys):
    """It depends on what happened before its episode."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fragile.py").write_text(FRAGILE)
    flags = "--num-envs 1 --total-timesteps 500 --rollout-length 32 --minibatches 2 --quiet --no-tensorboard"
    env = ["--env", "fragile.py:Fragile", "--vectorization", "sync"]
    assert main(["train", "ppo", *env, *flags.split()]) == EnvFailed.exit_code
    (run,) = Path("results").glob("*/*")
    assert capsys.readouterr().err.splitlines() == [
        "drl: environment 'Fragile', environment 0 failed after 99 steps: IndexError: list index out of range "
        "(fragile.py:12)",
        f"drl: the traceback: {run}/error.txt",
        f"drl: the episode again: drl replay {run} --episode crash",
    ]
    find_object("fragile.py:Fragile").step.__globals__["STEPS"] = 0  # as in another process
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["replay", str(run), "--episode", "crash"]) == 0
    assert "drl: warning: the failure does not recur: " in capsys.readouterr().err
