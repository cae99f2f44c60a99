"""Parts of all fused programs: budget, counters, schedules, statistics, reports, and the base class."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.configs import Config
from drl.core.errors import BadInput, one_line
from drl.core.log import REPORTED, SUCCESS, TERMINATED, TRUNCATED
from drl.core.schedules import FUNCTIONS, Constant, Cosine, Exponential, Linear, OfFunction, Schedule
from drl.core.specs import AnyArray
from drl.engines.jax.envs.jax_env import JaxEnv, JaxStep, State
from drl.engines.jax.layers import Tree
from drl.engines.jax.learner import Pure
from drl.engines.jax.off_policy import Sometimes
from drl.engines.jax.on_policy import Window, flat, weight_of


class Counters(NamedTuple):
    """Steps and episodes so far."""

    env_steps: AnyArray  # int32
    episodes: AnyArray  # int32


@dataclass(frozen=True)
class Budget:
    """Total steps or episodes, at most one of them. Without a budget, schedules keep their initial values."""

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


CLIP = 10.0  # as in ObsNormalizer and RewardScaler


class FusedRunningStats(NamedTuple):
    """Mean and spread of the observations or returns so far."""

    mean: AnyArray  # [*shape]
    squares: AnyArray  # sum of squared deviations from the mean
    count: AnyArray  # float32


def new_running_stats(shape: tuple[int, ...]) -> FusedRunningStats:
    """Without any data."""
    return FusedRunningStats(np.zeros(shape, np.float32), np.zeros(shape, np.float32), np.float32(0))


def merge(running_stats: FusedRunningStats, rows: jax.Array, weight: jax.Array | None = None) -> FusedRunningStats:
    """Add rows `[B, *shape]`, except those of weight 0 (Chan's parallel formula)."""
    shape = (-1,) + (1,) * (rows.ndim - 1)
    share = jnp.ones(len(rows)) if weight is None else weight
    share, count = share.reshape(shape), share.sum()
    mean = (rows * share).sum(axis=0) / jnp.maximum(count, 1.0)
    squares = (jnp.square(rows - mean) * share).sum(axis=0)
    delta, total = mean - running_stats.mean, running_stats.count + count
    part = count / jnp.maximum(total, 1.0)
    squares = running_stats.squares + squares + jnp.square(delta) * running_stats.count * part
    return FusedRunningStats(running_stats.mean + delta * part, squares, total)


def deviation(running_stats: FusedRunningStats) -> jax.Array:
    """Standard deviation; 1 without data."""
    variance = jnp.where(running_stats.count > 0, running_stats.squares / jnp.maximum(running_stats.count, 1.0), 1.0)
    return jnp.sqrt(variance + 1e-8)


def normalize(running_stats: FusedRunningStats | None, obs: jax.Array) -> jax.Array:
    """To mean 0 and deviation 1; without statistics as it is."""
    if running_stats is None:
        return obs
    return jnp.clip((obs - running_stats.mean) / deviation(running_stats), -CLIP, CLIP)


class Scaler(NamedTuple):
    """Scales rewards by the standard deviation of the running discounted return."""

    running_stats: FusedRunningStats
    returns: AnyArray  # [N] discounted return so far
    largest: AnyArray  # absolute value of these so far


def new_scaler(num_envs: int) -> Scaler:
    """Without any rewards."""
    return Scaler(new_running_stats(()), np.zeros(num_envs, np.float32), np.float32(0))


def reward_scale(scaler: Scaler, bound: float | None = None) -> jax.Array:
    """The divisor of rewards; with a `bound`, no return so far exceeds it after the division."""
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
    window: Window, running_stats: FusedRunningStats | None, scaler: Scaler | None, gamma: float
) -> tuple[Window, FusedRunningStats | None, Scaler | None]:
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


# ── programs ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Carry(NamedTuple):
    """The whole state of a run between two learning steps."""

    learner: Tree  # state of the algorithm
    env: State  # None, as the next two, in a program that begins all episodes anew
    obs: Tree  # [N, …]
    running: Tree  # `RunningEpisodes`
    counters: Counters
    key: jax.Array
    running_stats: FusedRunningStats | None  # of observations, if they are normalized
    scaler: Scaler | None  # of rewards, if they are normalized
    buffer: Tree = None  # of a program with replay
    noise: Tree = None  # of its exploration


@dataclass(frozen=True)
class FusedProgram:
    """An algorithm and its environments in one program. Configuration and pure functions: a static argument of compiled
    functions. A subclass has `rows`, `begin(params, key) → carry` and `learn_step(carry) → (carry, report)`."""

    env: JaxEnv
    pure: Pure  # the algorithm without state
    num_envs: int
    budget: Budget
    normalize_obs: bool = False
    normalize_reward: bool = False

    @classmethod
    def make(cls, pure: Pure, setup: Setup) -> Self:
        """The program of an algorithm in a setting."""
        own = {field.name for field in fields(cls)}
        return cls(pure=pure, **{name: value for name, value in setup._asdict().items() if name in own})

    @property
    def rows(self) -> int:
        """Steps of every environment in one learning step, at most."""
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """Environment steps of one learning step, at most."""
        return self.rows * self.num_envs

    @property
    def passes(self) -> int:
        """Passes of one learning step over its rows."""
        return 1

    def begin(self, params: Tree, key: jax.Array) -> Carry:
        """The state of a run at its beginning."""
        key, first = jax.random.split(key)
        state = self.env.reset(self.env.draw(first, (self.num_envs,)).reset)
        carry = self.without_episodes(params, key, self.num_envs)
        return carry._replace(env=state, obs=self.env.observe(state), running=new_running_episodes(self.num_envs))

    def without_episodes(self, params: Tree, key: jax.Array, columns: int) -> Carry:
        """The same before the environments are reset; rewards of `columns` environments or episodes are scaled."""
        running_stats = new_running_stats(self.env.obs_spec.shape) if self.normalize_obs else None
        scaler = new_scaler(columns) if self.normalize_reward else None
        counters = Counters(np.int32(0), np.int32(0))
        return Carry(self.pure.begin(params), None, None, None, counters, key, running_stats, scaler)

    def learn_step(self, carry: Carry) -> tuple[Carry, Report]:
        """One learning step: the next state, and what to report."""
        raise NotImplementedError

    def settings_at(self, counters: Counters) -> dict[str, jax.Array]:
        """The current value of each scheduled setting."""
        progress = self.budget.progress(counters)
        return {name: value_at(each, progress) for name, each in self.pure.schedules.items()}
