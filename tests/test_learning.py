"""Learning on real environments with the shipped presets, one seed each. Minutes: `make slow`."""

import pytest

from drl.agents.evaluation import evaluate
from drl.cli.train import read_experiment
from drl.runs.launch import train

QUIET = ["--quiet", "--no-plots", "--no-video", "--no-tensorboard", "--evaluate-every", "0", "--keep-checkpoints", "0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "env", "least"),
    [
        ("ppo", "CartPole-v1", 475),
        ("ppo", "Pendulum-v1", -220),
        ("ppo", "Acrobot-v1", -90),
        ("ppo", "drl/CartPoleNoVelocity-v1", 475),
        ("a2c", "CartPole-v1", 475),
        ("reinforce", "CartPole-v1", 450),
    ],
)
def test_presets_learn(tmp_path, algorithm, env, least):
    experiment, _ = read_experiment(algorithm, ["--env", env, "--results-dir", str(tmp_path), "--seed", "3", *QUIET])
    finished = train(experiment)
    assert evaluate(finished.agent, env, 50, seed=1000).summary()["mean_return"] >= least
