"""The iterated Prisoner's Dilemma in JAX against the NumPy form: equal draws give equal games."""

from functools import partial

import jax
import numpy as np
import pytest

from drl.core.errors import BadInput
from drl.engines.jax.envs import Noise, make_jax_env, step_and_reset
from drl.engines.jax.envs.game_envs import against
from drl.games.ipd import IteratedPrisonersDilemmaEnv, Pool, Rules

ID = "IteratedPrisonersDilemma-v0"
ENVS, STEPS = 32, 120
MIXED = {
    "opponents": {"grim": "grim", "moody": [0.1, 0.9, 1 / 3, 0.7, 0.3], "random": "random"},
    "weights": [1, 1, 4],
    "payoffs": [2, -1, 3.1, 0],
    "rounds": 13,
    "history": 3,
}


class Draws:
    """A generator that hands out given numbers, one after the other."""

    def __init__(self):
        self.coming = []

    def random(self):
        return self.coming.pop(0)


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


@pytest.mark.parametrize("arguments", [{}, MIXED], ids=["by chance", "fixed rounds"])
def test_equal_draws_give_equal_games(arguments):
    env, rng = make_jax_env(ID, arguments), np.random.default_rng(0)
    twin = IteratedPrisonersDilemmaEnv(**arguments)
    ends_by_chance = twin.rules.survival is not None
    meet = np.cumsum(twin.pool.weights)[:-1]
    first = draws_with_boundaries((ENVS, 1), meet, rng)
    turn = draws_with_boundaries((STEPS, ENVS, 1), np.unique(twin.pool.probs), rng)
    if ends_by_chance:  # few draws near 1, so that games last
        turn = np.concatenate([turn, draws_with_boundaries(turn.shape, np.array([0.95, 0.5, 0.5]), rng)], axis=2)
    noise = Noise(draws_with_boundaries((STEPS, ENVS, 1), meet, rng), turn)
    actions = rng.integers(2, size=(STEPS, ENVS)).astype(np.int32)
    step = jax.tree.map(np.asarray, rollout(env, first, actions, noise))
    twin._np_random = draws = Draws()
    for i in range(ENVS):
        draws.coming = [float(first[i, 0])]
        twin.reset()
        for t in range(STEPS):
            draws.coming = noise.step[t, i].astype(float).tolist()
            obs, reward, terminated, truncated, _ = twin.step(actions[t, i])
            assert np.array_equal(step.next_obs[t, i], obs)
            assert step.reward[t, i] == np.float32(reward)
            assert (step.terminated[t, i], step.truncated[t, i]) == (terminated, truncated)
            if terminated or truncated:
                draws.coming = [float(noise.reset[t, i, 0])]
                obs, _ = twin.reset()
            assert np.array_equal(step.obs[t, i], obs)
    assert (step.terminated.any(), step.truncated.any()) == (ends_by_chance, not ends_by_chance)


def test_opponents_are_met_as_often_as_their_weights_say():
    env, number = make_jax_env(ID, MIXED), 30_000
    state = env.reset(np.random.default_rng(0).random((number, 1), np.float32))
    shares = np.bincount(state.opponent, minlength=3) / number
    assert np.abs(shares - np.array([1, 1, 4]) / 6).max() < 4 * np.sqrt(0.25 / number)


def test_one_opponent_alone():
    env = make_jax_env(ID, {"opponents": "grim"})
    assert not np.asarray(env.reset(np.array([[0.0], [0.999]], np.float32)).opponent).any()


def test_envs_are_equal_by_content():
    assert make_jax_env(ID, MIXED) == make_jax_env(ID, MIXED) != make_jax_env(ID)
    assert hash(make_jax_env(ID, MIXED)) == hash(make_jax_env(ID, MIXED))


def test_players_of_the_axelrod_package_are_refused():
    pool = Pool(("axelrod:TitForTat",), np.full((1, 5), np.nan), np.ones(1), (object,))  # importing it takes a minute
    with pytest.raises(BadInput, match="cannot be compiled"):
        against(pool, Rules())
