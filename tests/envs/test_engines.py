"""One world, every engine: the same rows."""

import gymnasium as gym
import numpy as np
import pytest
from engines_under_test import FakePool, NoisyEnv, balance, cartpole, play
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from drl.envs.async_world import AsyncWorld
from drl.envs.envpool_world import EnvPoolWorld
from drl.envs.make import make_world
from drl.envs.native_world import wrap_vector_env
from drl.envs.open_world import OpenWorld
from drl.envs.probes import CountingEnv, CountingVectorEnv
from drl.envs.sync_world import SyncWorld

WORLDS = 4
ROWS = 40

ENGINES = {
    "sync": lambda: SyncWorld([CountingEnv] * WORLDS, seed=0),
    "sync by id": lambda: make_world("drl/Counting-v0", WORLDS, engine="sync"),
    "async": lambda: AsyncWorld([CountingEnv] * WORLDS, seed=0),
    "native NEXT_STEP": lambda: make_world("drl/Counting-v0", WORLDS, engine="native"),
    "native SAME_STEP": lambda: wrap_vector_env(CountingVectorEnv(WORLDS, AutoresetMode.SAME_STEP)),
    "native DISABLED": lambda: wrap_vector_env(CountingVectorEnv(WORLDS, AutoresetMode.DISABLED)),
    "gymnasium NEXT_STEP": lambda: _gymnasium(AutoresetMode.NEXT_STEP),
    "gymnasium DISABLED": lambda: _gymnasium(AutoresetMode.DISABLED),
    "envpool protocol": lambda: EnvPoolWorld(FakePool(WORLDS), 0, "drl/Counting-v0"),
}


def _gymnasium(mode: AutoresetMode) -> OpenWorld:
    return wrap_vector_env(SyncVectorEnv([CountingEnv] * WORLDS, copy=False, autoreset_mode=mode))


def _policy(obs, world):
    return int(3 * obs[0] + 2 * obs[1] + world) % 4


def _expected(world):
    """The counting world from its description, as plain rows and episodes."""
    rows, episodes, episode = [], [], 0
    while len(rows) < ROWS:
        step, last, total = 0, -1, 0.0
        length = 1 + (2 * episode + _policy((episode, 0), world)) % 5
        for step in range(length):
            action = _policy((episode, step), world)
            reward, ends = 100.0 * episode + step + 1, step + 1 == length
            total += reward
            terminated = ends and episode % 3 != 1
            flags = (terminated, ends and not terminated)
            rows.append(([episode, step, last], action, reward, *flags, [episode, step + 1, action]))
            last = action
        if len(rows) <= ROWS:
            success = None if episode % 3 else False  # what this world reports; it has no reward threshold
            episodes.append((total, length, terminated, success, world))
        episode += 1
    return rows[:ROWS], episodes


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_gives_the_same_rows_and_episodes(name):
    with ENGINES[name]() as world:
        rows, episodes = play(world, _policy, ROWS)
        for i in range(WORLDS):
            expected_rows, expected_episodes = _expected(i)
            assert rows[i] == expected_rows
            assert [tuple(e) for e in episodes[i]] == expected_episodes


@pytest.mark.parametrize("name", ENGINES)
def test_phantom_rows_count_nothing(name):
    with ENGINES[name]() as world:
        obs, valid, finished, reward = world.reset(), 0, 0, 0.0
        for _ in range(60):
            step = world.step(np.array([_policy(obs[i], i) for i in range(WORLDS)]))
            valid += int(step.valid.sum())
            finished += len(step.episodes)
            reward += float(step.reward.sum())
            assert not step.reward[~step.valid].any()
            obs = step.obs
        state = world.state_dict()
        assert (state["env_steps"], state["episodes"]) == (valid, finished)
        assert np.array_equal(state["obs"], obs)
        masked = "NEXT_STEP" in name
        assert (valid < 60 * WORLDS) == masked


@pytest.mark.parametrize("name", ENGINES)
def test_a_second_reset_starts_anew_and_state_is_plain_data(name):
    with ENGINES[name]() as world:
        world.reset()
        world.step(np.zeros(WORLDS, np.int64))
        obs = world.reset()
        assert (obs[:, 1] == 0).all()
        step = world.step(np.full(WORLDS, 3))
        state = world.state_dict()
        assert (state["lengths"] + (step.terminated | step.truncated) == 1).all()
        world.load_state_dict(state)
        for key, value in world.state_dict().items():
            assert np.array_equal(value, state[key])
    world.close()  # a second time


def test_sync_and_async_agree_on_a_random_world_to_the_last_bit():
    def policy(obs, world):
        return np.clip(obs[:2], -1, 1).astype(np.float32)

    with SyncWorld([NoisyEnv] * 3, seed=5) as sync, AsyncWorld([NoisyEnv] * 3, seed=5) as other:
        ours, theirs = play(sync, policy, 150), play(other, policy, 150)
    assert ours == theirs
    assert ours[0][0] != ours[0][1]  # worlds differ from each other
    assert {e.terminated for world in ours[1] for e in world} == {True, False}
    assert any(e.terminated and not e.success for world in ours[1] for e in world)


