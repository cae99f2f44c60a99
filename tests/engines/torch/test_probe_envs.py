"""Every algorithm on environments whose values are known, each in a terminated and a truncated form."""

import numpy as np
import pytest
import torch

from drl.algorithms.a2c import A2CConfig
from drl.algorithms.ppo import PPOConfig
from drl.algorithms.reinforce import ReinforceConfig
from drl.core.configs import ModelConfig
from drl.core.seeding import Seeds
from drl.engines.torch.build import build_learner
from drl.envs.make_vec_env import make_vec_env
from drl.trainer.trainer import Trainer, TrainerConfig

FAST = {"learning_rate": 5e-3, "learning_rate_end": 0.0, "gamma": 0.9}
CONFIGS = {
    "ppo": PPOConfig(rollout_length=16, minibatches=2, **FAST),
    "a2c": A2CConfig(rollout_length=5, optimizer="adam", **FAST),
    "reinforce": ReinforceConfig(episodes_per_step=16, **FAST),
}
MODEL = ModelConfig(hidden_sizes=(32,))


def train(algorithm, env, steps, config=None, num_envs=4, **options):
    config = config or CONFIGS[algorithm]
    with make_vec_env(env, num_envs, seed=0) as envs:
        agent, learner = build_learner(algorithm, envs, (MODEL, config), Seeds(3), **options)
        trainer = Trainer(envs, agent, learner, config=TrainerConfig(total_timesteps=steps))
        for log in trainer():
            if log.env_steps >= steps:
                return trainer, log


@pytest.mark.default("drl/TwoStepTruncated-v0-values1-ppo")
@pytest.mark.parametrize("algorithm", CONFIGS)
@pytest.mark.parametrize(("env", "values"), [("drl/TwoStep-v0", [0.9, 1.0]), ("drl/TwoStepTruncated-v0", [9.0, 10.0])])
def test_learns_the_values_of_a_two_step_env(algorithm, env, values):
    """obs 0 → obs 1 → end, reward 1 at the end, γ = 0.9. A clock is not a death."""
    trainer, _ = train(algorithm, env, {"ppo": 8000, "a2c": 20_000, "reinforce": 20_000}[algorithm])
    learned = trainer.agent.value(np.array([[0.0], [1.0]], np.float32))
    np.testing.assert_allclose(learned, values, rtol=0.1)


@pytest.mark.default("a2c")
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_learns_which_action_fits_the_observation(algorithm):
    trainer, log = train(algorithm, "drl/Match-v0", 6000)
    assert log.recent["mean_ep_return"] > 0.8
    assert trainer.agent.act(np.array([0, 1])).tolist() == [0, 1]


@pytest.mark.full
@pytest.mark.default("mean")
@pytest.mark.parametrize("baseline", ["none", "mean"])
def test_reinforce_without_a_critic(baseline):
    config = ReinforceConfig(baseline=baseline, episodes_per_step=16, **FAST)
    trainer, log = train("reinforce", "drl/Match-v0", 8000, config)
    assert not trainer.agent.has_value
    assert log.recent["mean_ep_return"] > 0.8


@pytest.mark.full
def test_reinforce_values_a_truncated_tail_as_far_as_its_baseline_can():
    """OneStep with reward 1, truncated: the return is 1 + γ · tail."""
    for baseline, expected in (("none", 1.0), ("mean", 1 / (1 - 0.9 * 1)), ("value", 10.0)):
        settings = {"mean_momentum": 0.0, "normalize_advantage": False, "episodes_per_step": 4} | FAST
        config = ReinforceConfig(baseline=baseline, **settings)
        with make_vec_env("drl/OneStep-v0", 1, seed=0, env_kwargs={"truncate": True}) as envs:
            agent, learner = build_learner("reinforce", envs, (MODEL, config), Seeds(0))
            trainer = Trainer(envs, agent, learner)
            for log in trainer():
                if log.learning_steps == (600 if baseline == "value" else 100):
                    break
            if baseline == "mean":
                assert learner.running_mean == pytest.approx(expected, rel=0.01)
            batch_returns, _ = learner._returns_and_baseline(_one_truncated_row())
            assert batch_returns[0, 0] == pytest.approx(expected, rel=0.1)


def _one_truncated_row():
    from drl.core.contracts import RolloutBatch

    zeros, true, false = np.zeros((1, 1, 1), np.float32), np.ones((1, 1), bool), np.zeros((1, 1), bool)
    return RolloutBatch(
        zeros, np.zeros((1, 1), int), np.ones((1, 1), np.float32), false, true, true, zeros[0], np.array([0]), zeros[0]
    )


@pytest.mark.full
@pytest.mark.default("ppo")
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_learns_a_continuous_target(algorithm):
    configs = {"ppo": PPOConfig(rollout_length=32, **FAST), "a2c": CONFIGS["a2c"]}
    trainer, _ = train(algorithm, "drl/Target-v0", 20_000, configs[algorithm])
    targets = np.array([[-0.8], [0.0], [0.8]], np.float32)
    np.testing.assert_allclose(trainer.agent.act(targets) / 2, targets, atol=0.2)


@pytest.mark.full
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    "algorithm", ["ppo", *(pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS if name != "ppo")]
)
def test_compiled_update_is_the_same_update(algorithm):
    logs = []
    for compiled in (False, True):
        torch._dynamo.reset()
        trainer, log = train(algorithm, "drl/Match-v0", 200, compile_update=compiled)
        logs.append(log.learn)
        parameters = torch.cat([p.detach().flatten() for p in trainer.agent.model.parameters()])
        logs.append(parameters)
    torch.testing.assert_close(logs[1], logs[3], rtol=1e-3, atol=1e-4)
    for name, value in logs[0].items():
        assert logs[2][name] == pytest.approx(value, rel=1e-2, abs=1e-4), name


def test_target_kl_stops_the_epochs():
    config = PPOConfig(rollout_length=16, epochs=50, target_kl=1e-4, minibatches=1, learning_rate=0.01)
    _, log = train("ppo", "drl/Match-v0", 60, config)
    assert log.trainer["gradient_steps"] < 50


def test_separate_learning_rates_change_only_their_own_network():
    config = PPOConfig(rollout_length=16, critic_learning_rate=1e-12)
    with make_vec_env("drl/Match-v0", 2, seed=0) as envs:
        agent, learner = build_learner("ppo", envs, (MODEL, config), Seeds(0))
        before = {name: p.detach().clone() for name, p in agent.model.named_parameters()}
        trainer = Trainer(envs, agent, learner)
        trainer.step()
    after = dict(agent.model.named_parameters())
    assert torch.allclose(before["critic.head.weight"], after["critic.head.weight"], atol=1e-9)
    assert not torch.allclose(before["actor.head.weight"], after["actor.head.weight"], atol=1e-6)
