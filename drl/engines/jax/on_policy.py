"""What every on-policy learner does first: values, log-probabilities and advantages of a rollout, in one batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.specs import ActionSpec
from drl.core.transition import RolloutBatch
from drl.engines.jax import ops
from drl.engines.jax.layers import Params
from drl.engines.jax.optimizer import OptimizerState

CHUNK = 4096  # rows per forward pass: keeps image rollouts within memory


class LearnerState(NamedTuple):
    """What PPO and A2C change."""

    params: Params
    optimizer: OptimizerState


class Window(NamedTuple):
    """A rollout with dense successors, time-major."""

    obs: Any  # [T, N, …]
    action: Any  # [T, N, …] in the policy's units
    reward: Any  # [T, N]
    terminated: Any  # [T, N] bool
    truncated: Any  # [T, N] bool
    valid: Any  # [T, N] bool, rows that count; None: all of them
    last_obs: Any  # [N, …] successors of the last row
    next_obs: Any  # [T, N, …] true successors; read only where `truncated`


class Rows(NamedTuple):
    """A rollout flattened to rows `[B, …]`, ready for a loss."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array  # under the policy that played
    value: jax.Array  # of the critic before this learning step
    advantage: jax.Array
    target: jax.Array  # what the value should have been


def window_of(batch: RolloutBatch) -> Window:
    """A rollout as the buffer hands it out, its few final observations put where they belong."""
    next_obs = np.zeros_like(batch.obs)
    next_obs.reshape(-1, *batch.obs.shape[2:])[batch.final_index] = batch.final_obs
    rows = (batch.obs, batch.action, batch.reward, batch.terminated, batch.truncated, batch.valid)
    return Window(*rows, batch.last_obs, next_obs)


def flat(array: Any) -> jax.Array:
    """`[T, N, …]` → `[T · N, …]`."""
    return jnp.reshape(array, (-1, *array.shape[2:]))


def weight_of(window: Window) -> jax.Array | None:
    """1 for rows that count, 0 for the others `[T · N]`; None where all count."""
    return None if window.valid is None else flat(window.valid).astype(jnp.float32)


def evaluate_rollout(model: Any, params: Params, spec: ActionSpec, window: Window, gamma: float, lam: float) -> Rows:
    """Forward the rollout once, bootstrap the rows that were cut, and estimate advantages by GAE(λ)."""
    obs, action = flat(window.obs), flat(window.action)
    policy, value = in_chunks(lambda rows: model.apply(params, rows), obs)
    log_prob, _ = ops.log_prob_and_entropy(spec, policy, action)
    values = value.reshape(window.reward.shape)  # [T, N]
    ends = (window.terminated, window.truncated)
    advantage = ops.gae(window.reward, values, successor_values(model, params, window, values), *ends, gamma, lam)
    advantages = advantage.reshape(-1)
    return Rows(obs, action, log_prob, value, advantages, advantages + value)


def successor_values(model: Any, params: Params, window: Window, values: jax.Array) -> jax.Array:
    """V of every row's true successor `[T, N]`: the next row's, or the critic's word where the trace was cut.

    Truncations are rare: only a rollout that has one pays for the values of final observations.
    """
    following = jnp.concatenate([values[1:], model.value(params, window.last_obs)[None]])

    def with_final_values() -> jax.Array:
        final = in_chunks(lambda rows: model.value(params, rows), flat(window.next_obs))
        return jnp.where(window.truncated, final.reshape(values.shape), following)

    return jax.lax.cond(jnp.any(window.truncated), with_final_values, lambda: following)


def in_chunks(forward: Callable[[jax.Array], Any], obs: jax.Array) -> Any:
    return forward(obs) if len(obs) <= CHUNK else _mapped(forward, obs)


def _mapped(forward: Callable[[jax.Array], Any], obs: jax.Array) -> Any:
    """`forward` over whole chunks one after another, then over what is left."""
    whole = len(obs) // CHUNK * CHUNK
    chunks = jax.lax.map(forward, obs[:whole].reshape(-1, CHUNK, *obs.shape[1:]))
    joined = jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), chunks)
    if whole == len(obs):
        return joined
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), joined, forward(obs[whole:]))
