"""Four environments whose optimal values fit in one line each."""

from typing import SupportsInt

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from drl.core.specs import Array
from drl.games.random_streams import Info

Step = tuple[Array, float, bool, bool, Info]


class TwoStepEnv(gym.Env[Array, np.int64]):
    """obs 0 → obs 1 → end with reward 1, whatever the action.

    Terminated: V(1) = 1 and V(0) = γ. Truncated, the value continues past the end: the successor shows obs 1, so
    V(1) = 1 + γ·V(1) = 1 / (1 − γ) and V(0) = γ·V(1).
    """

    def __init__(self, truncate: bool = False, render_mode: str | None = None):
        self.truncate: bool = truncate
        self.render_mode: str | None = render_mode
        self.observation_space: spaces.Box = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space: spaces.Discrete[np.int64] = spaces.Discrete(2)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: object) -> Step:
        self._step += 1
        ends = self._step == 2
        return np.ones(1, np.float32), float(ends), ends and not self.truncate, ends and self.truncate, {}


class OneStepEnv(gym.Env[Array, np.int64]):
    """One observation, one step, one reward. Terminated: V = reward. Truncated: V = reward / (1 − γ)."""

    def __init__(self, reward: float = 1.0, truncate: bool = False, render_mode: str | None = None):
        self.reward: float = reward
        self.truncate: bool = truncate
        self.render_mode: str | None = render_mode
        self.observation_space: spaces.Box = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space: spaces.Discrete[np.int64] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: object) -> Step:
        return np.zeros(1, np.float32), self.reward, not self.truncate, self.truncate, {}


class MatchEnv(gym.Env[np.int64, np.int64]):
    """One step: reward 1 if the action equals the observation, else −1. Best return 1; a blind policy gets 2/n − 1."""

    def __init__(self, choices: int = 2, render_mode: str | None = None):
        self.render_mode: str | None = render_mode
        self._choices = choices
        self.observation_space: spaces.Discrete[np.int64] = spaces.Discrete(choices)
        self.action_space: spaces.Discrete[np.int64] = spaces.Discrete(choices)
        self._wanted = np.int64(0)

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[np.int64, Info]:
        super().reset(seed=seed)
        self._wanted = self.np_random.integers(self._choices)
        return self._wanted, {}

    def step(self, action: SupportsInt) -> tuple[np.int64, float, bool, bool, Info]:
        return self._wanted, 1.0 if int(action) == self._wanted else -1.0, True, False, {}


class TargetEnv(gym.Env[Array, Array]):
    """One step: the observation is a target in [−1, 1], the reward −Σ(action / 2 − target)². Best return 0.

    Actions range over [−2, 2], so a policy that is not rescaled misses the optimum.
    """

    def __init__(self, size: int = 1, render_mode: str | None = None):
        self.render_mode = render_mode
        self.observation_space: spaces.Box = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space: spaces.Box = spaces.Box(-2.0, 2.0, (size,), np.float32)
        self._target = np.zeros(size, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self._target = self.np_random.uniform(-1.0, 1.0, self._target.shape).astype(np.float32)
        return self._target, {}

    def step(self, action: Array) -> Step:
        error = np.asarray(action) / 2 - self._target
        return self._target, -float(np.square(error).sum()), True, False, {}