def test_sync_and_async_agree_on_cartpole_through_time_limits():
    def policy(obs, world):
        return int(balance(obs[None])[0]) if world else int(obs[1] > 0)

    with (
        make_world("CartPole-v1", 2, seed=9, engine="sync", env_kwargs={"max_episode_steps": 60}) as sync,
        make_world("CartPole-v1", 2, seed=9, engine="async", env_kwargs={"max_episode_steps": 60}) as other,
    ):
        ours, theirs = play(sync, policy, 250), play(other, policy, 250)
    assert ours == theirs
    assert [e.length for e in ours[1][1]] == [60] * 4
    assert all(e.terminated for e in ours[1][0])


@pytest.mark.parametrize("engine", ["sync", "native", "envpool"])
def test_every_cartpole_row_obeys_the_equations_of_motion(engine):
    rng = np.random.default_rng(0)
    lengths = []
    with make_world("CartPole-v1", 4, seed=3, engine=engine) as world:
        obs = world.reset()
        for _ in range(1100):
            action = np.where([False, True, True, True], balance(obs), rng.integers(0, 2, 4))
            step = world.step(action)
            valid = step.valid
            gap = np.abs(cartpole(obs, action) - step.next_obs)[valid]
            assert gap.max() < 1e-5
            assert (step.reward == valid).all()
            fallen = (np.abs(step.next_obs[:, 0]) > 2.4) | (np.abs(step.next_obs[:, 2]) > 12 * np.pi / 180)
            assert (fallen == step.terminated)[valid].all()
            begins = ~valid | ((step.terminated | step.truncated) & (engine != "native"))
            assert (np.abs(step.obs[begins]) <= 0.05).all()
            assert np.array_equal(step.obs[~begins], step.next_obs[~begins])
            lengths += [(e.length, e.terminated) for e in step.episodes if e.world]
            obs = step.obs
    assert lengths == [(500, False)] * 6


@pytest.mark.parametrize("engine", ["sync", "async", "native", "envpool"])
def test_a_seed_decides_everything(engine):
    def run(seed, stream="world"):
        with make_world("CartPole-v1", 3, seed, engine=engine, seeds_stream=stream) as world:
            return play(world, lambda obs, i: int(obs[3] > 0), 60)

    first = run(1)
    assert run(1) == first
    assert run(2) != first
    assert run(1, "evaluation") != first


def test_worlds_do_not_depend_on_how_many_there_are():
    def run(count):
        with make_world("CartPole-v1", count, 4, engine="sync") as world:
            return play(world, lambda obs, i: 1, 50)[0]

    assert run(5)[:2] == run(2)


def test_same_step_final_obs_may_come_as_one_batch():
    class Batched(CountingVectorEnv):
        def step(self, actions):
            *rest, infos = super().step(actions)
            if "final_obs" in infos:
                rows = [np.zeros(3, np.float32) if row is None else row for row in infos["final_obs"]]
                infos["final_obs"] = np.stack(rows)
            return *rest, infos

    with wrap_vector_env(Batched(WORLDS, AutoresetMode.SAME_STEP)) as world:
        rows, _ = play(world, _policy, ROWS)
        assert rows[2] == _expected(2)[0]


def test_resumed_worlds_do_not_replay_their_first_episodes():
    with make_world("CartPole-v1", 2, 4, engine="sync") as world, make_world("CartPole-v1", 2, 4) as resumed:
        first = world.reset()
        world.step(np.array([0, 1]))
        resumed.load_state_dict(world.state_dict())
        assert not np.array_equal(resumed.reset(), first)


def test_a_dict_space_through_gymnasiums_same_step_vector():
    with (
        wrap_vector_env(SyncVectorEnv([NoisyEnv] * 2, autoreset_mode=AutoresetMode.DISABLED), seed=1) as disabled,
        wrap_vector_env(SyncVectorEnv([QuietNoisyEnv] * 2, autoreset_mode=AutoresetMode.SAME_STEP), seed=1) as same,
    ):
        assert disabled.obs_spec.shape == same.obs_spec.shape == (5,)
        assert same.reset().shape == (2, 5)
        for _ in range(30):
            assert same.step(np.zeros((2, 2), np.float32)).next_obs.shape == (2, 5)


class QuietNoisyEnv(NoisyEnv):
    """Without infos of changing shape, which Gymnasium's own vectors cannot merge."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {}

    def step(self, action):
        *rest, info = super().step(action)
        return *rest, {"is_success": info["is_success"]}


def test_gymnasium_itself_agrees_with_our_loop():
    """An oracle that shares no code with us: Gymnasium's single environments, stepped by hand."""
    from drl.core.seeding import Seeds

    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=Seeds(8).integer("world", 0))
    with make_world("CartPole-v1", 1, 8, engine="sync") as world:
        assert np.array_equal(world.reset()[0], obs)
        for t in range(200):
            step = world.step(np.array([t % 2]))
            obs, reward, terminated, truncated, _ = env.step(t % 2)
            assert np.array_equal(step.next_obs[0], obs)
            assert (step.reward[0], step.terminated[0], step.truncated[0]) == (reward, terminated, truncated)
            if terminated or truncated:
                obs, _ = env.reset()
            assert np.array_equal(step.obs[0], obs)
    env.close()
