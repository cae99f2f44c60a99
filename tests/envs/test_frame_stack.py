"""Stacks against a stack built by hand from the unstacked rows."""

import itertools

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from vec_envs_under_test import NoisyEnv, play

from drl.core.specs import ObsSpec
from drl.envs.env_wrappers import FrameStacker, StackedEnv, StackedVecEnv
from drl.envs.make_vec_env import make_vec_env
from drl.envs.native_vec_env import wrap_vector_env
from drl.envs.sync_vec_env import SyncVecEnv
from drl.games.probes import CountingVectorEnv

ENVS = {
    "sync": lambda: make_vec_env("drl/Counting-v0", 3, vectorization="sync"),
    "async": lambda: make_vec_env("drl/Counting-v0", 3, vectorization="async"),
    **{
        mode.name: lambda mode=mode: wrap_vector_env(CountingVectorEnv(3, mode))
        for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
    },
}


def _policy(obs, envs):
    newest = obs[-3:]
    return int(newest[0] + 2 * newest[1] + envs) % 4


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize("frames", [2, 3])
def test_stacks_are_the_rows_in_order_and_never_cross_a_reset(name, frames):
    with ENVS[name]() as plain, StackedVecEnv(ENVS[name](), frames) as stacked:
        rows, episodes = play(plain, _policy, 30)
        stacked_rows, stacked_episodes = play(stacked, _policy, 30)
    assert stacked_episodes == episodes
    for envs in range(3):
        window = []
        for row, stacked_row in zip(rows[envs], stacked_rows[envs], strict=True):
            if row[0][1] == 0:
                window = [row[0]] * frames
            assert stacked_row[0] == list(itertools.chain(*window))
            window = [*window[1:], row[5]]
            assert stacked_row[5] == list(itertools.chain(*window))
            assert stacked_row[1:5] == row[1:5]


@pytest.mark.parametrize(
    ("shape", "stacked"),
    [((4,), (12,)), ((), (3,)), ((6, 5), (3, 6, 5)), ((2, 6, 5), (6, 6, 5))],
)
def test_layouts(shape, stacked):
    spec = ObsSpec("box", box_shape=shape, box_dtype="uint8")
    stacker = FrameStacker(spec, 3)
    assert stacker.spec.shape == stacked
    assert stacker.spec.dtype == np.uint8
    frames = [np.full((1, *spec.shape), value, np.uint8) for value in (1, 2, 3)]
    stack = stacker.first(frames[0])
    assert (stack == 1).all()
    for frame in frames[1:]:
        stack = stacker.push(stack, frame)
    assert stack.shape == (1, *stacked)
    assert stack.dtype == np.uint8
    parts = np.split(stack[0], 3)
    assert [set(part.ravel().tolist()) for part in parts] == [{1}, {2}, {3}]


def test_a_single_environment_shows_what_its_env_showed():
    from drl.envs.episode_stats import EpisodeSeeds

    seeds = EpisodeSeeds(3, "world", 0)
    env, episode = StackedEnv(NoisyEnv(), 2), 0
    obs, _ = env.reset(seed=seeds(episode))
    with StackedVecEnv(SyncVecEnv([NoisyEnv], seed=3), 2) as envs:
        assert np.array_equal(envs.reset()[0], obs)
        action = np.zeros((1, 2), np.float32)
        for _ in range(40):
            step = envs.step(action)
            obs, _, terminated, truncated, _ = env.step(action[0])
            assert np.array_equal(step.next_obs[0], obs)
            assert env.observation_space.contains(obs)
            if terminated or truncated:
                episode += 1
                obs, _ = env.reset(seed=seeds(episode))
            assert np.array_equal(step.obs[0], obs)


def test_state_carries_the_stack():
    with (
        make_vec_env("drl/Counting-v0", 2, frame_stack=2) as envs,
        make_vec_env("drl/Counting-v0", 2, frame_stack=2) as b,
    ):
        envs.reset()
        envs.step(np.array([1, 2]))
        b.load_state_dict(envs.state_dict())
        assert np.array_equal(b.state_dict()["stack"], envs.state_dict()["stack"])
