"""The third document: Model, Algorithm, Agent, Trainer; calling a trainer gives logs, and tracking wraps it."""

import itertools

import numpy as np
import pytest
import torch

from drl.algorithms.dqn import DQNConfig
from drl.algorithms.ppo import PPOConfig
from drl.buffers.replay_buffer import ReplayBuffer
from drl.buffers.rollout_buffer import RolloutBuffer
from drl.core.configs import EpsilonGreedyConfig, ModelConfig, QModelConfig, ReplayConfig
from drl.core.errors import BadInput
from drl.core.seeding import Seeds
from drl.engines.jax import build as jax_build
from drl.engines.numpy.exploration import EpsilonGreedy
from drl.engines.torch import build as torch_build
from drl.engines.torch.algorithms.dqn import DQN
from drl.envs.make_vec_env import make_vec_env
from drl.runs.stages import tracked
from drl.tracking.files import JsonlTracker, read_metrics
from drl.trainer.trainer import Trainer, TrainerConfig

BUILDERS = {"torch": torch_build.build_learner, "jax": jax_build.build_learner}
SMALL_REPLAY = ReplayConfig(batch_size=8, warmup=16, capacity=1000, updates_per_log=4)


def make_trainer(envs, engine="torch", algorithm="ppo", **budget):
    if algorithm == "ppo":
        configs = (ModelConfig(hidden_sizes=(8,)), PPOConfig(epochs=1, rollout_length=16))
        buffer = RolloutBuffer(envs, 16)
    else:
        configs = (QModelConfig(hidden_sizes=(8,)), DQNConfig())
        buffer = ReplayBuffer(envs, SMALL_REPLAY)
    agent, learner = BUILDERS[engine](algorithm, envs, configs, Seeds(3))
    return Trainer(envs, agent, learner, buffer, TrainerConfig(**budget))


@pytest.fixture
def envs():
    with make_vec_env("CartPole-v1", 2, seed=3) as made:
        yield made


def test_the_loop_of_the_document(envs, capsys):
    trainer = make_trainer(envs, total_timesteps=200)
    for log_data in trainer():
        print(log_data)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7  # rollouts of 32 until 200 are reached
    assert lines[-1].startswith("step 224 · ")
    assert "mean_ep_return" in lines[-1]
    assert "policy_loss" in lines[-1]
    assert list(trainer()) == []  # the budget is used


def test_without_a_budget_it_is_endless_and_iterating_goes_on(envs):
    trainer = make_trainer(envs)
    steps = [log["env_steps"] for _ in range(3) for log in itertools.islice(trainer(), 2)]
    assert steps == [32, 64, 96, 128, 160, 192]


@pytest.mark.parametrize(("budget", "steps"), [({"total_timesteps": 10}, 10), ({"total_timesteps": 37}, 38)])
def test_a_replay_ends_at_the_step(envs, budget, steps):
    """Also within the warm-up; two environments step together."""
    logs = list(make_trainer(envs, algorithm="dqn", **budget)())
    assert logs[-1].env_steps == steps
    assert logs[-1].learn.keys() == (set() if steps < 16 else logs[-1].learn.keys())


def test_an_episode_budget_ends_at_the_episode():
    with make_vec_env("CartPole-v1", 1, seed=3) as envs:
        logs = list(make_trainer(envs, algorithm="dqn", num_episodes=3)())
    assert logs[-1].episodes == 3
    assert logs[-1].env_steps == sum(episode.length for log in logs for episode in log.finished)


def test_a_log_is_a_mapping(envs):
    log = next(iter(make_trainer(envs)()))
    numbers = dict(log)
    assert log["rollout_len"] == numbers["rollout/rollout_len"] == 32
    assert log["policy_loss"] == numbers["learn/policy_loss"]
    assert len(log) == len(numbers) == len(log.flat())
    assert set(log) == set(numbers)
    with pytest.raises(KeyError):
        log["nothing"]


