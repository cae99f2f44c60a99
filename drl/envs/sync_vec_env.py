"""One process, one loop over single environments, resets in the same step. The fastest for fast environments."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import final

import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from drl.core.contracts import VecStep
from drl.core.log import Episode
from drl.core.specs import NUMBERS, ActionSpec, Array, ObsSpec, RawObs
from drl.core.state_files import StateDict
from drl.envs.env_attributes import replayed, set_before
from drl.envs.episode_stats import EpisodeStats, ReplayableVecEnv, results_in
from drl.envs.faults import checked, checked_info, close_anyway, make_all
from drl.envs.spaces import GymEnv, Info, action_spec, collate, mask_reader, obs_spec

NEVER = 2**62  # time limit of environments without one


@final
class SyncVecEnv(ReplayableVecEnv):
    """Steps single Gymnasium environments one after the other.

    >>> import gymnasium as gym
    >>> with SyncVecEnv([lambda: gym.make("CartPole-v1")] * 2, seed=3) as envs:
    ...     envs.reset().shape, envs.step(np.array([0, 1])).reward
    ((2, 4), array([1., 1.], dtype=float32))
    """

    vectorization = "sync"

    def __init__(
        self,
        env_fns: Sequence[Callable[[], GymEnv]],
        seed: int,
        env_id: str = "",
        stream: str = "world",
        first_index: int = 0,  # of these environments, where they are some of many
    ):
        self.envs: list[GymEnv] = make_all(env_fns, env_id)
        self.targets: Sequence[object] = self.envs
        self.num_envs: int = len(self.envs)
        first = self.envs[0]
        self.env_id: str = env_id or (first.spec.id if first.spec else type(first.unwrapped).__name__)
        self.obs_spec: ObsSpec = obs_spec(first.observation_space)
        self.action_spec: ActionSpec = action_spec(first.action_space)
        self.stats: EpisodeStats = EpisodeStats(self.env_id, self.num_envs, seed, stream, first_index)
        # The two outermost wrappers of gym.make cost a quarter of a CartPole step. They check that reset came first and
        # limit the length of episodes; we do both ourselves, so the loop calls the environment below them.
        peeled = [_peel(env) for env in self.envs]
        self._inner = [inner for inner, _ in peeled]
        self._steps = [inner.step for inner in self._inner]
        self._limits = np.array([limit for _, limit in peeled])
        self._until_clock = 0  # no time limit is reached in fewer steps than this; 0: recompute it
        # Whether rows can be written without encoding.
        self._is_box = self.obs_spec.kind == "box" and not self.obs_spec.channels_last
        self._batch_shape, self._dtype = (self.num_envs, *self.obs_spec.shape), self.obs_spec.dtype
        self._raw_shape = self.obs_spec.box_shape
        self._always_valid = np.ones(self.num_envs, bool)
        self._mask_readers = [mask_reader(env) for env in self.envs]

    def reset(self) -> Array:
        seeds = self.stats.begin()
        first = [self._begin(index, seed) for index, seed in enumerate(seeds)]
        self.stats.obs = self._encode([obs for obs, _ in first])
        self.stats.check_obs(self.stats.obs, self.obs_spec)
        masks = [read(*each) for read, each in zip(self._mask_readers, first, strict=True)]
        self.action_mask = self.stats.action_mask = self.stats.masks(masks, self.action_spec)
        self._until_clock = 0
        return self.stats.obs

    def step(self, action: Array) -> VecStep:
        stats = self.stats
        stats.check_action(action)
        # Outputs are allocated at each step: a small allocation costs less than choosing a buffer, and the receiver may
        # keep them. Only `valid`, which never changes, is shared.
        count = self.num_envs
        next_obs = np.empty(self._batch_shape, self._dtype) if self._is_box else None
        raw: list[RawObs] = []  # observations that need encoding
        reward64 = np.empty(count)
        infos: list[Info] = []
        masks: list[object] | None = None if self.action_mask is None else []  # of the successors
        ends: dict[int, bool] = {}  # environment that ended → whether it terminated
        actions = action.tolist() if action.ndim == 1 else action  # environments check plain ints much faster
        i = 0
        try:
            for i in range(count):
                obs, reward, terminated, truncated, info = self._steps[i](actions[i])
                if next_obs is None:
                    raw.append(obs)
                else:
                    if getattr(obs, "shape", None) != self._raw_shape or obs.dtype.kind not in NUMBERS:
                        obs = self.obs_spec.encode_one(obs)  # raises unless it fits
                    next_obs[i] = obs  # copies and casts, so an environment may reuse its own buffer
                if not (
                    isinstance(reward, float)
                    and terminated.__class__ is truncated.__class__ is bool
                    and info.__class__ is dict
                ):
                    reward, terminated, truncated = checked(reward, terminated, truncated, info)
                reward64[i] = reward
                infos.append(info)
                if masks is not None:
                    masks.append(self._mask_readers[i](obs, info))
                if terminated or truncated:
                    ends[i] = bool(terminated)
        except BaseException as error:
            raise stats.failed(error, i) from error
        if next_obs is None:
            next_obs = self._encode(raw)
        stats.add(reward64, action=action)
        stats.check_obs(next_obs, self.obs_spec)
        self._until_clock -= 1
        if self._until_clock <= 0:
            for index in np.flatnonzero(stats.lengths >= self._limits).tolist():
                ends.setdefault(index, False)
        died, cut = np.zeros(count, bool), np.zeros(count, bool)
        episodes: list[Episode] = []
        stats.obs = next_obs
        if ends:
            for index, terminated in ends.items():
                (died if terminated else cut)[index] = True
        next_mask = None if masks is None else stats.masks(masks, self.action_spec, successors=ends)
        if ends:
            stats.obs, episodes = self._restart(next_obs, ends, infos, masks)
        if masks is not None:
            self.action_mask = stats.action_mask = stats.masks(masks, self.action_spec)
        if self._until_clock <= 0:
            self._until_clock = int((self._limits - stats.lengths).min())
        reward32, valid = reward64.astype(np.float32), self._always_valid
        return VecStep(reward32, died, cut, next_obs, stats.obs, valid, episodes, self.action_mask, next_mask)

    def _restart(
        self, next_obs: Array, ends: dict[int, bool], infos: list[Info], masks: list[object] | None
    ) -> tuple[Array, list[Episode]]:
        """Reset the environments in `ends`; replace the successors' masks in `masks` by their new ones."""
        obs, episodes = next_obs.copy(), []
        for index, terminated in sorted(ends.items()):
            info = infos[index]
            episodes.append(self.stats.finish(index, terminated, *(results_in(info) if info else ())))
            first, info = self._begin(index, self.stats.seed_of(index))
            obs[index] = first if self._is_box else self.obs_spec.encode_one(first)
            if masks is not None:
                masks[index] = self._mask_readers[index](first, info)
        self.stats.check_obs(obs, self.obs_spec)
        return obs, episodes

    def _begin(self, index: int, seed: int) -> tuple[RawObs, Info]:
        """Reset one environment; return its first observation and info."""
        try:
            obs, info = self._inner[index].reset(seed=seed)
            if info.__class__ is not dict:
                checked_info(info)
            if not self._is_box or getattr(obs, "shape", None) != self._raw_shape or obs.dtype.kind not in NUMBERS:
                self.obs_spec.encode_one(obs)  # raises unless it fits
        except BaseException as error:
            raise self.stats.failed(error, index) from error
        return obs, info

    def _encode(self, observations: list[RawObs]) -> Array:
        try:
            return self.obs_spec.encode(collate(self.obs_spec, observations))
        except Exception:
            for index, obs in enumerate(observations):
                try:
                    self.obs_spec.encode_one(obs)
                except Exception as error:
                    raise self.stats.failed(error, index) from error
            raise

    def _restore(self, state: StateDict) -> str | None:
        self._until_clock = 0
        return self.stats.continued(self._play_again)

    def _play_again(self, index: int) -> Array:
        """Restore an environment in its running episode; return its last observation."""
        actions, changes = self.stats.running_actions(index), self.stats.running_changes(index)
        set_value = partial(self._set, index)
        set_before(changes, set_value)
        obs, _ = self._begin(index, self.stats.seed_of(index))
        for action in replayed(actions, changes, set_value):
            obs = self._steps[index](action)[0]
        return np.asarray(obs) if self._is_box else self.obs_spec.encode_one(obs)

    def _set(self, index: int, name: str, value: object) -> None:
        super()._set(index, name, value)
        if name == "_max_episode_steps" and self._limits[index] != NEVER:  # `step` does not ask the TimeLimit
            self._limits[index], self._until_clock = value, 0

    def _close(self) -> None:
        for env in self.envs:
            close_anyway(env.close, self.env_id)


def _peel(env: GymEnv) -> tuple[GymEnv, int]:
    """Return the environment below gym.make's TimeLimit and OrderEnforcing, and its time limit."""
    limit = NEVER
    if type(env) is TimeLimit and env.spec is not None and env.spec.max_episode_steps:
        limit, env = env.spec.max_episode_steps, env.env
    if type(env) is OrderEnforcing:
        env = env.env
    return env, limit
