"""`make_vec_env`: make N environments from an id, or from a class or function of your own."""

import contextlib
import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from drl.core.configs import Whole
from drl.core.contracts import VecEnv
from drl.core.errors import BadInput, MissingExtra, did_you_mean
from drl.core.setting_rules import plain_setting
from drl.envs import atari
from drl.envs.async_vec_env import PATIENCE, AsyncVecEnv
from drl.envs.env_config import (
    AnyEnv,
    AnyVector,
    EnvConfig,
    EnvLike,
    OwnSpec,
    as_config,
    call_maker,
    find_spec,
    given_vector,
    latest_version,
    unchecked_spec,
)
from drl.envs.env_names import FoundWrapper, WrapperLike, find_wrapper, is_game, prepare_package_of
from drl.envs.env_wrappers import SignRewards, StackedEnv, StackedVecEnv
from drl.envs.faults import close_anyway, making, reason
from drl.envs.native_vec_env import EnvPoolVecEnv, NativeVecEnv, make_pool
from drl.envs.parallel_vec_env import ParallelVecEnv, SeveralAgents, make_game
from drl.envs.spaces import EnvKwargs, GymEnv
from drl.envs.sync_vec_env import SyncVecEnv

NATIVE_FROM = 12  # from this many environments on, Gymnasium's native CartPole is faster than our loop; see README
SLOW_STEP = 5e-4  # seconds; above this a process per environment is faster despite its pipes
PROBE_SECONDS = 0.05  # how long `auto` may step one environment to measure it

# Word in the message of a failed import → the extra to install.
EXTRAS = {"box2d": "box2d", "swig": "box2d", "mujoco": "mujoco", "ale": "atari", "atari": "atari", "jax": "jax"}


@dataclass(frozen=True)
class VecEnvPlan:
    """The arguments with which a vectorization makes its environments."""

    spec: EnvSpec
    num_envs: int
    seed: int
    stream: str  # name of the seed stream; environment i uses its index i
    timeout: float  # seconds for one reset or step of a worker process
    render_mode: str | None = None
    env_kwargs: EnvKwargs = field(default_factory=dict)
    wrappers: tuple[FoundWrapper, ...] = ()
    first_index: int = 0  # of these environments, where they are some of many

    @property
    def env_fns(self) -> list[Callable[[], GymEnv]]:
        """One function for each environment."""
        return [
            functools.partial(_make_env, self.spec, self.env_kwargs, self.wrappers, self.render_mode)
        ] * self.num_envs

    @property
    def has_native(self) -> bool:
        """Whether the environment has a vector form of its own; wrappers are for single environments only."""
        spec = self.spec
        return spec.vector_entry_point is not None and not spec.additional_wrappers and not self.wrappers


def make_vec_env(
    env: AnyEnv,
    num_envs: Whole = 1,
    seed: Whole = 0,
    *,
    vectorization: str = "auto",  # auto · sync · async · native · envpool
    frame_stack: Whole | None = None,  # frames per observation; layout in env_wrappers.py
    env_kwargs: EnvKwargs | None = None,  # for the environment's constructor
    wrappers: Iterable[WrapperLike] | None = None,  # around each environment, the first one innermost
    render_mode: str | None = None,
    seeds_stream: str = "world",  # evaluation uses another name, so it shares no random numbers
    timeout: float = PATIENCE,  # seconds for one start, reset or step of a worker process (async)
    first_index: int = 0,  # of these environments, where they are some of many (sync)
) -> VecEnv:
    """Make N environments from a Gymnasium id (also `module:Id`), from a class or function of yours (itself, or as
    `module:Class` or `file.py:Class`), or as copies of one. A game of several agents (`pettingzoo:NAME`) gives N copies
    with a row for each agent; see parallel_vec_env.py.

    >>> import numpy as np
    >>> with make_vec_env("CartPole-v1", num_envs=2, seed=1) as envs:
    ...     obs = envs.reset()
    ...     envs.vectorization, obs.shape, envs.step(envs.action_spec.to_env(np.array([0, 1]))).valid
    ('sync', (2, 4), array([ True,  True]))
    """
    if vectorization not in (*VECTORIZATIONS, "auto"):
        raise BadInput(
            f"unknown vectorization {vectorization!r}: {did_you_mean(vectorization, [*VECTORIZATIONS, 'auto'])}"
        )
    num_envs, seed = plain_setting(num_envs), plain_setting(seed)
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise BadInput(f"num_envs = {num_envs!r}; expected a whole number, 1 or more")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise BadInput(f"seed = {seed!r}; expected a whole number, 0 or more")
    if not 0 < timeout < math.inf:
        raise BadInput(f"timeout = {timeout!r}; expected seconds, more than 0")
    if first_index and vectorization != "sync":
        raise BadInput(f"first_index is {first_index}; that needs vectorization='sync', not {vectorization!r}")
    config = as_config(env, env_kwargs, wrappers, frame_stack)
    if (vector := given_vector(config.env)) is not None:
        envs = _given(vector, config, num_envs, seed, seeds_stream, vectorization)
    else:
        # EnvPool has ids that Gymnasium does not know, so EnvPool checks the name itself.
        spec = unchecked_spec(config.env) if vectorization == "envpool" else find_spec(config.env)
        found = tuple(find_wrapper(name) for name in config.wrappers)
        kwargs = config.env_kwargs
        plan = VecEnvPlan(spec, num_envs, seed, seeds_stream, timeout, render_mode, kwargs, found, first_index)
        try:
            envs = _auto(plan) if vectorization == "auto" else VECTORIZATIONS[vectorization](plan)
        except SeveralAgents:
            envs = _parallel(plan, vectorization)
        if atari.is_atari(spec) and atari.clips_reward(spec, kwargs):
            envs = SignRewards(envs)
    envs = envs if config.frame_stack == 1 else StackedVecEnv(envs, config.frame_stack)
    envs.seed = seed
    return envs


