"""`drl.core.normalize` in JAX: the same statistics as pure functions, updated once per learning step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.specs import AnyArray
from drl.engines.jax.on_policy import Window, flat, weight_of

CLIP = 10.0  # as in ObsNormalizer and RewardScaler


class RunningStats(NamedTuple):
    """Mean and spread of what was seen."""

    mean: AnyArray  # [*shape]
    squares: AnyArray  # sum of squared deviations from the mean
    count: AnyArray  # float32


def new_running_stats(shape: tuple[int, ...]) -> RunningStats:
    """Before anything was seen."""
    return RunningStats(np.zeros(shape, np.float32), np.zeros(shape, np.float32), np.float32(0))


def merge(running_stats: RunningStats, rows: jax.Array, weight: jax.Array | None = None) -> RunningStats:
    """Add rows `[B, *shape]`, except those of weight 0 (Chan's parallel formula)."""
    shape = (-1,) + (1,) * (rows.ndim - 1)
    share = jnp.ones(len(rows)) if weight is None else weight
    share, count = share.reshape(shape), share.sum()
    mean = (rows * share).sum(axis=0) / jnp.maximum(count, 1.0)
    squares = (jnp.square(rows - mean) * share).sum(axis=0)
    delta, total = mean - running_stats.mean, running_stats.count + count
    part = count / jnp.maximum(total, 1.0)
    squares = running_stats.squares + squares + jnp.square(delta) * running_stats.count * part
    return RunningStats(running_stats.mean + delta * part, squares, total)


def deviation(running_stats: RunningStats) -> jax.Array:
    """Standard deviation; 1 before anything was seen."""
    variance = jnp.where(running_stats.count > 0, running_stats.squares / jnp.maximum(running_stats.count, 1.0), 1.0)
    return jnp.sqrt(variance + 1e-8)


def normalize(running_stats: RunningStats | None, obs: jax.Array) -> jax.Array:
    """To mean 0 and deviation 1; without statistics as it is."""
    if running_stats is None:
        return obs
    return jnp.clip((obs - running_stats.mean) / deviation(running_stats), -CLIP, CLIP)


class Scaler(NamedTuple):
    """Scales rewards by the standard deviation of the running discounted return."""

    running_stats: RunningStats
    returns: AnyArray  # [N] discounted return so far
    largest: AnyArray  # absolute value of these so far


def new_scaler(num_envs: int) -> Scaler:
    """Before any reward was seen."""
    return Scaler(new_running_stats(()), np.zeros(num_envs, np.float32), np.float32(0))


def reward_scale(scaler: Scaler, bound: float | None = None) -> jax.Array:
    """What rewards are divided by; with a `bound` so that no return seen so far exceeds it."""
    spread = deviation(scaler.running_stats)
    return spread if bound is None else jnp.maximum(spread, scaler.largest / bound)


def follow(
    scaler: Scaler, reward: jax.Array, ended: jax.Array, gamma: float, weight: jax.Array | None = None
) -> Scaler:
    """Add rows `[T, N]`. Rows of weight 0 must come after an episode's end, or be the last ones."""

    def step(returns: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        returns = gamma * returns + row[0]
        return jnp.where(row[1], 0.0, returns), returns

    returns, seen = jax.lax.scan(step, scaler.returns, (reward, ended))
    running_stats = merge(scaler.running_stats, seen.reshape(-1), None if weight is None else weight.reshape(-1))
    sizes = jnp.abs(seen if weight is None else seen * weight.reshape(seen.shape))
    return Scaler(running_stats, returns, jnp.maximum(scaler.largest, sizes.max()))


def prepared(
    window: Window, running_stats: RunningStats | None, scaler: Scaler | None, gamma: float
) -> tuple[Window, RunningStats | None, Scaler | None]:
    """The normalized window and the new statistics. Observations are normalized with the old statistics."""
    weight = weight_of(window)
    if running_stats is not None:
        names = ("obs", "next_obs", "last_obs")
        seen = {name: normalize(running_stats, getattr(window, name)) for name in names}
        running_stats = merge(running_stats, flat(window.obs), weight)
        window = window._replace(**seen)
    if scaler is not None:
        scaler = follow(scaler, window.reward, window.terminated | window.truncated, gamma, weight)
        window = window._replace(reward=jnp.clip(window.reward / reward_scale(scaler), -CLIP, CLIP))
    return window, running_stats, scaler
