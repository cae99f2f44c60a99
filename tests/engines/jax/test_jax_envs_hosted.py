"""A JAX environment behind the ordinary contract."""

import numpy as np
import pytest

from drl.core.errors import BadInput
from drl.engines.jax.envs import HostedVecEnv, make_jax_env

STEPS, ENVS = 150, 5
SHORT = {"max_episode_steps": 25}


def play(env, seed=0):
    rng, steps = np.random.default_rng(seed), []
    env.reset()
    for _ in range(STEPS):
        steps.append(env.step(rng.integers(2, size=ENVS)))
    return steps


def test_counts_what_happened_and_repeats_itself():
    env = HostedVecEnv(make_jax_env("CartPole-v1", SHORT), ENVS, seed=3, env_id="CartPole-v1")
    with pytest.raises(BadInput, match="before its first reset"):
        env.step(np.zeros(ENVS, int))
    steps = play(env)
    length = np.zeros(ENVS, int)
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        length += 1
        ended = step.terminated | step.truncated
        assert [episode.env_index for episode in step.episodes] == np.flatnonzero(ended).tolist()
        for episode in step.episodes:
            assert episode.length == episode.episode_return == length[episode.env_index]
            assert episode.terminated == step.terminated[episode.env_index]
            assert episode.success == (episode.episode_return >= 475)
        assert (step.truncated == ((length == 25) & ~step.terminated)).all()
        assert np.array_equal(step.obs[~ended], step.next_obs[~ended])
        if following is not None:  # CartPole's equation of motion: what follows comes from `obs`
            np.testing.assert_allclose(following.next_obs[:, 0], step.obs[:, 0] + 0.02 * step.obs[:, 1], atol=1e-6)
        length[ended] = 0
    assert env.stats.env_steps == STEPS * ENVS
    assert {episode.terminated for step in steps for episode in step.episodes} == {True, False}
    twin = HostedVecEnv(make_jax_env("CartPole-v1", SHORT), ENVS, seed=3, env_id="CartPole-v1")
    assert np.array_equal([step.obs for step in steps], [step.obs for step in play(twin)])
    # A resumed run counts on, from random numbers that it has not used before.
    state = env.state_dict()
    twin = HostedVecEnv(make_jax_env("CartPole-v1", SHORT), ENVS, seed=3, env_id="CartPole-v1")
    twin.load_state_dict(state)
    assert not np.array_equal(steps[0].obs, play(twin)[0].obs)
    assert twin.stats.env_steps == 2 * STEPS * ENVS
