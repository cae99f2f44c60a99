"""A JAX world behind the ordinary contract."""

import numpy as np
import pytest

from drl.core.errors import BadInput
from drl.engines.jax.worlds import HostedWorld, make_jax_world

STEPS, WORLDS = 150, 5
SHORT = {"max_episode_steps": 25}


def play(world, seed=0):
    rng, steps = np.random.default_rng(seed), []
    world.reset()
    for _ in range(STEPS):
        steps.append(world.step(rng.integers(2, size=WORLDS)))
    return steps


def test_counts_what_happened_and_repeats_itself():
    world = HostedWorld(make_jax_world("CartPole-v1", SHORT), WORLDS, seed=3, env_id="CartPole-v1")
    with pytest.raises(BadInput, match="before its first reset"):
        world.step(np.zeros(WORLDS, int))
    steps = play(world)
    length = np.zeros(WORLDS, int)
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        length += 1
        ended = step.terminated | step.truncated
        assert [episode.world for episode in step.episodes] == np.flatnonzero(ended).tolist()
        for episode in step.episodes:
            assert episode.length == episode.episode_return == length[episode.world]
            assert episode.terminated == step.terminated[episode.world]
            assert episode.success == (episode.episode_return >= 475)
        assert (step.truncated == ((length == 25) & ~step.terminated)).all()
        assert np.array_equal(step.obs[~ended], step.next_obs[~ended])
        if following is not None:  # CartPole's equation of motion: what follows comes from `obs`
            np.testing.assert_allclose(following.next_obs[:, 0], step.obs[:, 0] + 0.02 * step.obs[:, 1], atol=1e-6)
        length[ended] = 0
    assert world.book.env_steps == STEPS * WORLDS
    assert {episode.terminated for step in steps for episode in step.episodes} == {True, False}
    twin = HostedWorld(make_jax_world("CartPole-v1", SHORT), WORLDS, seed=3, env_id="CartPole-v1")
    assert np.array_equal([step.obs for step in steps], [step.obs for step in play(twin)])
    # A resumed run counts on, from random numbers that it has not used before.
    state = world.state_dict()
    twin = HostedWorld(make_jax_world("CartPole-v1", SHORT), WORLDS, seed=3, env_id="CartPole-v1")
    twin.load_state_dict(state)
    assert not np.array_equal(steps[0].obs, play(twin)[0].obs)
    assert twin.book.env_steps == 2 * STEPS * WORLDS