def _given(vector: AnyVector, config: EnvConfig, num_envs: int, seed: int, stream: str, vectorization: str) -> VecEnv:
    """Use a vector environment that was passed as an object."""
    if vector.num_envs != num_envs:
        raise BadInput(f"num_envs is {num_envs}, but the vector environment has {vector.num_envs}")
    if config.env_kwargs or config.wrappers or vectorization not in ("auto", "native"):
        given = "env_kwargs" if config.env_kwargs else "wrappers" if config.wrappers else "vectorization"
        raise BadInput(f"{given} is for environments that are made here; the vector environment was given as an object")
    return vector if isinstance(vector, VecEnv) else NativeVecEnv(vector, seed, config.env, stream)


def make_env(
    env: EnvLike,
    render_mode: str | None = None,
    *,
    frame_stack: int | None = None,
    env_kwargs: EnvKwargs | None = None,
    wrappers: Iterable[WrapperLike] | None = None,
) -> GymEnv:
    """Make one plain Gymnasium environment with the same observations, for rendering and watching."""
    return env_maker(as_config(env, env_kwargs, wrappers, frame_stack))(render_mode)


def env_maker(config: EnvConfig) -> Callable[[str | None], GymEnv]:
    """Return a function that makes a plain environment in a render mode, also in a process without the names."""
    found = [find_wrapper(name) for name in config.wrappers]
    if config.frame_stack > 1:
        found.append(FoundWrapper("StackedEnv", StackedEnv, {"frames": config.frame_stack}))
    return functools.partial(_make_env, find_spec(config.env), config.env_kwargs, found)


def has_several_agents(config: EnvConfig) -> bool:
    """Whether it is a game of several agents. An environment without a registered id is made to find out."""
    spec = find_spec(config.env)
    if not isinstance(spec, OwnSpec):
        return False
    try:
        close_anyway(_make_env(spec, config.env_kwargs, ()).close, spec.id)
    except SeveralAgents:
        return True
    return False


@contextlib.contextmanager
def _explained(spec: EnvSpec, env_kwargs: EnvKwargs) -> Iterator[None]:
    """Like `making`; a missing package becomes advice on what to install."""
    try:
        with making(spec.id, env_kwargs):
            yield
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise _missing(spec.id, error) from error


