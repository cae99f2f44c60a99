"""One step of any environment with resets. Only this module resets environments."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.specs import ActionSpec
from drl.engines.jax.envs.jax_env import JaxEnv, Noise, State, legal_actions


class JaxStep(NamedTuple):
    """`VecStep` for compiled programs; every row is valid."""

    reward: jax.Array  # [N] float32
    terminated: jax.Array  # [N] bool; takes precedence over truncated
    truncated: jax.Array  # [N] bool
    success: jax.Array | None  # [N] bool; counts where an episode ended; None: not reported
    next_obs: jax.Array  # [N, …] true successors
    obs: jax.Array  # [N, …] what to act on next: next_obs, or the first observation of a new episode
    action_mask: jax.Array | None = None  # [N, choices] bool: legal actions in `obs`; None: all
    next_action_mask: jax.Array | None = None  # the same for `next_obs`; all if there is no legal action


def step_and_reset(env: JaxEnv, state: State, action: jax.Array, noise: Noise) -> tuple[State, JaxStep]:
    """Step every environment, then begin a new episode where one ended. `action` is in the policy's units.

    >>> from drl.engines.jax.envs import make_jax_env
    >>> env = make_jax_env("Pendulum-v1")
    >>> def random_play(key):  # 100 steps of 8 envs; all noise is drawn before the scan
    ...     first, now, move = jax.random.split(key, 3)
    ...     state = env.reset(env.draw(first, (8,)).reset)
    ...     inputs = jax.random.normal(move, (100, 8, 1)), env.draw(now, (100, 8))
    ...     return jax.lax.scan(lambda state, x: step_and_reset(env, state, *x), state, inputs)
    >>> state, steps = jax.eval_shape(random_play, jax.random.key(0))  # jax.jit(random_play)(…) runs it
    >>> steps.next_obs.shape
    (100, 8, 3)
    """
    return advance(env, state, to_env_units(env.action_spec, action), noise)


def advance(env: JaxEnv, state: State, action: jax.Array, noise: Noise) -> tuple[State, JaxStep]:
    """The same with `action` in the environment's units."""
    moved = env.step(state, action, noise.step)
    truncated = moved.truncated & ~moved.terminated
    ended = moved.terminated | truncated
    fresh = env.reset(noise.reset)
    next_obs = env.observe(moved.state)
    obs = where_rows(ended, env.observe(fresh), next_obs)
    now = jax.tree.map(lambda new, old: where_rows(ended, new, old), fresh, moved.state)
    next_mask = legal_actions(env, moved.state)
    if next_mask is not None:
        next_mask = next_mask | ~next_mask.any(axis=1, keepdims=True)
    masks = (legal_actions(env, now), next_mask)
    return now, JaxStep(moved.reward, moved.terminated, truncated, moved.success, next_obs, obs, *masks)


def where_rows(mask: jax.Array, yes: jax.Array, no: jax.Array) -> jax.Array:
    """`jnp.where` by whole rows: `mask` is [N], the others [N, …]."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (yes.ndim - 1)), yes, no)


def to_env_units(spec: ActionSpec, action: jax.Array) -> jax.Array:
    """Translate a batch `[N, *policy_shape]`. Gaussian actions are clipped to [−1, 1], which spans the bounds."""
    if spec.kind == "box":
        low, high = np.asarray(spec.low, np.float32), np.asarray(spec.high, np.float32)
        bounded = np.isfinite(low) & np.isfinite(high)
        lower, upper = np.where(bounded, low, 0), np.where(bounded, high, 0)  # avoids infinity times zero below
        inside = jnp.clip(action, -1.0, 1.0)
        scaled = jnp.where(bounded, upper * (inside + 1) / 2 + lower * (1 - inside) / 2, action)
        limited = jnp.clip(scaled, low, high)  # one-sided bounds are only clipped
        return limited.reshape(len(action), *spec.shape)
    moved = action + np.asarray(spec.starts, np.int32) if spec.starts else action
    return moved.reshape(len(action), *spec.shape)
