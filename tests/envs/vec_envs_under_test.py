"""Helpers shared by the tests of this folder: fakes, oracles and a way to play an environment."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from drl.core.contracts import VecEnv
from drl.core.log import Episode
from drl.games.probes import CountingVectorEnv


class FakePool:
    """EnvPool's protocol on the counting environment: `reset(env_id=…)` of a subset, and no phantom row after it."""

    def __init__(self, num_envs: int):
        from gymnasium.vector import AutoresetMode

        self.num_envs = num_envs
        self._env = CountingVectorEnv(num_envs, AutoresetMode.DISABLED)
        self.single_observation_space = self._env.single_observation_space
        self.single_action_space = self._env.single_action_space
        self.closed = 0

    def reset(self, env_id: Any = None) -> Any:
        ids = np.arange(self.num_envs) if env_id is None else env_id
        mask = np.isin(np.arange(self.num_envs), ids)
        obs, _ = self._env.reset(options={"reset_mask": mask})
        order = ids[::-1]  # a subset may come back in any order; env_id says which is which
        return obs[order], {"env_id": order}

    def step(self, action: Any) -> Any:
        return self._env.step(action)

    def close(self) -> None:
        self.closed += 1


class NoisyEnv(gym.Env[Any, Any]):
    """Every number is drawn from the environment's own stream; episodes end at random, either way."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            noise=spaces.Box(-np.inf, np.inf, (2,), np.float64), kind=spaces.Discrete(3, start=1)
        )
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def _observe(self) -> Any:
        return {"noise": self.np_random.normal(size=2), "kind": self.np_random.integers(1, 4)}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observe(), {"junk": np.zeros(int(self.np_random.integers(1, 5)))}

    def step(self, action: Any) -> Any:
        draw = self.np_random.random()
        reward = float(action.sum() + self.np_random.normal())
        info = {"is_success": draw < 0.05, "junk": np.zeros(int(self.np_random.integers(1, 5)))}
        return self._observe(), reward, draw < 0.1, 0.05 < draw < 0.2, info


class FailingEnv(gym.Env[Any, Any]):
    """Counts to `at` steps and then fails in the way asked for."""

    def __init__(self, how: str, at: int = 3):
        self.how, self.at, self.count = how, at, 0
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if self.how == "reset" and self.count:
            raise Unpicklable("no way back")
        if self.how == "shape":
            return np.zeros(1, np.float32), {}
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        reward, ends = 1.0, False
        if self.count >= self.at:
            if self.how == "raise":
                raise Unpicklable("the wheel came off")
            if self.how == "hang":
                import time

                time.sleep(60)
            if self.how == "die":
                import os

                os._exit(7)
            if self.how in ("nan", "inf"):
                reward = float(self.how)
            ends = self.how == "reset"
        obs = np.full(2, np.nan if self.how == "nan_obs" and self.count >= self.at else 0.0, np.float32)
        return obs, reward, ends, False, {}


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("this exception does not travel")


Row = tuple[Any, ...]


def play(envs: VecEnv, policy: Callable[[Any, int], Any], rows_per_env: int) -> tuple[list[list[Row]], list[Any]]:
    """The first `rows_per_env` valid rows of each environment and its finished episodes, in order."""
    rows: list[list[Row]] = [[] for _ in range(envs.num_envs)]
    episodes: list[list[Episode]] = [[] for _ in range(envs.num_envs)]
    obs = envs.reset()
    while min(len(r) for r in rows) < rows_per_env:
        action = np.array([policy(obs[i], i) for i in range(envs.num_envs)])
        kept = obs.copy()
        step = envs.step(action)
        assert np.array_equal(obs, kept), "an observation changed under its receiver's hands"
        assert not (step.terminated & step.truncated).any()
        assert not ((step.terminated | step.truncated) & ~step.valid).any()
        for i in np.flatnonzero(step.valid):
            row = (obs[i], action[i], step.reward[i], step.terminated[i], step.truncated[i], step.next_obs[i])
            rows[i].append(tuple(np.asarray(x).tolist() for x in row))
        for episode in step.episodes:
            before = sum(e.length for e in episodes[episode.env_index])
            if before + episode.length <= rows_per_env:
                episodes[episode.env_index].append(episode)
        obs = step.obs
    return [r[:rows_per_env] for r in rows], episodes


def cartpole(obs: Any, action: Any) -> Any:
    """CartPole's equations of motion, written down independently, in float64."""
    x, speed, angle, spin = np.asarray(obs, np.float64).T
    force = np.where(action == 1, 10.0, -10.0)
    sin, cos = np.sin(angle), np.cos(angle)
    push = (force + 0.05 * spin**2 * sin) / 1.1
    angular = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    linear = push - 0.05 * angular * cos / 1.1
    return np.stack([x + 0.02 * speed, speed + 0.02 * linear, angle + 0.02 * spin, spin + 0.02 * angular], axis=1)


def balance(obs: Any) -> Any:
    """A hand-made controller that keeps the pole up for ever."""
    return (3.0 * obs[:, 2] + obs[:, 3] + 0.05 * obs[:, 0] + 0.1 * obs[:, 1] > 0).astype(np.int64)
