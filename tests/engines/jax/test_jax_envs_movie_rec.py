"""MovieRec in JAX against the NumPy form, draw by draw: every number is equal, up to the last bit of observations."""

from functools import partial

import jax
import numpy as np
import pytest

from drl.engines.jax.envs import Noise, make_jax_env, step_and_reset
from drl.games.movie_rec import MovieRecEnv

ENVS, STEPS = 24, 120
LAST_BIT = 2**-23  # steps of an observation are 0.05 or more
SHORT = {
    "catalogue": [["Drama"], ["War", "Drama"], ["Horror"]],
    "personas": {f"p{i}": {"likes": ["Drama"][: i % 2], "hates": ["Horror"]} for i in range(7)},
    "reward_click": 0.1,
    "reward_churn": -3,
    "max_session_length": 7,
}


class Draws:
    """A generator that hands out given numbers."""

    def random(self):
        return self.next


@partial(jax.jit, static_argnums=0)
def rollout(env, first, actions, noise):
    state = env.reset(first)
    return jax.lax.scan(lambda state, inputs: step_and_reset(env, state, *inputs), state, (actions, noise))[1]


def draws_with_boundaries(shape, boundaries, rng):
    """float32 draws; half of them lie at a probability of the rules, or a hair beside it."""
    near = rng.choice(boundaries, shape).astype(np.float32)
    near = near + rng.choice(np.array([-1, 0, 1], np.float32), shape) * np.spacing(near)
    anywhere = rng.random(shape, np.float32)
    return np.clip(np.where(rng.random(shape) < 0.5, near, anywhere), 0, 1 - 2**-24).astype(np.float32)


@pytest.mark.parametrize("arguments", [{}, SHORT], ids=["usual", "changed"])
def test_equal_draws_give_equal_sessions(arguments):
    env, rng = make_jax_env("MovieRec-v1", arguments), np.random.default_rng(0)
    movies = env.action_spec.sizes[0]
    actions = rng.integers(movies, size=(STEPS, ENVS)).astype(np.int32)
    actions[:, 1::2] = actions[0, 1::2]  # the same movie always: satisfaction goes beyond what is shown
    persona_bounds = np.arange(len(env.rules.personas)) / len(env.rules.personas)
    first = draws_with_boundaries((ENVS, 1), persona_bounds, rng)
    noise = Noise(
        draws_with_boundaries((STEPS, ENVS, 1), persona_bounds, rng),
        draws_with_boundaries((STEPS, ENVS, 1), np.unique(env.rules.click_prob), rng),
    )
    step = jax.tree.map(np.asarray, rollout(env, first, actions, noise))
    for i in range(ENVS):
        env = MovieRecEnv(**arguments)
        env._np_random = draws = Draws()
        draws.next = float(first[i, 0])
        env.reset()
        for t in range(STEPS):
            draws.next = float(noise.step[t, i, 0])
            obs, reward, churned, truncated, info = env.step(actions[t, i])
            assert np.abs(step.next_obs[t, i] - obs).max() <= LAST_BIT
            assert step.reward[t, i] == np.float32(reward)
            assert (step.terminated[t, i], step.truncated[t, i]) == (churned, truncated)
            assert step.success[t, i] == info.get("is_success", False)
            if churned or truncated:
                draws.next = float(noise.reset[t, i, 0])
                obs, _ = env.reset()
            assert np.abs(step.obs[t, i] - obs).max() <= LAST_BIT
    assert step.terminated.any()
    assert step.truncated.any()


def test_personas_are_drawn_uniformly():
    env = make_jax_env("MovieRec-v1")
    state = env.reset(env.draw(jax.random.key(0), (30_000,)).reset)
    shares = np.bincount(state.persona, minlength=3) / 30_000
    assert np.abs(shares - 1 / 3).max() < 4 * np.sqrt(2 / 9 / 30_000)
    assert not np.asarray(state.counts).any()
