"""`drl.core.normalise` in JAX: the same statistics as pure functions, changed once per learning step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from drl.engines.jax.on_policy import Window, flat, weight_of

CLIP = 10.0  # as ObsNormaliser and RewardScaler clip


class Moments(NamedTuple):
    mean: Any  # [*shape]
    squares: Any  # sum of squared deviations from the mean
    count: Any  # float32


def new_moments(shape: tuple[int, ...]) -> Moments:
    return Moments(np.zeros(shape, np.float32), np.zeros(shape, np.float32), np.float32(0))


def merge(moments: Moments, rows: jax.Array, weight: jax.Array | None = None) -> Moments:
    """Take in rows `[B, *shape]`, those of weight 0 left out (Chan's parallel formula)."""
    shape = (-1,) + (1,) * (rows.ndim - 1)
    share = jnp.ones(len(rows)) if weight is None else weight
    share, count = share.reshape(shape), share.sum()
    mean = (rows * share).sum(axis=0) / jnp.maximum(count, 1.0)
    squares = (jnp.square(rows - mean) * share).sum(axis=0)
    delta, total = mean - moments.mean, moments.count + count
    part = count / jnp.maximum(total, 1.0)
    squares = moments.squares + squares + jnp.square(delta) * moments.count * part
    return Moments(moments.mean + delta * part, squares, total)


def deviation(moments: Moments) -> jax.Array:
    variance = jnp.where(moments.count > 0, moments.squares / jnp.maximum(moments.count, 1.0), 1.0)
    return jnp.sqrt(variance + 1e-8)


def normalise(moments: Moments | None, obs: jax.Array) -> jax.Array:
    if moments is None:
        return obs
    return jnp.clip((obs - moments.mean) / deviation(moments), -CLIP, CLIP)


class Scaler(NamedTuple):
    """Of rewards, by the deviation of the running discounted return."""

    moments: Moments
    returns: Any  # [N] discounted return so far


def new_scaler(num_envs: int) -> Scaler:
    return Scaler(new_moments(()), np.zeros(num_envs, np.float32))


def follow(
    scaler: Scaler, reward: jax.Array, ended: jax.Array, gamma: float, weight: jax.Array | None = None
) -> tuple[Scaler, jax.Array]:
    """Follow a rollout `[T, N]`, then scale its rewards. Rows of weight 0 must come after an episode's end."""

    def step(returns: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        returns = gamma * returns + row[0]
        return jnp.where(row[1], 0.0, returns), returns

    returns, seen = jax.lax.scan(step, scaler.returns, (reward, ended))
    moments = merge(scaler.moments, seen.reshape(-1), None if weight is None else weight.reshape(-1))
    return Scaler(moments, returns), jnp.clip(reward / deviation(moments), -CLIP, CLIP)


def prepared(
    window: Window, moments: Moments | None, scaler: Scaler | None, gamma: float
) -> tuple[Window, Moments | None, Scaler | None]:
    """The window as the learner sees it, and the statistics after it: those of observations change after their use."""
    weight = weight_of(window)
    if moments is not None:
        names = ("obs", "next_obs", "last_obs")
        seen = {name: normalise(moments, getattr(window, name)) for name in names}
        moments = merge(moments, flat(window.obs), weight)
        window = window._replace(**seen)
    if scaler is not None:
        scaler, reward = follow(scaler, window.reward, window.terminated | window.truncated, gamma, weight)
        window = window._replace(reward=reward)
    return window, moments, scaler
