"""BitFlip in JAX against its Gymnasium twin, draw by draw."""

from functools import partial

import jax
import numpy as np

from drl.engines.jax.envs import Noise, make_jax_env, step_and_reset
from drl.envs.make_vec_env import make_env, make_vec_env

BITS, ENVS, STEPS = 3, 24, 60


class Draws:
    """A generator that hands out given numbers."""

    def random(self, size):
        assert len(self.next) == size
        return self.next


@partial(jax.jit, static_argnums=0)
def rollout(env, first, actions, noise):
    state = env.reset(first)
    steps = jax.lax.scan(lambda state, inputs: step_and_reset(env, state, *inputs), state, (actions, noise))[1]
    return env.observe(state), steps


def test_equal_draws_give_equal_episodes():
    env, rng = make_jax_env("drl/BitFlip-v0", {"bits": BITS}), np.random.default_rng(0)
    actions = rng.integers(BITS, size=(STEPS, ENVS)).astype(np.int32)
    first = rng.random((ENVS, 2 * BITS + 1), np.float32)
    resets = rng.random((STEPS, ENVS, 2 * BITS + 1), np.float32)
    obs, step = jax.tree.map(np.asarray, rollout(env, first, actions, Noise(resets, None)))
    for i in range(ENVS):
        twin, draws = make_env("drl/BitFlip-v0", env_kwargs={"bits": BITS}), Draws()
        twin.unwrapped._np_random, draws.next = draws, first[i]
        np.testing.assert_array_equal(env.obs_spec.encode_one(twin.reset()[0]), obs[i])
        for t in range(STEPS):
            seen, reward, terminated, truncated, info = twin.step(actions[t, i])
            np.testing.assert_array_equal(env.obs_spec.encode_one(seen), step.next_obs[t, i])
            assert reward == step.reward[t, i]
            assert (terminated, truncated) == (step.terminated[t, i], step.truncated[t, i])
            assert info["is_success"] == step.success[t, i]
            if terminated or truncated:
                draws.next = resets[t, i]
                seen = twin.reset()[0]
            np.testing.assert_array_equal(env.obs_spec.encode_one(seen), step.obs[t, i])
    assert step.terminated.any()
    assert step.truncated.any()
    columns = [obs[:, env.obs_spec.columns(key)] for key in ("achieved_goal", "desired_goal")]
    assert (columns[0] != columns[1]).any(axis=1).all()  # also where all draws were equal


def test_goal_functions_and_specs_are_those_of_the_twin():
    env, twin = make_jax_env("drl/BitFlip-v0"), make_env("drl/BitFlip-v0")
    achieved = np.random.default_rng(0).integers(2, size=(6, 15)).astype(np.float32)
    desired = np.where(np.arange(6)[:, None] % 2, achieved, achieved[::-1])
    for name in ("compute_reward", "compute_terminated"):
        ours, theirs = getattr(env, name)(achieved, desired), getattr(twin.unwrapped, name)(achieved, desired, {})
        np.testing.assert_array_equal(ours, theirs)
    with make_vec_env("drl/BitFlip-v0") as envs:
        assert (env.obs_spec, env.action_spec) == (envs.obs_spec, envs.action_spec)
