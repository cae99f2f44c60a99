"""What a compiled learning step tells: numbers and ended episodes, as arrays of fixed shape."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from drl.core.log import REPORTED, SUCCESS, TERMINATED, TRUNCATED
from drl.engines.jax.envs.stepping import JaxStep


class Ends(NamedTuple):
    """Episodes that ended, where and how: `[…, N]`. Where none did, `how` is 0 and the others mean nothing."""

    how: jax.Array  # int8: bits of `drl.core.log`
    episode_return: jax.Array  # float32, raw rewards
    length: jax.Array  # int32


class Report(NamedTuple):
    """One learning step."""

    learn: dict[str, Any]  # what the algorithm reports, summed over updates
    updates: Any  # int32: how many updates that are
    steps: Any  # int32: environment steps
    reward: Any  # float32: sum of all rewards
    ends: Ends  # [rows, N]


class RunningEpisodes(NamedTuple):
    """Return and length so far of the running episodes, `[N]`."""

    episode_return: jax.Array
    length: jax.Array


def new_running_episodes(num_envs: int) -> RunningEpisodes:
    return RunningEpisodes(jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32))


def note(stats: RunningEpisodes, step: JaxStep) -> tuple[RunningEpisodes, Ends]:
    """Add one step of every environment to the book; where an episode ended, report it and start again from zero."""
    stats = RunningEpisodes(stats.episode_return + step.reward, stats.length + 1)
    how = TRUNCATED * step.truncated + TERMINATED * step.terminated
    ended = step.truncated | step.terminated
    if step.success is not None:
        how += ended * (REPORTED + SUCCESS * step.success)
    ends = Ends(how.astype(jnp.int8), *stats)
    return RunningEpisodes(*(jnp.where(ended, 0, column) for column in stats)), ends
