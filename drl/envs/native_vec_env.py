"""Vector environments of others: Gymnasium's, in each autoreset mode, and EnvPool's.

EnvPool (an extra) steps environments in C++ threads. It has its own physics, so results differ from Gymnasium's.
"""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, final

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from drl.core.contracts import EnvChange, VecEnv, VecStep
from drl.core.errors import BadInput, MissingExtra, did_you_mean
from drl.core.seeding import generator_state, restore_generator
from drl.core.specs import MASK_KEY, ActionSpec, Array, EnvValue, ObsSpec, RawObs
from drl.core.state_files import StateDict
from drl.envs.env_attributes import call_on, check_name, check_set, get_from, own_copy, set_on
from drl.envs.episode_stats import (
    EpisodeSeeds,
    EpisodeStats,
    numbers_in,
    numbers_in_infos,
    success_in,
    success_in_infos,
)
from drl.envs.faults import checked_info, checked_rows, close_anyway
from drl.envs.spaces import EnvKwargs, GymSpace, GymVectorEnv, Info, action_spec, encode_fresh, masks_in_infos, obs_spec

# Attributes that are the state of a vector environment beside its random stream, by the name of its class.
STATE_OF = {"gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv": ("state", "steps", "prev_done")}


@final
class NativeVecEnv(VecEnv):
    """Steps any Gymnasium `VectorEnv`.

    Only this class handles the autoreset modes:
    NEXT_STEP   the environment resets in the call after an episode's end. That call's row has `valid` False and its
                action is ignored; `obs` at an end is the last observation.
    SAME_STEP   `obs` is the first of the new episode; the true successor is in `infos["final_obs"]`.
    DISABLED    we reset the environments that ended, through `options={"reset_mask": …}`.
    """

    vectorization = "native"

    def __init__(self, vector_env: GymVectorEnv, seed: int, env_id: str = "", stream: str = "world"):
        self.vector_env = vector_env
        self.num_envs: int = int(vector_env.num_envs)
        self.env_id: str = env_id or (vector_env.spec.id if vector_env.spec else type(vector_env.unwrapped).__name__)
        self.mode: AutoresetMode = _mode(vector_env, self.env_id)
        self.obs_spec: ObsSpec = obs_spec(vector_env.single_observation_space)
        self.action_spec: ActionSpec = action_spec(vector_env.single_action_space)
        self.stats: EpisodeStats = EpisodeStats(self.env_id, self.num_envs, seed, stream)
        self._resetting = np.zeros(self.num_envs, bool)  # environments whose next row is a reset row (NEXT_STEP)
        self._method = _mask_method(vector_env)
        self._closed = False

    def reset(self) -> Array:
        first, seeds = not self.stats.begun, self.stats.begin()
        self._resetting = np.zeros(self.num_envs, bool)
        try:
            # One integer for all, at the start: the vector environment derives what follows.
            batch, infos = self.vector_env.reset(seed=seeds[0]) if first else self.vector_env.reset()
            checked_info(infos)
            self.stats.obs = encode_fresh(self.obs_spec, batch, self.num_envs)
        except BaseException as error:
            raise self.stats.failed(error) from error
        self.stats.check_obs(self.stats.obs, self.obs_spec)
        self.action_mask = self.stats.action_mask = self.stats.masks(self._masks(batch, infos), self.action_spec)
        return self.stats.obs

    def _masks(self, batch: RawObs, infos: Info) -> list[object]:
        """One mask per environment, or None for each environment."""
        if self._method is not None:
            masks = list(self._method())
        elif MASK_KEY in infos:
            masks = masks_in_infos(infos, self.num_envs)
        else:
            masks = list(batch[MASK_KEY]) if isinstance(batch, dict) and MASK_KEY in batch else [None] * self.num_envs
        return copy.deepcopy(masks)  # the vector environment may reuse this memory

    def step(self, action: Array) -> VecStep:
        stats = self.stats
        stats.check_action(action)
        try:
            batch, reward, terminated, truncated, infos = self.vector_env.step(action)
            checked_info(infos)
            obs = encode_fresh(self.obs_spec, batch, self.num_envs)
            reward = checked_rows("reward", reward, self.num_envs)
            terminated = checked_rows("terminated", terminated, self.num_envs)
            truncated = checked_rows("truncated", truncated, self.num_envs)
        except BaseException as error:
            raise stats.failed(error) from error
        valid = ~self._resetting
        terminated &= valid
        truncated &= valid & ~terminated
        if not valid.all():
            reward[~valid] = 0.0
        stats.add(reward, valid)
        ended = terminated | truncated
        next_obs, episodes = obs, []
        masks = [] if self.action_mask is None else self._masks(batch, infos)
        last_masks = list(masks)
        if ended.any():
            last_infos = infos
            if self.mode is AutoresetMode.SAME_STEP:
                next_obs = self._with_final_obs(obs, ended, infos)
                stats.check_obs(next_obs, self.obs_spec)
                last_infos = infos.get("final_info", {})
                for i in np.flatnonzero(ended).tolist() if masks else ():
                    last_masks[i] = _final_mask(last_infos, infos, i)
            elif self.mode is AutoresetMode.DISABLED:
                stats.check_obs(obs, self.obs_spec)
                obs, fresh_masks = self._reset_ended(obs, ended)
                masks = [fresh if over else mask for mask, fresh, over in zip(masks, fresh_masks, ended, strict=False)]
            for i in np.flatnonzero(ended).tolist():
                episodes.append(stats.finish(i, bool(terminated[i]), *_results(last_infos, i)))
        stats.check_obs(obs, self.obs_spec)
        if self.mode is AutoresetMode.NEXT_STEP:
            self._resetting = ended
        stats.obs, next_mask = obs, None
        if masks:
            if self.mode is AutoresetMode.NEXT_STEP:  # the action after an end is ignored
                masks = [
                    np.ones(self.action_spec.num_choices) if over else mask
                    for mask, over in zip(masks, ended, strict=True)
                ]
            next_mask = stats.masks(last_masks, self.action_spec, np.flatnonzero(ended))
            self.action_mask = stats.action_mask = stats.masks(masks, self.action_spec)
        reward = reward.astype(np.float32)
        return VecStep(reward, terminated, truncated, next_obs, obs, valid, episodes, self.action_mask, next_mask)

    def _with_final_obs(self, obs: Array, ended: Array, infos: Info) -> Array:
        # Gymnasium gives an object array of single observations. Some native environments give one batch, in which only
        # the rows that ended are meaningful.
        final_obs = infos.get("final_obs", infos.get("final_observation"))
        if final_obs is None:
            raise self.stats.failed("it resets in the same step but its infos have no 'final_obs'")
        next_obs = obs.copy()
        try:
            if isinstance(final_obs, np.ndarray) and final_obs.dtype == object:
                for i in np.flatnonzero(ended):
                    next_obs[i] = self.obs_spec.encode_one(final_obs[i])
            else:
                next_obs[ended] = self.obs_spec.encode(final_obs)[ended]
        except Exception as error:
            raise self.stats.failed(error) from error
        return next_obs

    def _reset_ended(self, obs: Array, ended: Array) -> tuple[Array, list[object]]:
        try:
            batch, infos = self.vector_env.reset(options={"reset_mask": ended.copy()})
            checked_info(infos)
            first = encode_fresh(self.obs_spec, batch, self.num_envs)
        except BaseException as error:
            raise self.stats.failed(error) from error
        fresh = obs.copy()
        fresh[ended] = first[ended]
        return fresh, self._masks(batch, infos)

    def state_dict(self) -> StateDict:
        inside = _told_state(self.vector_env) if self.stats.begun else None
        return self.stats.state_dict() | {"resetting": self._resetting.copy(), "inside": inside}

    def load_state_dict(self, state: StateDict) -> str | None:
        self.stats.load_state_dict(state)
        self.action_mask = self.stats.action_mask
        self._resetting = np.array(state["resetting"], bool)
        self.stats.changes.set_all(self._set)
        if (lost := self.stats.changes.lost) is not None:
            return f"the environments {self.env_id!r} cannot be changed again as they were: {lost}"
        if self.stats.obs is None:
            return None
        if state["inside"] is None:
            return f"the vector form of {self.env_id!r} does not tell its state; --vectorization sync resumes exactly"
        _set_state(self.vector_env, state["inside"], self.stats.seed_of(0))
        self.stats.begun = True
        return None

    def get(self, name: str) -> list[EnvValue]:
        if self._singles:
            self._check_all(name)
            return list(self.vector_env.unwrapped.call(name))
        return [get_from(self.vector_env, name, self._where)]

    def set(self, name: str, value: object) -> None:
        if self._singles:
            self._check_all(name)
        else:
            check_set(self.vector_env, name, value, self._where)
        self.stats.changed(name, value)
        try:
            self._set(name, own_copy(value))
        except BaseException as error:
            raise self.stats.failed(error) from error

    def _set(self, name: str, value: object) -> None:
        if self._singles:
            self.vector_env.unwrapped.set_attr(name, [value] * self.num_envs)
        else:
            set_on(self.vector_env, name, value, self._where)

    def call(self, name: str, /, *args: object, **kwargs: object) -> list[EnvValue]:
        try:
            if self._singles:
                self._check_all(name)
                answers = list(self.vector_env.unwrapped.call(name, *args, **kwargs))
            else:
                answers = [call_on(self.vector_env, name, (args, kwargs), self._where)]
        except BadInput:
            raise
        except BaseException as error:
            raise self.stats.failed(error) from error
        self.stats.called(name, answers, args, kwargs)
        return answers

    @property
    def changes(self) -> list[EnvChange]:
        return self.stats.changes.changes

    @property
    def _singles(self) -> bool:
        """Whether there are single environments inside, as in Gymnasium's SyncVectorEnv and AsyncVectorEnv."""
        return isinstance(self.vector_env.unwrapped, SyncVectorEnv | AsyncVectorEnv)

    def _check_all(self, name: str) -> None:
        check_name(name)
        inner = self.vector_env.unwrapped
        if not all(inner.call("has_wrapper_attr", name)):
            raise BadInput(f"the environments in {self.env_id!r} have no attribute {name!r}")

    @property
    def _where(self) -> str:
        return f"the vector form of {self.env_id!r} (--vectorization sync has single environments)"

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            close_anyway(self.vector_env.close, self.env_id)


