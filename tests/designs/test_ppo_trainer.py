"""The fifth document: PPO-clip, its three-block log, its buffer, its files."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from drl.algorithms.ppo import PPOConfig
from drl.buffers.rollout_buffer import RolloutBuffer
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.engines.torch import ops
from drl.runs import launch
from drl.settings.experiment import Experiment
from drl.tracking.console import blocks, plain_text
from drl.tracking.files import read_metrics

ROOT = Path(__file__).parents[2]
SMALL = {
    "env": "CartPole-v1", "total_timesteps": 1024, "num_envs": 2, "rollout_length": 64, "epochs": 2,
    "hidden_sizes": [16], "evaluation_episodes": 2, "num_checkpoints": 2, "window": 10, "quiet": True, "video": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ppo")
    return launch.train(Experiment.from_flat(SMALL | {"results_dir": str(folder)}, "test"))


def test_the_log_has_the_three_blocks(finished):
    shown = {block.title: set(block.fields) for block in blocks(finished.log)}
    assert shown["ROLLOUT STATISTICS"] >= {
        "mean_ep_len", "mean_ep_return", "mean_reward", "mean_clipped_ratio", "approx_kl", "rollout_len",
        "time_elapsed",
    }  # fmt: skip
    assert shown["RECENT 10 EPISODES"] >= {"mean_ep_len", "mean_ep_return", "terminated_rate", "success_rate"}
    assert shown["TRAINER STATISTICS"] >= {
        "episodes_count", "timesteps_count", "rollouts_count", "total_timesteps", "clip_range",
    }  # fmt: skip
    assert plain_text(blocks(finished.log)).startswith("=" * 35 + "\nROLLOUT STATISTICS\n")


def test_the_log_is_printed_after_every_rollout_if_asked(tmp_path, capsys):
    changes = {"quiet": False, "log_every": 1, "total_timesteps": 384, "results_dir": str(tmp_path), "plots": False}
    launch.train(Experiment.from_flat(SMALL | changes, "test"))
    text = capsys.readouterr().out
    for title in ("ROLLOUT STATISTICS", "RECENT", "TRAINER STATISTICS"):
        assert text.count(f"\n{title}") == 3  # rollouts of 128 steps


def test_success_is_what_the_env_says_and_terminated_is_what_it_is(finished):
    """A pole that falls has terminated and has not succeeded; the document's success_rate is terminated_rate."""
    assert finished.log.recent["terminated_rate"] == 1.0
    assert finished.log.recent["success_rate"] == 0.0
    last = read_metrics(finished.folder / "metrics.jsonl")[-1]
    assert (last["recent/terminated_rate"], last["recent/success_rate"]) == (1.0, 0.0)
    assert "recent/terminated_rate" in (finished.folder / "progress.csv").read_text()
    assert finished.evaluation["success_rate"] == 0.0
    assert (finished.folder / "plots" / "success_rate.png").exists()


@pytest.mark.full
def test_where_nobody_can_tell_there_is_no_success_rate(tmp_path):
    flat = SMALL | {"env": "drl/TwoStep-v0", "results_dir": str(tmp_path), "total_timesteps": 256}
    done = launch.train(Experiment.from_flat(flat, "test"))
    assert "success_rate" not in done.log.recent
    assert "success_rate" not in done.evaluation
    assert done.evaluation["terminated_rate"] == 1.0
    assert not (done.folder / "plots" / "success_rate.png").exists()
    command = [sys.executable, "-m", "drl.cli.entry", "evaluate", str(done.folder), "--episodes", "3"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "mean return" in said
    assert "success" not in said


def test_the_models_of_the_document_are_saved(finished):
    names = {path.name for path in (finished.folder / "models").iterdir()}
    assert names >= {"best_return_pi_ckpt.pth", "pi_ckpt1.pth", "pi_ckpt2.pth", "final_actor.pth", "final_critic.pth"}
    actor = torch.load(finished.folder / "models" / "final_actor.pth", weights_only=True)
    critic = torch.load(finished.folder / "models" / "final_critic.pth", weights_only=True)
    assert actor["head.weight"].shape == (2, 16)
    assert critic["head.weight"].shape == (1, 16)


def test_an_agent_saves_its_networks(finished, tmp_path):
    finished.agent.save_policy_net(tmp_path / "policy.pth")
    finished.agent.save_value_net(tmp_path / "value.pth")
    assert torch.load(tmp_path / "policy.pth", weights_only=True).keys()
    assert torch.load(tmp_path / "value.pth", weights_only=True).keys()


def test_value_clipping_is_one_switch_and_takes_the_larger_error():
    value, old, target = (torch.tensor(x) for x in ([1.0, 3.0], [0.0, 0.0], [2.0, 0.1]))
    clipped = ops.clipped_value_error(value, old, target, 0.5)
    torch.testing.assert_close(clipped, torch.tensor([(0.5 - 2.0) ** 2, (3.0 - 0.1) ** 2]))
    assert PPOConfig().value_clip is None
    assert "--value-clip" in (ROOT / "docs" / "algorithms" / "ppo.md").read_text()


def test_the_buffer_has_the_dimensions_of_the_picture():
    action_spec = ActionSpec("box", shape=(2,), low=(-1.0,) * 2, high=(1.0,) * 2)
    buffer = RolloutBuffer(EnvSpecs(ObsSpec("box", (3,)), action_spec, num_envs=4), length=5)
    assert buffer.obs.shape == (5, 4, 3)
    assert buffer.action.shape == (5, 4, 2)
    assert buffer.reward.shape == buffer.terminated.shape == buffer.truncated.shape == buffer.valid.shape == (5, 4)
    assert buffer.last_obs.shape == (4, 3)


def test_the_pictures_are_as_their_script_draws_them(tmp_path):
    sys.path.insert(0, str(ROOT / "docs" / "diagrams"))
    try:
        import draw
    finally:
        sys.path.pop(0)
    draw.main(tmp_path)
    names = ("docs/algorithms/ppo.md", "docs/four_classes.md", "drl/README.md")
    pages = [(ROOT / name).read_text() for name in names]
    sizes = re.compile(r"\d+ files, [\d,]+ lines")  # as of the last drawing; they change with every commit
    for path in tmp_path.iterdir():
        stored = (ROOT / "docs" / "diagrams" / path.name).read_text()
        assert sizes.sub("", path.read_text()) == sizes.sub("", stored)
        assert any(path.name in page for page in pages)
    assert len(list(tmp_path.iterdir())) == 6


def test_epochs_and_minibatches_are_as_documented(finished):
    """`for epoch … for batch …`: so many gradient steps in a learning step."""
    config = PPOConfig(epochs=2)
    assert finished.log.trainer["gradient_steps"] == config.epochs * config.minibatches
    assert np.isfinite(list(finished.log.learn.values())).all()
