"""Action masks from the environment to the agent and to the buffers, for every way to say them and to step."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from drl.buffers.replay_buffer import ReplayBuffer
from drl.buffers.rollout_buffer import EpisodeBuffer, RolloutBuffer
from drl.core.configs import EpsilonGreedyConfig, ModelConfig, QModelConfig, RandomStartConfig
from drl.core.contracts import Learned
from drl.core.errors import EnvFailed
from drl.core.state_files import read_state, write_state
from drl.engines.jax import agents as jax_agents
from drl.engines.jax import models as jax_models
from drl.engines.jax.model_state import ModelState
from drl.engines.numpy.exploration import EpsilonGreedy, RandomStart
from drl.engines.torch import agents as torch_agents
from drl.engines.torch import models as torch_models
from drl.envs.async_vec_env import AsyncVecEnv
from drl.envs.env_wrappers import StackedVecEnv
from drl.envs.make_vec_env import make_vec_env
from drl.envs.native_vec_env import wrap_vector_env
from drl.envs.sync_vec_env import SyncVecEnv
from drl.trainer.trainer import Trainer

STATES = 30
DEAD_END = STATES  # a last state in which there is nothing left to do
ACTIONS = {
    "discrete": spaces.Discrete(4, start=2),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary(2),
}
SIZES = {"discrete": (4,), "multi_discrete": (2, 3), "multi_binary": (2, 2)}


def legal_in(state, kind="discrete"):
    """The rules: which actions are legal is a fixed function of the state; one at least for each entry."""
    if state == DEAD_END:
        return np.zeros(sum(SIZES[kind]), bool)
    rng = np.random.default_rng(int(state))
    parts = [rng.random(size) < 0.4 for size in SIZES[kind]]
    for part in parts:
        part[rng.integers(len(part))] = True
    return np.concatenate(parts)


def masks_in(obs, kind="discrete"):
    """`[…, choices]`: what is legal in observations of states; everything in a dead end, where nobody will act."""
    states = np.asarray(obs)[..., 0].astype(int)
    rows = [np.ones(sum(SIZES[kind]), bool) if s == DEAD_END else legal_in(s, kind) for s in states.ravel()]
    return np.array(rows).reshape(*states.shape, -1)


class Rules(gym.Env):
    """Wanders at random, shows its state and fails at an illegal action. `how` is where it says what is legal."""

    def __init__(self, how="info", kind="discrete", as_parts=False):
        self.how, self.kind, self.as_parts = how, kind, as_parts
        self.action_space = ACTIONS[kind]
        self.observation_space = spaces.Box(0, STATES, (1,), np.float32)
        if how == "key":
            mask = spaces.MultiBinary(sum(SIZES[kind]))
            self.observation_space = spaces.Dict(action_mask=mask, state=self.observation_space)
        self.state = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = int(self.np_random.integers(STATES))
        return self._answer()

    def step(self, action):
        units = np.ravel(action) - np.ravel(getattr(self.action_space, "start", 0))
        starts = np.cumsum([0, *SIZES[self.kind][:-1]])
        assert legal_in(self.state, self.kind)[starts + units].all(), f"{action} is illegal in state {self.state}"
        self.state = int(self.np_random.integers(STATES))
        draw = self.np_random.random()
        terminated, truncated = draw < 0.15, 0.1 < draw < 0.25
        if draw < 0.05:
            self.state = DEAD_END
        obs, info = self._answer()
        return obs, 1.0, terminated, truncated, info

    def _answer(self):
        mask, obs = legal_in(self.state, self.kind), np.array([self.state], np.float32)
        if self.as_parts:  # as `Space.sample(mask=…)` of a MultiDiscrete wants it
            mask = tuple(np.split(mask, np.cumsum(SIZES[self.kind])[:-1]))
        if self.how == "key":
            return {"state": obs, "action_mask": np.asarray(mask, np.int8)}, {}
        return obs, {"action_mask": mask} if self.how == "info" else {}


class RulesWithMethod(Rules):
    def action_masks(self):
        return legal_in(self.state, self.kind)


class VectorWithMethod(SyncVectorEnv):
    """A vector environment that has the method itself; its sub-environments may reset before it is asked."""

    def action_masks(self):
        return np.array(self.call("action_masks"))


def native(mode, copy=True):
    def make(env_fns):
        has_method = hasattr(env_fns[0](), "action_masks")
        return wrap_vector_env((VectorWithMethod if has_method else SyncVectorEnv)(env_fns, copy, autoreset_mode=mode))

    return make


VECS = {
    "sync": lambda env_fns: SyncVecEnv(env_fns, seed=0),
    "async": lambda env_fns: AsyncVecEnv(env_fns, seed=0),
    "next_step": native(AutoresetMode.NEXT_STEP),
    "same_step": native(AutoresetMode.SAME_STEP),
    "disabled": native(AutoresetMode.DISABLED),
    "disabled_one_buffer": native(AutoresetMode.DISABLED, copy=False),
}
each_vec = pytest.mark.parametrize("vec", VECS)


def make_envs(vec="sync", how="info", kind="discrete", count=3, as_parts=False):
    make = RulesWithMethod if how == "method" else Rules
    return VECS[vec]([lambda: make(how, kind, as_parts)] * count)


def some_legal(mask, kind, rng):
    """A random legal action for each environment, in the policy's units."""
    parts = np.split(rng.random(mask.shape) * mask, np.cumsum(SIZES[kind])[:-1], axis=1)
    drawn = np.stack([part.argmax(axis=1) for part in parts], axis=1)
    return drawn[:, 0] if kind == "discrete" else drawn


