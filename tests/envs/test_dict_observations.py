"""Observations with several parts: encoded by key, images kept as bytes, an encoder for each, in both engines."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from drl.agents.evaluation import evaluate
from drl.agents.load_agent import load_agent
from drl.buffers.replay_buffer import ReplayBuffer
from drl.buffers.rollout_buffer import RolloutBuffer
from drl.core.configs import ModelConfig, QModelConfig
from drl.core.errors import BadInput
from drl.core.normalize import ObsNormalizer, obs_normalizer
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.core.state_files import read_state, write_state
from drl.engines.jax import models as jax_models
from drl.engines.jax.backbones import fields
from drl.engines.torch import models as torch_models
from drl.engines.torch.ops import to_tensors
from drl.envs.make_vec_env import make_vec_env
from drl.envs.spaces import obs_spec
from drl.runs.building import build_trainer, open_trainer
from drl.settings.experiment import Experiment

PARTS = spaces.Dict(
    view=spaces.Box(0, 255, (7, 7, 3), np.uint8),
    speed=spaces.Box(-1, 1, (2,), np.float32),
    gear=spaces.Discrete(3, start=1),
    pair=spaces.Tuple([spaces.MultiBinary(2), spaces.Box(0, 1, (1,), np.float32)]),
)
SPEC = obs_spec(PARTS)
ACTION = ActionSpec("discrete", sizes=(3,))


class Signs(gym.Env):
    """The brightness of the view and the gear say which of three actions pays; every part matters."""

    observation_space, action_space = PARTS, spaces.Discrete(3)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def _obs(self):
        self.bright, self.gear = int(self.np_random.integers(2)), int(self.np_random.integers(1, 4))
        view = np.full((7, 7, 3), 200 * self.bright, np.uint8)
        pair = (np.array([0, 1], np.int8), np.array([0.5], np.float32))
        return {"view": view, "speed": np.array([40.0, -3.0], np.float32), "gear": self.gear, "pair": pair}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action):
        reward = float(action == (self.gear - 1 + self.bright) % 3)
        return self._obs(), reward, True, False, {}


class Goal(gym.Env):
    """A GoalEnv: reach the desired position on a line."""

    observation_space = spaces.Dict(
        {key: spaces.Box(-9, 9, (1,), np.float32) for key in ("observation", "achieved_goal", "desired_goal")}
    )
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def _obs(self):
        keys = {"observation": self.place, "achieved_goal": self.place, "desired_goal": self.goal}
        return {key: np.array([value], np.float32) for key, value in keys.items()}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal, self.steps = 0.0, float(self.np_random.choice([-3, 3])), 0
        return self._obs(), {}

    def step(self, action):
        self.place, self.steps = self.place + (1.0 if action else -1.0), self.steps + 1
        won = self.place == self.goal
        return self._obs(), float(won), won, self.steps >= 8, {"is_success": won}


gym.register("drl_test/Signs-v0", Signs)
gym.register("drl_test/Goal-v0", Goal)


def sample(count, seed=0):
    PARTS.seed(seed)
    single = [PARTS.sample() for _ in range(count)]
    return np.stack([SPEC.encode_one(obs) for obs in single]), single


def test_parts_keep_their_types_and_their_names():
    rows, single = sample(5)
    assert rows.shape == (5,)
    assert set(rows.dtype.names) == {"gear", "pair.0", "pair.1", "speed", "view"}
    assert rows["view"].dtype == np.uint8
    assert rows["view"].shape == (5, 3, 7, 7)
    np.testing.assert_array_equal(rows["view"][2], np.moveaxis(single[2]["view"], 2, 0))
    np.testing.assert_array_equal(rows["gear"].argmax(axis=1) + 1, [obs["gear"] for obs in single])
    assert ObsSpec.from_json(SPEC.to_json()) == SPEC


def test_a_dict_of_vectors_is_one_vector_with_columns_by_key():
    spec = obs_spec(Goal.observation_space)
    assert spec.shape == (3,)
    batch = {key: np.full((2, 1), number, np.float32) for number, key in enumerate(spec.keys)}
    for number, key in enumerate(spec.keys):
        assert (spec.encode(batch)[:, spec.columns(key)] == number).all()


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Graph(spaces.Discrete(2), None), spaces.Dict(a=spaces.Text(5))]
)
def test_text_and_graphs_are_refused_with_a_way_out(space):
    with pytest.raises(BadInput, match="wrap the environment"):
        obs_spec(space)


def test_text_beside_other_parts_is_left_out():
    with pytest.warns(UserWarning, match="'mission' of the observation is text and is left out"):
        spec = obs_spec(spaces.Dict(mission=spaces.Text(9), seen=spaces.Discrete(2)))
    assert spec.keys == ("seen",)


def test_every_field_of_floats_is_normalized_by_its_own_statistics():
    rows, _ = sample(500)
    normalizer = obs_normalizer(SPEC)
    normalizer.update(rows)
    scaled = normalizer(rows)
    np.testing.assert_array_equal(scaled["view"], rows["view"])
    np.testing.assert_allclose(scaled["speed"].mean(axis=0), 0.0, atol=1e-4)
    np.testing.assert_allclose(scaled["speed"].std(axis=0), 1.0, atol=1e-3)
    other = ObsNormalizer(SPEC.shape, SPEC.dtype)
    other.load_state_dict(normalizer.state_dict())
    np.testing.assert_array_equal(other(rows), scaled)


@pytest.mark.parametrize("variant", ["policy_value", "q_value"])
def test_both_engines_answer_alike(variant):
    rows, _ = sample(6)
    config = (
        QModelConfig(hidden_sizes=(8,), cnn_features=4)
        if variant == "q_value"
        else ModelConfig(hidden_sizes=(8,), cnn_features=4)
    )
    make = f"make_{variant}_model"
    ours = getattr(torch_models, make)(SPEC, ACTION, config, torch.Generator().manual_seed(0))
    theirs = getattr(jax_models, make)(SPEC, ACTION, config)
    params = {name: t.detach().numpy() for name, t in torch_models.parameters_by_name(ours).items()}
    assert params.keys() == theirs.init(np.random.default_rng(0)).keys()
    expected = ours(to_tensors(rows, torch.device("cpu")))
    answer = theirs.apply(params, fields(rows))
    pairs = zip(expected, answer, strict=True) if variant == "policy_value" else [(expected, answer)]
    for one, two in pairs:
        np.testing.assert_allclose(one.detach().numpy(), two, rtol=1e-5, atol=1e-6)


def test_buffers_keep_images_as_bytes():
    specs = EnvSpecs(SPEC, ACTION, num_envs=2)
    rollout, replay = RolloutBuffer(specs, 4), ReplayBuffer(specs, capacity=64, batch_size=8, warmup=8, gamma=0.9)
    assert rollout.obs.dtype["view"].base == np.uint8
    with make_vec_env("drl_test/Signs-v0", 2, seed=0) as envs:
        obs = envs.reset()
        for _ in range(10):
            action = np.zeros(2, int)
            step = envs.step(action)
            replay.add(obs, action, step)
            obs = step.obs
    batch = replay.take()
    assert batch.obs["view"].dtype == batch.next_obs["view"].dtype == np.uint8
    assert batch.obs.dtype == SPEC.dtype


SETTINGS = {
    "ppo": {"rollout_length": 64, "learning_rate": 5e-3, "gamma": 0.0},
    "a2c": {"rollout_length": 16, "learning_rate": 3e-3, "optimizer": "adam", "gamma": 0.0},
    "reinforce": {"episodes_per_step": 64, "learning_rate": 3e-3},
    "dqn": {"warmup": 100, "batch_size": 32, "train_every": 4, "updates_per_log": 10},
}


def experiment(algorithm, **changes):
    flat = {"algorithm": algorithm, "env": "drl_test/Signs-v0", "num_envs": 4, "hidden_sizes": [32], "cnn_features": 8}
    return Experiment.from_flat(flat | SETTINGS[algorithm] | changes, "test")


@pytest.mark.default("jax-dqn", "torch-a2c")
@pytest.mark.parametrize(
    ("engine", "algorithm"),
    [("torch", name) for name in SETTINGS]
    + [pytest.param("jax", name, marks=pytest.mark.slow if name in ("a2c", "reinforce") else ()) for name in SETTINGS],
)
def test_every_algorithm_learns_from_all_parts_and_its_agent_crosses_engines(tmp_path, engine, algorithm):
    learns = algorithm == "ppo"  # the others have the same network in front, and take longer
    steps = 5000 if learns else 200
    run = experiment(algorithm, engine=engine, total_timesteps=steps, normalize_obs=algorithm != "dqn")
    with open_trainer(run) as trainer:
        for log in trainer():
            if log.recent["mean_ep_return"] > 0.85:
                break
    assert not learns or evaluate(trainer.agent, "drl_test/Signs-v0", 60).summary()["mean_return"] > 0.8
    trainer.agent.save(tmp_path)
    rows, _ = sample(40, seed=5)
    for other in ("torch", "jax"):
        np.testing.assert_array_equal(load_agent(tmp_path, engine=other).decide(rows), trainer.agent.decide(rows))
    with pytest.raises(BadInput, match="convolutions"):
        load_agent(tmp_path, engine="numpy")


def test_a_run_goes_through_a_checkpoint(tmp_path):
    with make_vec_env("drl_test/Signs-v0", 4, seed=0) as envs:
        trainer = build_trainer(experiment("dqn", n_step=2, prioritized=True), envs)
        trainer.step()
        write_state(tmp_path, trainer.state_dict())
        other = build_trainer(experiment("dqn", n_step=2, prioritized=True), envs)
        other.load_state_dict(read_state(tmp_path))
        one, two = trainer.buffer.take(), other.buffer.take()
        np.testing.assert_array_equal(one.obs, two.obs)
        np.testing.assert_array_equal(one.next_obs, two.next_obs)


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_a_goal_environment_works_on_the_first_command(engine):
    run = Experiment.from_flat({"env": "drl_test/Goal-v0", "engine": engine, "total_timesteps": 6000}, "test")
    with open_trainer(run) as trainer:
        *_, log = trainer()
    assert log.recent["success_rate"] > 0.8
