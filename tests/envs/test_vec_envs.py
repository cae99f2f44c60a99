"""One environment, every vectorization: the same rows."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from vec_envs_under_test import FakePool, NoisyEnv, balance, cartpole, play

from drl.core.contracts import VecEnv
from drl.envs.async_vec_env import AsyncVecEnv
from drl.envs.make_vec_env import make_vec_env
from drl.envs.native_vec_env import EnvPoolVecEnv, wrap_vector_env
from drl.envs.sync_vec_env import SyncVecEnv
from drl.games.probes import CountingEnv, CountingVectorEnv

ENVS = 4
ROWS = 40

ENGINES = {
    "sync": lambda: SyncVecEnv([CountingEnv] * ENVS, seed=0),
    "sync by id": lambda: make_vec_env("drl/Counting-v0", ENVS, vectorization="sync"),
    "async": lambda: AsyncVecEnv([CountingEnv] * ENVS, seed=0),
    "native NEXT_STEP": lambda: make_vec_env("drl/Counting-v0", ENVS, vectorization="native"),
    "native SAME_STEP": lambda: wrap_vector_env(CountingVectorEnv(ENVS, AutoresetMode.SAME_STEP)),
    "native DISABLED": lambda: wrap_vector_env(CountingVectorEnv(ENVS, AutoresetMode.DISABLED)),
    "gymnasium NEXT_STEP": lambda: _gymnasium(AutoresetMode.NEXT_STEP),
    "gymnasium DISABLED": lambda: _gymnasium(AutoresetMode.DISABLED),
    "envpool protocol": lambda: EnvPoolVecEnv(lambda seed: FakePool(ENVS), 0, "drl/Counting-v0"),
}


def _gymnasium(mode: AutoresetMode) -> VecEnv:
    return wrap_vector_env(SyncVectorEnv([CountingEnv] * ENVS, copy=False, autoreset_mode=mode))


def _policy(obs, envs):
    return int(3 * obs[0] + 2 * obs[1] + envs) % 4


def _expected(envs):
    """The counting environment from its description, as plain rows and episodes."""
    rows, episodes, episode = [], [], 0
    while len(rows) < ROWS:
        step, last, total = 0, -1, 0.0
        length = 1 + (2 * episode + _policy((episode, 0), envs)) % 5
        for step in range(length):
            action = _policy((episode, step), envs)
            reward, ends = 100.0 * episode + step + 1, step + 1 == length
            total += reward
            terminated = ends and episode % 3 != 1
            flags = (terminated, ends and not terminated)
            rows.append(([episode, step, last], action, reward, *flags, [episode, step + 1, action]))
            last = action
        if len(rows) <= ROWS:
            success = None if episode % 3 else False  # what this environment reports; it has no reward threshold
            episodes.append((total, length, terminated, success, envs))
        episode += 1
    return rows[:ROWS], episodes


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_gives_the_same_rows_and_episodes(name):
    with ENGINES[name]() as envs:
        rows, episodes = play(envs, _policy, ROWS)
        for i in range(ENVS):
            expected_rows, expected_episodes = _expected(i)
            assert rows[i] == expected_rows
            assert [tuple(e[:5]) for e in episodes[i]] == expected_episodes


@pytest.mark.parametrize("name", ENGINES)
def test_phantom_rows_count_nothing(name):
    with ENGINES[name]() as envs:
        obs, valid, finished, reward = envs.reset(), 0, 0, 0.0
        for _ in range(60):
            step = envs.step(np.array([_policy(obs[i], i) for i in range(ENVS)]))
            valid += int(step.valid.sum())
            finished += len(step.episodes)
            reward += float(step.reward.sum())
            assert not step.reward[~step.valid].any()
            obs = step.obs
        state = envs.state_dict()
        assert (state["env_steps"], state["episodes"]) == (valid, finished)
        assert np.array_equal(state["obs"], obs)
        masked = "NEXT_STEP" in name
        assert (valid < 60 * ENVS) == masked


@pytest.mark.parametrize("name", ENGINES)
def test_a_second_reset_starts_anew_and_state_is_plain_data(name):
    with ENGINES[name]() as envs:
        envs.reset()
        envs.step(np.zeros(ENVS, np.int64))
        obs = envs.reset()
        assert (obs[:, 1] == 0).all()
        step = envs.step(np.full(ENVS, 3))
        state = envs.state_dict()
        assert (state["lengths"] + (step.terminated | step.truncated) == 1).all()
        envs.load_state_dict(state)
        for key, value in envs.state_dict().items():
            assert np.array_equal(value, state[key])
    envs.close()  # a second time


def test_sync_and_async_agree_on_a_random_env_to_the_last_bit():
    def policy(obs, envs):
        return np.clip(obs[:2], -1, 1).astype(np.float32)

    with SyncVecEnv([NoisyEnv] * 3, seed=5) as sync, AsyncVecEnv([NoisyEnv] * 3, seed=5) as other:
        ours, theirs = play(sync, policy, 150), play(other, policy, 150)
    assert ours == theirs
    assert ours[0][0] != ours[0][1]  # environments differ from each other
    assert {e.terminated for envs in ours[1] for e in envs} == {True, False}
    assert any(e.terminated and not e.success for envs in ours[1] for e in envs)


def test_sync_and_async_agree_on_cartpole_through_time_limits():
    def policy(obs, envs):
        return int(balance(obs[None])[0]) if envs else int(obs[1] > 0)

    with (
        make_vec_env("CartPole-v1", 2, seed=9, vectorization="sync", env_kwargs={"max_episode_steps": 60}) as sync,
        make_vec_env("CartPole-v1", 2, seed=9, vectorization="async", env_kwargs={"max_episode_steps": 60}) as other,
    ):
        ours, theirs = play(sync, policy, 250), play(other, policy, 250)
    assert ours == theirs
    assert [e.length for e in ours[1][1]] == [60] * 4
    assert all(e.terminated for e in ours[1][0])


@pytest.mark.default("sync", "native")
@pytest.mark.parametrize("vectorization", ["sync", "native", "envpool"])
def test_every_cartpole_row_obeys_the_equations_of_motion(vectorization):
    rng = np.random.default_rng(0)
    lengths = []
    with make_vec_env("CartPole-v1", 4, seed=3, vectorization=vectorization) as envs:
        obs = envs.reset()
        for _ in range(1100):
            action = np.where([False, True, True, True], balance(obs), rng.integers(0, 2, 4))
            step = envs.step(action)
            valid = step.valid
            gap = np.abs(cartpole(obs, action) - step.next_obs)[valid]
            assert gap.max() < 1e-5
            assert (step.reward == valid).all()
            fallen = (np.abs(step.next_obs[:, 0]) > 2.4) | (np.abs(step.next_obs[:, 2]) > 12 * np.pi / 180)
            assert (fallen == step.terminated)[valid].all()
            begins = ~valid | ((step.terminated | step.truncated) & (vectorization != "native"))
            assert (np.abs(step.obs[begins]) <= 0.05).all()
            assert np.array_equal(step.obs[~begins], step.next_obs[~begins])
            lengths += [(e.length, e.terminated) for e in step.episodes if e.env_index]
            obs = step.obs
    assert lengths == [(500, False)] * 6


@pytest.mark.default("sync", "native")
@pytest.mark.parametrize("vectorization", ["sync", "async", "native", "envpool"])
def test_a_seed_decides_everything(vectorization):
    def run(seed, stream="world"):
        with make_vec_env("CartPole-v1", 3, seed, vectorization=vectorization, seeds_stream=stream) as envs:
            return play(envs, lambda obs, i: int(obs[3] > 0), 60)

    first = run(1)
    assert run(1) == first
    assert run(2) != first
    assert run(1, "evaluation") != first


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_every_episode_has_a_seed_of_its_own(vectorization):
    short = {"max_episode_steps": 2}
    with make_vec_env("CartPole-v1", 3, 1, vectorization=vectorization, env_kwargs=short) as envs:
        first = envs.reset().tolist()
        for _ in range(10):
            step = envs.step(np.zeros(3, np.int64))
            first += step.obs[step.over].tolist()
    assert len(first) == len(set(map(tuple, first))) == 3 * 6


def test_envs_do_not_depend_on_how_many_there_are():
    def run(count):
        with make_vec_env("CartPole-v1", count, 4, vectorization="sync") as envs:
            return play(envs, lambda obs, i: 1, 50)[0]

    assert run(5)[:2] == run(2)


def test_same_step_final_obs_may_come_as_one_batch():
    class Batched(CountingVectorEnv):
        def step(self, actions):
            *rest, infos = super().step(actions)
            if "final_obs" in infos:
                rows = [np.zeros(3, np.float32) if row is None else row for row in infos["final_obs"]]
                infos["final_obs"] = np.stack(rows)
            return *rest, infos

    with wrap_vector_env(Batched(ENVS, AutoresetMode.SAME_STEP)) as envs:
        rows, _ = play(envs, _policy, ROWS)
        assert rows[2] == _expected(2)[0]


def test_resumed_envs_do_not_replay_their_first_episodes():
    with make_vec_env("CartPole-v1", 2, 4, vectorization="sync") as envs, make_vec_env("CartPole-v1", 2, 4) as resumed:
        first = envs.reset()
        envs.step(np.array([0, 1]))
        resumed.load_state_dict(envs.state_dict())
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
    """An oracle that shares no code with us: Gymnasium's single environments, stepped by hand. An episode's seed comes
    from the root seed, the environment's index and the episode's number."""
    from drl.envs.episode_stats import EpisodeSeeds

    seeds = EpisodeSeeds(8, "world", 0)
    env, episode = gym.make("CartPole-v1"), 0
    obs, _ = env.reset(seed=seeds(episode))
    with make_vec_env("CartPole-v1", 1, 8, vectorization="sync") as envs:
        assert np.array_equal(envs.reset()[0], obs)
        for t in range(200):
            step = envs.step(np.array([t % 2]))
            obs, reward, terminated, truncated, _ = env.step(t % 2)
            assert np.array_equal(step.next_obs[0], obs)
            assert (step.reward[0], step.terminated[0], step.truncated[0]) == (reward, terminated, truncated)
            if terminated or truncated:
                episode += 1
                obs, _ = env.reset(seed=seeds(episode))
            assert np.array_equal(step.obs[0], obs)
    env.close()