def wrap_vector_env(vector_env: GymVectorEnv, seed: int = 0, stream: str = "world") -> NativeVecEnv:
    """Wrap your own `VectorEnv`, in any autoreset mode.

    >>> import gymnasium as gym
    >>> with wrap_vector_env(gym.make_vec("CartPole-v1", num_envs=3), seed=1) as envs:
    ...     envs.reset().shape
    (3, 4)
    """
    return NativeVecEnv(vector_env, seed, stream=stream)


def _told_state(vector_env: GymVectorEnv) -> StateDict | None:
    """The whole state of a vector environment: what its `state_dict()` returns, as in ours; None: it is not told."""
    inner = vector_env.unwrapped
    names = STATE_OF.get(_class_name(inner)) if inner is vector_env else None
    if names is not None:
        return {name: getattr(inner, name).copy() for name in names} | {"rng": generator_state(inner.np_random)}
    tell = getattr(inner, "state_dict", None) if inner is vector_env else None  # wrappers have state of their own
    return None if tell is None else tell()


def _set_state(vector_env: GymVectorEnv, state: StateDict, seed: int) -> None:
    names = STATE_OF.get(_class_name(vector_env))
    if names is None:
        vector_env.load_state_dict(state)  # type: ignore[attr-defined]
        return
    vector_env.reset(seed=seed)
    for name in names:
        setattr(vector_env, name, state[name].copy())
    restore_generator(vector_env.np_random, state["rng"])


