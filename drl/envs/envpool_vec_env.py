"""EnvPool: environments in C++ threads. An extra; it has its own physics, so results differ from Gymnasium's."""

import warnings
from collections.abc import Callable
from typing import Protocol, final

import numpy as np

from drl.core.contracts import VecEnv, VecStep
from drl.core.errors import BadInput, MissingExtra, did_you_mean
from drl.core.specs import ActionSpec, Array, ObsSpec, RawObs
from drl.core.state_files import StateDict
from drl.envs.episode_stats import EpisodeSeeds, EpisodeStats, numbers_in_infos, success_in_infos
from drl.envs.faults import checked_rows, close_anyway
from drl.envs.spaces import EnvKwargs, GymSpace, Info, action_spec, encode_fresh, obs_spec


class Pool(Protocol):
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

    pool: Pool

    vectorization = "envpool"
    unreachable: str = (
        "EnvPool's environments are compiled (C++) and take settings only when they are made; use env_kwargs, "
        "or --vectorization sync"
    )

    def __init__(self, make: Callable[[int], Pool], seed: int, env_id: str, stream: str = "world"):
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


def make_pool(env_id: str, num_envs: int, env_kwargs: EnvKwargs, seed: int) -> Pool:
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
