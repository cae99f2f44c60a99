"""Every algorithm learns with action masks, in both engines, fused and recurrent; an illegal action is never taken.

In `drl/LegalMoves-v0` an illegal action raises (Gymnasium) or costs 100 (JAX), and the highest legal one is best.
"""

import flax.linen as nn
import numpy as np
import optax
import pytest

from drl.agents.evaluation import evaluate
from drl.algorithms.ppo import PPOConfig
from drl.buffers.replay_buffer import ReplayBuffer
from drl.core.specs import Distribution
from drl.core.state_files import read_state, write_state
from drl.engines.jax import agents as jax_agents
from drl.engines.jax.algorithms.dqn import DQN
from drl.engines.jax.algorithms.ppo import PPO
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.models import FlaxModel
from drl.envs.make_vec_env import make_vec_env
from drl.runs.building import open_trainer
from drl.settings.experiment import Experiment
from drl.trainer.trainer import Trainer

ID, BEST = "drl/LegalMoves-v0", 4.116  # mean return of the highest legal action
SETTINGS = {
    "ppo": {"total_timesteps": 8000, "learning_rate": 5e-3},
    "a2c": {"total_timesteps": 10_000, "learning_rate": 5e-3, "optimizer": "adam"},
    "reinforce": {"total_timesteps": 12_000, "learning_rate": 5e-3, "episodes_per_step": 16},
    "dqn": {"total_timesteps": 4000, "learning_rate": 3e-3, "warmup": 200, "batch_size": 64, "train_every": 4},
}
FORMS = [("torch", "sync"), ("jax", "sync"), ("jax", "jax")]
RUNS = [(algorithm, *form) for algorithm in SETTINGS for form in FORMS] + [("ppo", "torch", "async")]
SLOW = [("a2c", "jax", "jax"), ("reinforce", "jax", "jax")]  # programs like that of ppo


def experiment(algorithm, **changes):
    flat = {"algorithm": algorithm, "env": ID, "num_envs": 4, "hidden_sizes": [16], "gamma": 0.5}
    return Experiment.from_flat(flat | SETTINGS[algorithm] | changes, "test")


def learns(run):
    with open_trainer(run) as trainer:
        for log in trainer():
            assert min((episode.episode_return for episode in log.finished), default=0.0) >= 0.0
    return evaluate(trainer.agent, ID, 200).summary()["mean_return"], trainer


def test_the_best_return_is_as_stated():
    rng = np.random.default_rng(0)
    legal = rng.random((500_000, 4)) < 0.5
    legal[np.arange(500_000), rng.integers(4, size=500_000)] = True
    assert 5 * (legal * np.arange(4)).max(axis=1).mean() / 3 == pytest.approx(BEST, abs=0.01)


@pytest.mark.default("dqn-torch-sync")
@pytest.mark.parametrize(
    ("algorithm", "engine", "vectorization"),
    [pytest.param(*each, marks=pytest.mark.slow if each in SLOW else ()) for each in RUNS],
)
def test_the_highest_legal_action_is_learned(algorithm, engine, vectorization):
    score, _ = learns(experiment(algorithm, engine=engine, vectorization=vectorization))
    assert score > BEST - 0.15


@pytest.mark.full
@pytest.mark.default("gru-ppo")
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_masked_and_recurrent(algorithm, kind):
    settings = {"recurrent": kind, "recurrent_size": 8} | ({"minibatches": 4} if algorithm == "ppo" else {})
    score, _ = learns(experiment(algorithm, **settings))
    assert score > BEST - 0.15


SOME, OTHERS = {"n_step": 3, "prioritized": True}, {"double": True, "dueling": True, "distributional": "c51"}


@pytest.mark.full
@pytest.mark.default("torch-sync-switches1")
@pytest.mark.parametrize(
    ("engine", "vectorization", "switches"),
    [("torch", "sync", SOME), ("torch", "sync", OTHERS), ("jax", "jax", SOME | OTHERS)],
)
def test_masks_go_with_every_switch(engine, vectorization, switches):
    score, _ = learns(experiment("dqn", engine=engine, vectorization=vectorization, **switches))
    assert score > BEST - 0.3


def test_masks_are_part_of_a_checkpoint(tmp_path):
    _, trainer = learns(experiment("dqn", total_timesteps=600))
    write_state(tmp_path, trainer.state_dict())
    state = read_state(tmp_path)
    assert trainer.buffer.masks["next_action_mask"].any(axis=1).all()
    for name, mask in trainer.buffer.masks.items():
        (stored,) = state["buffer"]["masks"][name]
        np.testing.assert_array_equal(stored.rows, mask[: trainer.buffer.size])
    np.testing.assert_array_equal(state["envs"]["action_mask"], trainer.collector.envs.action_mask)


class FlaxNet(nn.Module):
    """A policy and a value, as Flax writes them."""

    @nn.compact
    def __call__(self, obs):
        hidden = nn.tanh(nn.Dense(16)(obs))
        return nn.Dense(4)(hidden), nn.Dense(1)(hidden).squeeze(-1)


class FlaxQ(nn.Module):
    @nn.compact
    def __call__(self, obs):
        return nn.Dense(4)(nn.relu(nn.Dense(16)(obs)))


@pytest.mark.full
def test_a_flax_tree_and_an_optax_optimizer_train_save_and_load(tmp_path):
    with make_vec_env(ID, 4, seed=0) as envs:
        model = FlaxModel(FlaxNet(), envs.obs_spec)
        state = ModelState(model, model.init(np.random.default_rng(0)))
        agent = jax_agents.PolicyAgent(state, envs, rng=np.random.default_rng(1))
        assert agent.distribution == Distribution.on(envs.action_spec)
        config = PPOConfig(rollout_length=64, learning_rate=5e-3, gamma=0.5, optimizer=optax.adabelief)
        ppo = PPO(state, envs, config)
        trainer = Trainer(envs, agent, ppo)
        for _ in range(25):
            trainer.step()
    assert evaluate(agent, ID, 200).summary()["mean_return"] > BEST - 0.15
    agent.save(tmp_path)
    again = jax_agents.PolicyAgent.load(tmp_path, model=model)
    obs = np.random.default_rng(0).random((9, 1), np.float32)
    np.testing.assert_allclose(again.dist_params(obs), agent.dist_params(obs), rtol=1e-6)
    saved = ppo.state_dict()
    ppo.load_state_dict(saved)


def test_dqn_takes_a_flax_tree_too():
    with make_vec_env(ID, 2, seed=0) as envs:
        model = FlaxModel(FlaxQ(), envs.obs_spec)
        state = ModelState(model, model.init(np.random.default_rng(0)))
        learner, agent = DQN(state, envs), jax_agents.QAgent(state, envs)
        before = agent.q_values(np.ones((1, 1), np.float32))
        run = experiment("dqn", total_timesteps=None)
        buffer = ReplayBuffer(envs, run.buffer)
        trainer = Trainer(envs, agent, learner, buffer)
        trainer.step()
        assert not np.allclose(agent.q_values(np.ones((1, 1), np.float32)), before)