def _class_name(vector_env: GymVectorEnv) -> str:
    return f"{type(vector_env).__module__}.{type(vector_env).__qualname__}"


def _mask_method(vector_env: GymVectorEnv) -> Callable[[], Sequence[object]] | None:
    """`action_masks()` of a vector environment, or of all the environments in it."""
    inner = vector_env.unwrapped
    for env in (vector_env, inner):
        if (method := getattr(env, "action_masks", None)) is not None:
            return method
    singles = getattr(inner, "envs", ())
    if singles and all(env.has_wrapper_attr("action_masks") for env in singles):
        return partial(inner.call, "action_masks")
    return None


def _mode(vector_env: GymVectorEnv, env_id: str) -> AutoresetMode:
    mode = (vector_env.metadata or {}).get("autoreset_mode")
    try:
        return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    except ValueError:
        raise BadInput(
            f"the vector environment {env_id!r} has metadata['autoreset_mode'] = {mode!r}; expected one of "
            f"{', '.join(str(m) for m in AutoresetMode)}, which determines the rows that are resets"
        ) from None


def _final_mask(last_infos: Info | Array, infos: Info, index: int) -> object:
    """The mask of an ended episode's last state: in its last info, or in its last observation."""
    info = last_infos if isinstance(last_infos, dict) else last_infos[index]
    if MASK_KEY in info:
        return info[MASK_KEY][index] if isinstance(last_infos, dict) else info[MASK_KEY]
    final_obs = infos.get("final_obs")
    if isinstance(final_obs, dict):
        return final_obs.get(MASK_KEY, [None] * (index + 1))[index]
    return final_obs[index].get(MASK_KEY) if final_obs is not None and isinstance(final_obs[index], dict) else None


def _results(infos: Info | Array, index: int) -> tuple[bool | None, Mapping[str, float]]:
    """Whether an episode succeeded, and the numbers in its last info."""
    if isinstance(infos, dict):
        return success_in_infos(infos, index), numbers_in_infos(infos, index)
    info = infos[index]  # an object array of one dict per environment
    return success_in(info), numbers_in(info)