@pytest.mark.parametrize("engine", BUILDERS)
def test_predict_sample_and_act_are_the_same_thing(envs, engine):
    for algorithm in ("ppo", "dqn"):
        agent = make_trainer(envs, engine, algorithm).agent
        obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
        np.testing.assert_array_equal(agent.predict(obs), agent.act(obs))
        if algorithm == "dqn":
            agent.exploration = EpsilonGreedy(EpsilonGreedyConfig(epsilon_start=0.5), agent.action_spec)
        agent.rng = np.random.default_rng(1)
        sampled = agent.sample(obs)
        agent.rng = np.random.default_rng(1)
        np.testing.assert_array_equal(agent.act(obs, explore=True), sampled)
        assert (sampled != agent.predict(obs)).any()


@pytest.mark.parametrize("engine", BUILDERS)
def test_an_algorithm_predicts_what_its_agent_chooses_from(envs, engine):
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    ppo = make_trainer(envs, engine)
    np.testing.assert_allclose(ppo.algorithm.predict(obs), ppo.agent.dist_params(obs), atol=1e-5)
    dqn = make_trainer(envs, engine, "dqn")
    q_values = dqn.algorithm.predict(obs)
    np.testing.assert_allclose(q_values, dqn.agent.q_values(obs), atol=1e-5)
    np.testing.assert_array_equal(q_values.argmax(axis=1), dqn.agent.predict(obs))


@pytest.mark.parametrize("engine", BUILDERS)
def test_sync_target_makes_both_networks_equal(envs, engine):
    trainer = make_trainer(envs, engine, "dqn")
    trainer.step()
    learner = trainer.algorithm

    def difference():
        if engine == "torch":
            pairs = zip(learner.model.parameters(), learner.target_network.module.parameters(), strict=True)
            return max(float((one - two).detach().abs().max()) for one, two in pairs)
        return max(
            float(np.abs(learner.target_params[name] - array).max()) for name, array in learner.model_state.host.items()
        )

    assert difference() > 0
    learner.sync_target()
    assert difference() == 0
    make_trainer(envs, engine).algorithm.sync_target()  # no target network: nothing to do


def test_tracking_decorates_the_trainers_call(envs, tmp_path):
    class Tracked(Trainer):
        __call__ = tracked(JsonlTracker(tmp_path / "metrics.jsonl"))(Trainer.__call__)

    plain = make_trainer(envs, total_timesteps=96)
    trainer = Tracked(envs, plain.agent, plain.algorithm, plain.buffer, plain.config)
    told = [log.env_steps for log in trainer()]
    assert [row["env_steps"] for row in read_metrics(tmp_path / "metrics.jsonl")] == told == [32, 64, 96]


def test_learn_returns_logs_and_a_model_is_any_module(envs):
    """`Algorithm.learn(batch)` gives what to log, and a hand-made model is behind it."""
    model = torch.nn.Linear(4, 2)
    dqn = DQN(model, envs)
    buffer = ReplayBuffer(envs, SMALL_REPLAY)
    obs = envs.reset()
    while not buffer.ready:
        action = np.zeros(2, np.int64)
        step = envs.step(action)
        buffer.add(obs, action, step)
        obs = step.obs
    learned = dqn.learn(buffer.take())
    assert {"loss", "mean_q", "grad_norm"} <= learned.log.keys()
    assert learned.priority.shape == (8,)


def test_more_updates_than_steps_between_two_logs(envs):
    """Observations are normalized while a learning step may collect nothing new."""
    config = ReplayConfig(batch_size=8, warmup=8, train_every=8, gradient_steps=8, updates_per_log=4, capacity=1000)
    agent, dqn = torch_build.build_learner("dqn", envs, (QModelConfig(), DQNConfig()), Seeds(0), normalize_obs=True)
    trainer = Trainer(envs, agent, dqn, ReplayBuffer(envs, config))
    logs = list(itertools.islice(trainer(), 6))
    assert 0 in [log.rollout["rollout_len"] for log in logs]
    assert agent.normalizer.count == logs[-1].env_steps


def test_a_budget_must_be_one():
    with pytest.raises(BadInput, match="total_timesteps is 0"):
        TrainerConfig(total_timesteps=0)
