"""The report of a compiled learning step: numbers and finished episodes, as arrays of fixed shape."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from drl.core.log import REPORTED, SUCCESS, TERMINATED, TRUNCATED
from drl.engines.jax.envs.jax_env import JaxStep
from drl.engines.jax.off_policy import Sometimes


class Ends(NamedTuple):
    """Finished episodes `[…, N]`. Where none ended, `how` is 0 and the other fields are meaningless."""

    how: jax.Array  # int8: bits of `drl.core.log`
    episode_return: jax.Array  # float32, raw rewards
    length: jax.Array  # int32


class Report(NamedTuple):
    """The report of one learning step."""

    learn: dict[str, jax.Array]  # numbers of the algorithm, summed over the updates that report them
    counts: dict[str, jax.Array]  # int32: number of these updates, by the same names
    steps: jax.Array  # int32: environment steps
    reward: jax.Array  # float32: sum of all rewards
    ends: Ends  # [rows, N]


def one_update(logs: dict[str, jax.Array], steps: jax.Array, reward: jax.Array, ends: Ends) -> Report:
    """The report of a learning step that reports every number once."""
    return Report(logs, {name: jnp.int32(1) for name in logs}, steps, reward, ends)


def summed(logs: Mapping[str, jax.Array | Sometimes]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Logs of several updates, stacked along the first axis: for each name the sum over the updates that report it, and
    their number."""
    learn, counts = {}, {}
    for name, values in logs.items():
        value, reported = values if isinstance(values, Sometimes) else (values, jnp.ones(values.shape, bool))
        learn[name], counts[name] = value.sum(), reported.sum(dtype=jnp.int32)
    return learn, counts


class RunningEpisodes(NamedTuple):
    """Return and length so far of the running episodes, `[N]`."""

    episode_return: jax.Array
    length: jax.Array


def new_running_episodes(num_envs: int) -> RunningEpisodes:
    """N episodes at their beginning."""
    return RunningEpisodes(jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32))


def record_step(running: RunningEpisodes, step: JaxStep) -> tuple[RunningEpisodes, Ends]:
    """Add one step of every environment; where an episode ended, report it and reset its return and length to zero."""
    running = RunningEpisodes(running.episode_return + step.reward, running.length + 1)
    how = TRUNCATED * step.truncated + TERMINATED * step.terminated
    ended = step.truncated | step.terminated
    if step.success is not None:
        how += ended * (REPORTED + SUCCESS * step.success)
    ends = Ends(how.astype(jnp.int8), *running)
    return RunningEpisodes(*(jnp.where(ended, 0, column) for column in running)), ends