class EnvPool(Protocol):
    """What we use of an EnvPool pool."""

    @property
    def num_envs(self) -> int:
        """Environments in the pool."""

    @property
    def single_observation_space(self) -> GymSpace:
        """Of one environment."""

    @property
    def single_action_space(self) -> GymSpace:
        """Of one environment."""

    def reset(self, env_id: Array | None = None) -> tuple[RawObs, Info]: ...
    def step(self, action: Array) -> tuple[RawObs, Array, Array, Array, Info]: ...
    def close(self) -> None: ...


@final
class EnvPoolVecEnv(VecEnv):
    """Steps an EnvPool pool in its synchronous mode.

    By default EnvPool resets in the call after an episode's end. But `reset(env_id=ended)` right after the step returns
    the first observations, affects no other environment and clears the pending reset. So there are no reset rows.
    """

    pool: EnvPool

    vectorization = "envpool"
    unreachable: str = (
        "EnvPool's environments are compiled (C++) and take settings only when they are made; use env_kwargs, "
        "or --vectorization sync"
    )

    def __init__(self, make: Callable[[int], EnvPool], seed: int, env_id: str, stream: str = "world"):
        """`make(seed)` makes a pool; EnvPool takes one seed, at the start."""
        self._make = make
        self.env_id: str = env_id
        self.pool = pool = make(EpisodeSeeds(seed, stream, 0)(0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # EnvPool builds float32 boxes from float64 bounds
            self.obs_spec: ObsSpec = obs_spec(pool.single_observation_space)
            self.action_spec: ActionSpec = action_spec(pool.single_action_space)
        self.num_envs: int = int(pool.num_envs)
        self.stats: EpisodeStats = EpisodeStats(env_id, self.num_envs, seed, stream)
        self._always_valid = np.ones(self.num_envs, bool)
        self._closed = False

    def reset(self) -> Array:
        self.stats.begin()  # the pool was seeded when it was made
        try:
            batch, _ = self.pool.reset()
            self.stats.obs = encode_fresh(self.obs_spec, batch, self.num_envs)
        except BaseException as error:
            raise self.stats.failed(error) from error
        self.stats.check_obs(self.stats.obs, self.obs_spec)
        return self.stats.obs

    def step(self, action: Array) -> VecStep:
        stats = self.stats
        stats.check_action(action)
        try:
            batch, reward, terminated, truncated, infos = self.pool.step(action)
            next_obs = encode_fresh(self.obs_spec, batch, self.num_envs)
            reward = checked_rows("reward", reward, self.num_envs)
            terminated = checked_rows("terminated", terminated, self.num_envs)
            truncated = checked_rows("truncated", truncated, self.num_envs) & ~terminated
            ended = np.flatnonzero(terminated | truncated).astype(np.int32)
            obs = next_obs
            if len(ended):
                first, first_infos = self.pool.reset(env_id=ended)
                obs = next_obs.copy()
                obs[first_infos["env_id"]] = self.obs_spec.encode(first)
        except BaseException as error:
            raise stats.failed(error) from error
        stats.add(reward)
        stats.check_obs(next_obs, self.obs_spec)
        episodes = [
            stats.finish(i, bool(terminated[i]), success_in_infos(infos, i), numbers_in_infos(infos, i))
            for i in ended.tolist()
        ]
        if episodes:
            stats.check_obs(obs, self.obs_spec)
        stats.obs = obs
        return VecStep(reward.astype(np.float32), terminated, truncated, next_obs, obs, self._always_valid, episodes)

    def state_dict(self) -> StateDict:
        return self.stats.state_dict()

    def load_state_dict(self, state: StateDict) -> str | None:
        self.stats.load_state_dict(state)
        if self.stats.obs is None:
            return None
        self.pool.close()  # another seed, so that no data is repeated
        self.pool = self._make(self.stats.seeds[0](self.stats.numbers[0] + 1))
        return f"EnvPool does not tell the state of {self.env_id!r}; --vectorization sync resumes exactly"

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            close_anyway(self.pool.close, self.env_id)


def make_pool(env_id: str, num_envs: int, env_kwargs: EnvKwargs, seed: int) -> EnvPool:
    """Make a seeded pool; raise if EnvPool does not have the environment."""
    try:
        import envpool
    except ImportError as error:
        raise MissingExtra("vectorization 'envpool'", "envpool", error) from error
    known = envpool.list_all_envs()
    if env_id not in known:
        raise BadInput(
            f"EnvPool has no environment {env_id!r}: {did_you_mean(env_id, known)} "
            "(vectorization='sync' runs any Gymnasium id)"
        )
    try:
        return envpool.make(env_id, env_type="gymnasium", num_envs=num_envs, seed=seed, **env_kwargs)
    except Exception as error:
        raise BadInput(f"EnvPool cannot make {env_id!r} with {env_kwargs}: {error}") from error