def play(envs, kind="discrete", steps=120):
    """Steps of random legal actions."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield envs.step(envs.action_spec.to_env(some_legal(envs.action_mask, kind, rng)))


# ── environments ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.default("*-sync", "*step", "*disabled*", "info-async")
@each_vec
@pytest.mark.parametrize("how", ["info", "method", "key"])
def test_masks_are_those_of_the_states(vec, how):
    with make_envs(vec, how) as envs:
        np.testing.assert_array_equal(masks_in(envs.reset()), envs.action_mask)
        ends = 0
        for step in play(envs):
            assert step.action_mask is envs.action_mask
            assert step.action_mask.dtype == step.next_action_mask.dtype == bool
            ended = step.terminated | step.truncated
            # Environments that reset one call later ignore the next action: until then everything is legal.
            acts = ~ended if vec == "next_step" else np.ones(3, bool)
            np.testing.assert_array_equal(step.action_mask[acts], masks_in(step.obs)[acts])
            # A method is asked after the reset: what was legal in the last state of an episode is lost.
            known = ~ended if vec == "same_step" and how == "method" else np.ones(3, bool)
            np.testing.assert_array_equal(step.next_action_mask[known], masks_in(step.next_obs)[known])
            ends += ended.sum()
        assert ends > 20


@pytest.mark.default("*-sync", "*-same_step", "multi_discrete-True-async")
@pytest.mark.parametrize("vec", ["sync", "async", "same_step"])
@pytest.mark.parametrize("as_parts", [False, True])
@pytest.mark.parametrize("kind", ["multi_discrete", "multi_binary"])
def test_masks_of_actions_with_several_entries(vec, kind, as_parts):
    with make_envs(vec, kind=kind, as_parts=as_parts) as envs:
        np.testing.assert_array_equal(envs.reset().shape, (3, 1))
        for step in play(envs, kind, 40):
            np.testing.assert_array_equal(step.action_mask, masks_in(step.obs, kind))
            np.testing.assert_array_equal(step.next_action_mask, masks_in(step.next_obs, kind))


@pytest.mark.parametrize("vec", ["sync", "next_step"])
def test_masks_of_stacked_frames(vec):
    with StackedVecEnv(make_envs(vec), 2) as envs:
        envs.reset()
        for step in play(envs, steps=60):
            acts = step.valid & ~(step.terminated | step.truncated)
            np.testing.assert_array_equal(step.action_mask[acts], masks_in(step.obs[:, -1:])[acts])
            np.testing.assert_array_equal(step.next_action_mask, masks_in(step.next_obs[:, -1:]))
            assert envs.action_mask is step.action_mask


@pytest.mark.parametrize("mode", AutoresetMode)
def test_methods_of_environments_inside_a_vector_environment_are_found(mode):
    with wrap_vector_env(SyncVectorEnv([lambda: RulesWithMethod("method")] * 2, autoreset_mode=mode)) as envs:
        np.testing.assert_array_equal(masks_in(envs.reset()), envs.action_mask)


@each_vec
def test_the_mask_is_not_part_of_the_observation(vec):
    with make_envs(vec, "key") as envs:
        assert envs.obs_spec.keys == ("state",)
        assert envs.reset().shape == (3, 1)
        step = next(play(envs))
        assert step.obs.shape == step.next_obs.shape == (3, 1)


@each_vec
def test_no_masks_are_none(vec):
    with make_envs(vec, "nowhere", count=1) as envs:
        state = int(envs.reset()[0, 0])
        assert envs.action_mask is None
        step = envs.step(envs.action_spec.to_env(legal_in(state).argmax()[None]))
        assert step.action_mask is step.next_action_mask is None


@pytest.mark.default("sync")
@each_vec
def test_masks_survive_a_trip_to_disk(tmp_path, vec):
    with make_envs(vec) as envs, make_envs(vec) as others:
        envs.reset()
        for _ in play(envs, steps=7):
            pass
        write_state(tmp_path / "state", envs.state_dict())
        others.load_state_dict(read_state(tmp_path / "state"))
        np.testing.assert_array_equal(others.action_mask, envs.action_mask)
        assert others.action_mask.dtype == bool
        np.testing.assert_array_equal(masks_in(others.reset()), others.action_mask)  # a new episode, new masks


# ── what cannot be right ──────────────────────────────────────────────────────────────────────────────────────────


class Says(gym.Env):
    """Gives the mask that it is told to; None: none at all."""

    def __init__(self, mask, action_space=None, last_mask=None, length=3):
        self.mask, self.last_mask, self.length = mask, last_mask, length
        self.observation_space, self.action_space = spaces.Box(0, 1, (1,)), action_space or spaces.Discrete(3)

    def _info(self, mask):
        return {} if mask is None else {"action_mask": np.array(mask, np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), self._info(self.mask)

    def step(self, action):
        self.count += 1
        ends = self.count == self.length
        return np.zeros(1, np.float32), 0.0, ends, False, self._info(self.last_mask if ends else self.mask)


@pytest.mark.default("*-sync", "only some-*")
@each_vec
@pytest.mark.parametrize(
    ("masks", "action_space", "message"),
    [
        ([[1, 1], [1, 1]], None, "2 entries; expected 3"),
        ([[1, 1, 1], [0, 0, 0]], None, "leaves environment 1 no legal action"),
        ([[1, 1, 0, 0, 0]] * 2, spaces.MultiDiscrete([2, 3]), "leaves environment 0 no legal action"),
        ([[1, 1]] * 2, spaces.Box(-1, 1, (2,), np.float32), "a Box"),
        ([[1, 1, 1], None], None, "environment 1 gives no action mask"),
    ],
    ids=["width", "no legal action", "no legal entry", "box", "only some"],
)
def test_masks_that_cannot_be_right(vec, masks, action_space, message):
    env_fns = [lambda m=mask: Says(m, action_space) for mask in masks]
    with VECS[vec](env_fns) as envs, pytest.raises(EnvFailed, match=message):
        envs.reset()


@each_vec
def test_a_dead_end_that_is_not_the_end(vec):
    class DeadEnd(Says):
        def step(self, action):
            return np.zeros(1, np.float32), 0.0, False, False, self._info([0, 0, 0])

    with VECS[vec]([lambda: DeadEnd([1, 1, 1])] * 2) as envs:
        envs.reset()
        with pytest.raises(EnvFailed, match="leaves environment 0 no legal action"):
            envs.step(np.array([0, 0]))


@each_vec
@pytest.mark.parametrize("lengths", [(3,), (3, 5)], ids=["one", "two"])
def test_an_episode_may_end_without_a_mask(vec, lengths):
    """There is nothing left to do: everything counts as legal, as where the last mask has no legal action."""
    with VECS[vec]([lambda n=length: Says([1, 0, 1], length=n) for length in lengths]) as envs:
        envs.reset()
        for _ in range(20):
            step = envs.step(np.zeros(len(lengths), int))
            ended, last = step.terminated[:, None], step.next_action_mask
            last = np.ones((len(lengths), 3)) if last is None else last
            np.testing.assert_array_equal(last, [[1, 0, 1]] | ended)
            np.testing.assert_array_equal(step.action_mask, [[1, 0, 1]] | (ended & (vec == "next_step")))


# ── agents ────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_policy_agent(engine, envs):
    specs, rng = (envs.obs_spec, envs.action_spec), np.random.default_rng(0)
    config = ModelConfig(hidden_sizes=(8,))
    if engine == "torch":
        model = torch_models.make_policy_model(*specs, config, torch.Generator().manual_seed(0))
        return torch_agents.PolicyAgent(model, envs, rng=rng)
    model = jax_models.make_policy_model(*specs, config)
    return jax_agents.PolicyAgent(ModelState(model, model.init(rng)), envs, rng=rng)


def make_q_agent(engine, envs):
    specs, rng = (envs.obs_spec, envs.action_spec), np.random.default_rng(0)
    config = QModelConfig(hidden_sizes=(8,))
    if engine == "torch":
        model = torch_models.make_q_value_model(*specs, config, torch.Generator().manual_seed(0))
        return torch_agents.QAgent(model, envs, rng=rng)
    model = jax_models.make_q_value_model(*specs, config)
    return jax_agents.QAgent(ModelState(model, model.init(rng)), envs, rng=rng)


@pytest.mark.parametrize("engine", ["torch", "jax"])
@pytest.mark.parametrize("explores", ["alone", "random_start"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_a_policy_takes_no_illegal_action(engine, explores, kind):
    with make_envs(kind=kind) as envs:
        agent = make_policy_agent(engine, envs)
        if explores == "random_start":
            agent.exploration = RandomStart(RandomStartConfig(random_steps=10_000), envs.action_spec)
        obs = envs.reset()
        for number in range(500):  # the environment fails at an illegal action
            action = agent.decide(obs, number % 5 > 0, envs.action_mask)
            obs = envs.step(envs.action_spec.to_env(action)).obs


@pytest.mark.parametrize("engine", ["torch", "jax"])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_action_values_take_no_illegal_action(engine, epsilon):
    with make_envs() as envs:
        agent = make_q_agent(engine, envs)
        agent.exploration = EpsilonGreedy(EpsilonGreedyConfig(epsilon_start=epsilon), envs.action_spec)
        obs = envs.reset()
        for _ in range(500):
            obs = envs.step(envs.action_spec.to_env(agent.decide(obs, True, envs.action_mask))).obs


@pytest.mark.parametrize("engine", ["torch", "jax"])
@pytest.mark.parametrize("make_agent", [make_policy_agent, make_q_agent], ids=["policy", "q"])
def test_act_finds_the_mask_in_an_observation_or_beside_it(engine, make_agent):
    env = Rules("key")
    with make_envs(how="key") as envs:
        agent = make_agent(engine, envs)
    obs, _ = env.reset(seed=0)
    for number in range(100):
        beside = {"state": obs["state"]}
        action = agent.act(obs, number % 2 > 0) if number % 3 else agent.act(beside, True, obs["action_mask"])
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()


@pytest.mark.parametrize("explore", [False, True])
def test_taxi(explore):
    with make_vec_env("Taxi", 2, seed=0, vectorization="sync") as envs:
        agent, obs = make_policy_agent("torch", envs), envs.reset()
        for _ in range(200):
            action = agent.decide(obs, explore, envs.action_mask)
            for env, chosen in zip(envs.envs, action, strict=True):
                assert env.unwrapped.action_mask(env.unwrapped.s)[chosen]
            obs = envs.step(action).obs
        assert not envs.action_mask.all()


# ── buffers, filled by a trainer ──────────────────────────────────────────────────────────────────────────────────


class Witness:
    """Learns nothing, keeps the masks beside the states that they should belong to."""

    needs = "policy_only"

    def __init__(self):
        self.rows = 0

    def learn(self, batch, progress=0.0):
        if hasattr(batch, "next_obs"):
            np.testing.assert_array_equal(batch.next_action_mask, masks_in(batch.next_obs))
        else:
            valid = batch.valid
            np.testing.assert_array_equal(batch.action_mask[valid], masks_in(batch.obs)[valid])
            chosen = np.take_along_axis(batch.action_mask, batch.action[..., None], axis=-1)
            assert chosen.all()
        self.rows += batch.reward.size
        return Learned({})


def make_buffer(name, envs):
    if name == "rollout":
        return RolloutBuffer(envs, 16)
    if name == "episode":
        return EpisodeBuffer(envs, 5)
    n_step = int(name.rpartition("_")[2])
    return ReplayBuffer(envs, batch_size=8, capacity=50, warmup=0, n_step=n_step, gamma=0.9)


@pytest.mark.parametrize("vec", ["sync", "next_step"])
@pytest.mark.parametrize("name", ["rollout", "episode", "replay_1", "replay_3"])
def test_buffers_hand_out_masks_beside_their_rows(name, vec):
    with make_envs(vec) as envs:
        trainer = Trainer(envs, make_policy_agent("torch", envs), Witness(), make_buffer(name, envs))
        while trainer.env_steps < 600:
            trainer.step()
    assert trainer.algorithm.rows >= 500


@pytest.mark.parametrize("name", ["rollout", "episode", "replay_1", "replay_3"])
def test_masks_in_buffers_survive_a_trip_to_disk(tmp_path, name):
    with make_envs() as envs:
        trainer = Trainer(envs, make_policy_agent("torch", envs), Witness(), make_buffer(name, envs))
        for _ in range(3):
            trainer.step()
        while trainer.buffer.ready:
            trainer.buffer.take()
        trainer._add(trainer.collector.step(trainer.env_steps))
        write_state(tmp_path / "state", {"buffer": trainer.buffer.state_dict()})
        trainer.buffer = make_buffer(name, envs)
        trainer.buffer.load_state_dict(read_state(tmp_path / "state")["buffer"])
        before = trainer.algorithm.rows
        for _ in range(5):
            trainer.step()
    assert trainer.algorithm.rows > before
