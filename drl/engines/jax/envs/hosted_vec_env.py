"""A JAX-native environment as a `VecEnv`, stepped from Python."""

from functools import partial
from typing import final

import jax
import numpy as np

from drl.core.contracts import VecEnv, VecStep
from drl.core.specs import ActionSpec, Array, ObsSpec
from drl.core.state_files import StateDict
from drl.engines.jax.envs.jax_env import JaxEnv, State, legal_actions
from drl.engines.jax.envs.stepping import JaxStep, advance
from drl.envs.episode_stats import EpisodeStats


@final
class HostedVecEnv(VecEnv):
    """For evaluation on environments that exist only in JAX, such as Brax's, and for using them with any engine.

    Slower than a compiled rollout by one call of a compiled function per step, for any number of environments.

    >>> from drl.engines.jax.envs import make_jax_env
    >>> with HostedVecEnv(make_jax_env("CartPole-v1"), num_envs=4, seed=1, env_id="CartPole-v1") as env:
    ...     env.reset().shape, env.step(np.array([0, 1, 0, 1])).reward
    ((4, 4), array([1., 1., 1., 1.], dtype=float32))
    """

    vectorization = "jax"
    unreachable = "it is a compiled program; use --vectorization sync, if Gymnasium has it"

    def __init__(self, env: JaxEnv, num_envs: int, seed: int, env_id: str, stream: str = "world"):
        self.env_id: str = env_id
        self.num_envs: int = num_envs
        self.seed: int = seed
        self.obs_spec: ObsSpec = env.obs_spec
        self.action_spec: ActionSpec = env.action_spec
        self.stats: EpisodeStats = EpisodeStats(env_id, num_envs, seed, stream)
        self._always_valid = np.ones(num_envs, bool)
        self._env = env
        self._key = jax.random.key(0)  # replaced by the first reset
        self._state: State = None

    def reset(self) -> Array:
        first, seeds = not self.stats.begun, self.stats.begin()
        if first:
            self._key = jax.random.key(seeds[0])
        self._key, self._state, obs, mask = _start(self._env, self.num_envs, self._key)
        self.stats.obs = np.array(obs)
        self.action_mask = self.stats.action_mask = None if mask is None else np.array(mask)
        return self.stats.obs

    def step(self, action: Array) -> VecStep:
        stats = self.stats
        stats.check_action(action)
        self._key, self._state, step = _move(self._env, self.num_envs, self._key, self._state, action)
        # Copies: the receiver may write into them.
        reward, terminated, truncated, success, next_obs, obs, mask, next_mask = jax.tree.map(np.array, step)
        stats.add(reward.astype(np.float64))
        stats.obs = obs
        self.action_mask = stats.action_mask = mask
        ended = np.flatnonzero(terminated | truncated).tolist()
        reported = [None if success is None else bool(success[i]) for i in ended]
        episodes = [stats.finish(i, bool(terminated[i]), word) for i, word in zip(ended, reported, strict=True)]
        return VecStep(reward, terminated, truncated, next_obs, obs, self._always_valid, episodes, mask, next_mask)

    def state_dict(self) -> StateDict:
        inside = [np.asarray(leaf) for leaf in jax.tree.leaves(self._state)]
        return self.stats.state_dict() | {"inside": inside, "key": np.asarray(jax.random.key_data(self._key))}

    def load_state_dict(self, state: StateDict) -> str | None:
        self.stats.load_state_dict(state)
        self.action_mask = self.stats.action_mask
        self._key = jax.random.wrap_key_data(jax.numpy.asarray(state["key"]))
        if self.stats.obs is not None:
            shape = jax.eval_shape(lambda key: _start(self._env, self.num_envs, key)[1], self._key)
            self._state = jax.tree.unflatten(jax.tree.structure(shape), state["inside"])
            self.stats.begun = True
        return None

    def close(self) -> None:
        """There is nothing to close."""


# Module-level functions, so that a second environment of the same kind does not compile again.


@partial(jax.jit, static_argnums=(0, 1))
def _start(env: JaxEnv, num_envs: int, key: jax.Array) -> tuple[jax.Array, State, jax.Array, jax.Array | None]:
    key, now = jax.random.split(key)
    state = env.reset(env.draw(now, (num_envs,)).reset)
    return key, state, env.observe(state), legal_actions(env, state)


@partial(jax.jit, static_argnums=(0, 1))
def _move(
    env: JaxEnv, num_envs: int, key: jax.Array, state: State, action: jax.Array
) -> tuple[jax.Array, State, JaxStep]:
    key, now = jax.random.split(key)
    return key, *advance(env, state, action, env.draw(now, (num_envs,)))
