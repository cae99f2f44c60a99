"""One step of any world with resets: the only place where an ended episode gives way to a new one."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from drl.engines.jax.worlds.action_units import to_world_units
from drl.engines.jax.worlds.world_contract import JaxWorld, Noise, State


class JaxStep(NamedTuple):
    """`WorldStep` for compiled programs; every row is valid."""

    reward: jax.Array  # [N] float32
    terminated: jax.Array  # [N] bool; wins over truncated when both would hold
    truncated: jax.Array  # [N] bool
    success: jax.Array | None  # [N] bool; counts where an episode ended; None: the world does not say
    next_obs: jax.Array  # [N, …] true successors
    obs: jax.Array  # [N, …] what to act on next: next_obs, or a new episode's first observation where one ended


def step_and_reset(world: JaxWorld, state: State, action: jax.Array, noise: Noise) -> tuple[State, JaxStep]:
    """Step every world, then begin a new episode where one ended. `action` is in the policy's units.

    >>> from drl.engines.jax.worlds import make_jax_world
    >>> world = make_jax_world("Pendulum-v1")
    >>> def random_play(key):  # 100 steps of 8 worlds; all chance is drawn before the scan
    ...     first, now, move = jax.random.split(key, 3)
    ...     state = world.reset(world.draw(first, (8,)).reset)
    ...     inputs = jax.random.normal(move, (100, 8, 1)), world.draw(now, (100, 8))
    ...     return jax.lax.scan(lambda state, x: step_and_reset(world, state, *x), state, inputs)
    >>> state, steps = jax.eval_shape(random_play, jax.random.key(0))  # jax.jit(random_play)(…) runs it
    >>> steps.next_obs.shape
    (100, 8, 3)
    """
    return advance(world, state, to_world_units(world.action_spec, action), noise)


def advance(world: JaxWorld, state: State, action: jax.Array, noise: Noise) -> tuple[State, JaxStep]:
    """The same with `action` in the world's units."""
    moved = world.step(state, action, noise.step)
    truncated = moved.truncated & ~moved.terminated
    ended = moved.terminated | truncated
    fresh = world.reset(noise.reset)
    next_obs = world.observe(moved.state)
    obs = where_rows(ended, world.observe(fresh), next_obs)
    step = JaxStep(moved.reward, moved.terminated, truncated, moved.success, next_obs, obs)
    return jax.tree.map(lambda new, old: where_rows(ended, new, old), fresh, moved.state), step


def where_rows(mask: jax.Array, yes: jax.Array, no: jax.Array) -> jax.Array:
    """`jnp.where` by whole rows: `mask` is [N], the others [N, …]."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (yes.ndim - 1)), yes, no)