def _make_env(
    spec: EnvSpec, env_kwargs: EnvKwargs, wrappers: Sequence[FoundWrapper], render_mode: str | None = None
) -> GymEnv:
    with _explained(spec, env_kwargs):
        env = _make_bare(spec, render_mode, env_kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def _make_bare(spec: EnvSpec, render_mode: str | None, env_kwargs: EnvKwargs) -> GymEnv:
    if isinstance(spec, OwnSpec):
        env = call_maker(spec.maker, render_mode, env_kwargs)
        if isinstance(env, gym.Env):
            return env
        if is_game(env):
            close_anyway(env.close, spec.id)  # type: ignore[attr-defined]
            raise SeveralAgents(spec.id)
        raise TypeError(f"it returned {type(env).__name__}; expected a Gymnasium environment")
    if atari.is_atari(spec):
        return atari.make_atari(spec, render_mode, env_kwargs)
    prepare_package_of(spec)
    # The passive checker costs time at every step and checks less than our own `check_environment`.
    return gym.make(spec, render_mode=render_mode, disable_env_checker=True, **env_kwargs)


def _missing(env_id: str, error: Exception) -> BadInput:
    newest = latest_version(env_id.rpartition("-v")[0])
    if type(error) is ImportError and error.name is None and newest is not None and newest.id != env_id:
        return BadInput(f"environment {env_id!r} cannot be made: {error} Its newest version here is {newest.id!r}")
    said = f"{error} {error.__cause__}".lower()
    for word, extra in EXTRAS.items():
        if word in said:
            module = error if isinstance(error, ImportError) and error.name else error.__cause__
            return MissingExtra(f"environment {env_id!r}", extra, module if isinstance(module, ImportError) else word)
    return BadInput(f"environment {env_id!r} needs a package that is not installed: {error}")


def _sync(plan: VecEnvPlan) -> VecEnv:
    return SyncVecEnv(plan.env_fns, plan.seed, plan.spec.id, plan.stream, plan.first_index)


def _async(plan: VecEnvPlan) -> VecEnv:
    return AsyncVecEnv(plan.env_fns, plan.seed, plan.spec.id, plan.stream, plan.timeout)


def _native(plan: VecEnvPlan) -> VecEnv:
    spec = plan.spec
    if not plan.has_native:
        why = "takes no wrappers in its own vector form" if plan.wrappers else "has no vector form of its own"
        raise BadInput(f"environment {spec.id!r} {why}; use vectorization='sync' or 'async'")
    kwargs = plan.env_kwargs | ({} if plan.render_mode is None else {"render_mode": plan.render_mode})
    with _explained(spec, kwargs):
        if atari.is_atari(spec):
            vector_env = atari.make_atari_vector(spec, plan.num_envs, kwargs)
        else:
            vector_env = gym.make_vec(spec, plan.num_envs, vectorization_mode="vector_entry_point", **kwargs)
    return NativeVecEnv(vector_env, plan.seed, spec.id, plan.stream)


def _envpool(plan: VecEnvPlan) -> VecEnv:
    env_id = plan.spec.id
    if plan.render_mode is not None:
        raise BadInput(f"vectorization 'envpool' takes no render_mode (got {plan.render_mode!r}); film with make_env")
    if plan.wrappers:
        raise BadInput("vectorization 'envpool' takes no wrappers; use vectorization='sync' or 'async'")
    make = functools.partial(make_pool, env_id, plan.num_envs, plan.env_kwargs)
    return EnvPoolVecEnv(make, plan.seed, env_id, plan.stream)


def _parallel(plan: VecEnvPlan, vectorization: str) -> VecEnv:
    """Make `plan.num_envs` copies of a game of several agents."""
    spec = plan.spec
    assert isinstance(spec, OwnSpec)
    if vectorization not in ("auto", "sync"):
        raise BadInput(
            f"{spec.id} is a game of several agents; expected vectorization auto or sync, not {vectorization}"
        )
    call = functools.partial(call_maker, spec.maker, plan.render_mode, plan.env_kwargs)
    make = functools.partial(make_game, call, spec.id, plan.env_kwargs, plan.wrappers)
    return ParallelVecEnv([make] * plan.num_envs, plan.seed, spec.id, plan.stream)


# The only table of vectorizations.
VECTORIZATIONS: dict[str, Callable[[VecEnvPlan], VecEnv]] = {
    "sync": _sync,
    "async": _async,
    "native": _native,
    "envpool": _envpool,
}


def _auto(plan: VecEnvPlan) -> VecEnv:
    """Choose the fastest vectorization with the same physics; never EnvPool, whose physics differ."""
    spec = plan.spec
    native_from = atari.NATIVE_FROM if atari.is_atari(spec) else NATIVE_FROM
    if plan.has_native and plan.render_mode is None and plan.num_envs >= native_from:
        try:
            return _native(plan)
        except BadInput:
            pass  # its vector form needs other arguments or packages
    if plan.num_envs > 1 and _cores() > 1 and _step_seconds(plan) > SLOW_STEP:
        return _async(plan)
    return _sync(plan)


def _cores() -> int:
    """Count the cores this process may use; all cores on macOS, which has no affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _step_seconds(plan: VecEnvPlan) -> float:
    """Measure the median time of a step, on one extra environment."""
    env = plan.env_fns[0]()
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        times: list[float] = []
        while len(times) < 25 and sum(times) < PROBE_SECONDS:
            action = env.action_space.sample()
            start = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            times.append(time.perf_counter() - start)
            if terminated or truncated:
                env.reset()
        return sorted(times)[len(times) // 2]
    except BaseException as error:
        reason(error)  # raises Ctrl-C again
        return 0.0  # the environment fails: `sync` will report it, with the environment and the step
    finally:
        close_anyway(env.close, plan.spec.id)
