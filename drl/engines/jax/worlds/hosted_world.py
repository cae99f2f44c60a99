"""A JAX-native world behind the ordinary `World` contract, stepped from Python."""

from functools import partial
from typing import final

import jax
import numpy as np

from drl.core.contracts import StateDict, WorldStep
from drl.core.specs import Array
from drl.engines.jax.worlds.stepping import JaxStep, advance
from drl.engines.jax.worlds.world_contract import JaxWorld, State
from drl.envs.episode_book import EpisodeBook
from drl.envs.open_world import OpenWorld


@final
class HostedWorld(OpenWorld):
    """For evaluating on worlds that exist in JAX only, such as gymnax's, and for using them with any engine.

    Slower than a compiled rollout by the call of a program per step, whatever the number of worlds.

    >>> from drl.engines.jax.worlds import make_jax_world
    >>> with HostedWorld(make_jax_world("CartPole-v1"), num_envs=4, seed=1, env_id="CartPole-v1") as world:
    ...     world.reset().shape, world.step(np.array([0, 1, 0, 1])).reward
    ((4, 4), array([1., 1., 1., 1.], dtype=float32))
    """

    engine = "jax"

    def __init__(self, world: JaxWorld, num_envs: int, seed: int, env_id: str, stream: str = "world"):
        self.env_id, self.num_envs = env_id, num_envs
        self.obs_spec, self.action_spec = world.obs_spec, world.action_spec
        self.book = EpisodeBook(env_id, num_envs, seed, stream)
        self._always_valid = np.ones(num_envs, bool)
        self._world = world
        self._key = jax.random.key(0)  # replaced by the first reset
        self._state: State = None

    def reset(self) -> Array:
        if seeds := self.book.begin():
            self._key = jax.random.key(seeds[0])
        self._key, self._state, obs = _start(self._world, self.num_envs, self._key)
        self.book.obs = np.array(obs)
        return self.book.obs

    def step(self, action: Array) -> WorldStep:
        book = self.book
        book.check_action(action)
        self._key, self._state, step = _move(self._world, self.num_envs, self._key, self._state, action)
        # Copies, since the receiver may write into them.
        reward, terminated, truncated, success, next_obs, obs = jax.tree.map(np.array, step)
        book.add(reward.astype(np.float64))
        book.obs = obs
        ended = np.flatnonzero(terminated | truncated).tolist()
        reported = [None if success is None else bool(success[i]) for i in ended]
        episodes = [book.finish(i, bool(terminated[i]), word) for i, word in zip(ended, reported, strict=True)]
        return WorldStep(reward, terminated, truncated, next_obs, obs, self._always_valid, episodes)

    def state_dict(self) -> StateDict:
        return self.book.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        self.book.load_state_dict(state)

    def close(self) -> None:
        """Nothing is open."""


# Functions of the module, so that a second world of the same kind compiles nothing.


@partial(jax.jit, static_argnums=(0, 1))
def _start(world: JaxWorld, num_envs: int, key: jax.Array) -> tuple[jax.Array, State, jax.Array]:
    key, now = jax.random.split(key)
    state = world.reset(world.draw(now, (num_envs,)).reset)
    return key, state, world.observe(state)


@partial(jax.jit, static_argnums=(0, 1))
def _move(
    world: JaxWorld, num_envs: int, key: jax.Array, state: State, action: jax.Array
) -> tuple[jax.Array, State, JaxStep]:
    key, now = jax.random.split(key)
    return key, *advance(world, state, action, world.draw(now, (num_envs,)))
