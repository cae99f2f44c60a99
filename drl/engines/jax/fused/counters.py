"""Budget, counters and schedules of a run inside a compiled program."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.configs import Config
from drl.core.errors import BadInput, one_line
from drl.core.schedules import FUNCTIONS, Constant, Cosine, Exponential, Linear, OfFunction, Schedule
from drl.core.specs import AnyArray
from drl.engines.jax.envs.jax_env import JaxEnv


class Counters(NamedTuple):
    """How far the program is."""

    env_steps: AnyArray  # int32
    episodes: AnyArray  # int32


def new_counters() -> Counters:
    """At the beginning of a run."""
    return Counters(np.int32(0), np.int32(0))


@dataclass(frozen=True)
class Budget:
    """At most one of both is given. Without a budget schedules keep their initial values."""

    total_timesteps: int | None = None
    num_episodes: int | None = None

    def progress(self, counters: Counters) -> jax.Array:
        """Share of the budget used so far, in [0, 1]."""
        if self.total_timesteps:
            return jnp.minimum(counters.env_steps / self.total_timesteps, 1.0)
        return jnp.minimum(counters.episodes / self.num_episodes, 1.0) if self.num_episodes else jnp.float32(0.0)

    def used(self, counters: Counters) -> jax.Array:
        """Whether the budget is used up."""
        if self.total_timesteps:
            return jnp.asarray(counters.env_steps) >= self.total_timesteps
        return jnp.asarray(counters.episodes) >= self.num_episodes if self.num_episodes else jnp.bool_(False)


class Setup(NamedTuple):
    """The settings of a program, besides its algorithm."""

    env: JaxEnv
    num_envs: int
    budget: Budget
    buffer: Config  # settings of the algorithm's buffer
    exploration: Config  # settings of its exploration
    normalize_obs: bool = False
    normalize_reward: bool = False


def value_at(schedule: Schedule, time: jax.Array) -> jax.Array:
    """The value of a schedule of `drl.core.schedules` at a traced time."""
    if isinstance(schedule, Constant):
        return jnp.float32(schedule.value)
    if isinstance(schedule, Linear):
        return schedule.start + (schedule.end - schedule.start) * jnp.clip(time / schedule.over, 0.0, 1.0)
    if isinstance(schedule, Cosine):
        angle = jnp.pi * jnp.clip(time / schedule.over, 0.0, 1.0)
        return schedule.end + (schedule.start - schedule.end) * 0.5 * (1.0 + jnp.cos(angle))
    if isinstance(schedule, OfFunction):
        return jnp.float32(FUNCTIONS[schedule.name](jnp.clip(time / schedule.over, 0.0, 1.0)))  # type: ignore[arg-type]
    assert isinstance(schedule, Exponential)
    return schedule.end + (schedule.start - schedule.end) * jnp.exp(-time / schedule.decay)


def check_traceable(config: Config) -> None:
    """Raise for a schedule that is a function which JAX cannot compile."""
    for setting, name in vars(config).items():
        if not setting.endswith("_schedule") or name not in FUNCTIONS:
            continue
        try:
            shape = jax.eval_shape(lambda time, name=name: value_at(OfFunction(name), time), jnp.float32(0.0)).shape
        except Exception as error:  # it is a user's
            said = one_line(error, 120)
            raise BadInput(
                f"{setting} is {name!r}, which cannot be compiled ({said}); write it with jax.numpy and without if, or "
                "use --vectorization sync"
            ) from error
        if shape:
            raise BadInput(f"{setting} is {name!r}, which gives an array of shape {shape}; expected one number")
