"""Environments that only an agent with a memory can master."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from drl.core.specs import Array

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class _CueEnv(gym.Env[Any, Any]):
    """The first observation shows a cue, −1 or 1; later ones hide it. Entries: cue or 0, whether to answer now."""

    def __init__(self, length: int, render_mode: str | None = None):
        self.length, self.render_mode = length, render_mode
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._cue, self._step = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue, self._step = 2 * int(self.np_random.integers(2)) - 1, 0
        return np.array([self._cue, 0], np.float32), {}

    def _observe(self) -> Array:
        return np.array([0, self._step == self.length - 1], np.float32)


class RecallEnv(_CueEnv):
    """`length` steps; only the last action counts: reward 1 if it names the cue (0 for −1, 1 for 1), else −1.

    Best return 1; whoever does not remember gets 0 on average.
    """

    def __init__(self, length: int = 4, render_mode: str | None = None):
        super().__init__(length, render_mode)

    def step(self, action: Any) -> Step:
        self._step += 1
        ends = self._step == self.length
        right = 2 * int(action) - 1 == self._cue
        info = {"is_success": right} if ends else {}
        return self._observe(), (1.0 if right else -1.0) if ends else 0.0, ends, False, info


class MoodEnv(_CueEnv):
    """Every one of `length` steps pays the cue, whatever the action.

    Terminated, k steps before the end V = cue · (1 − γ^k) / (1 − γ). Truncated, the trace goes on in value:
    V = cue / (1 − γ) at every step, also at the final observation, which shows nothing of it.
    """

    def __init__(self, length: int = 3, truncate: bool = False, render_mode: str | None = None):
        super().__init__(length, render_mode)
        self.truncate = truncate

    def step(self, action: Any) -> Step:
        self._step += 1
        ends = self._step == self.length
        obs = np.zeros(2, np.float32) if self.truncate else self._observe()  # whoever is cut off sees no clock
        return obs, float(self._cue), ends and not self.truncate, ends and self.truncate, {}


class CartPoleNoVelocityEnv(CartPoleEnv):
    """Gymnasium's CartPole without its two velocities: how things move has to be told from what was seen before."""

    def __init__(self, render_mode: str | None = None, **options: Any):
        super().__init__(render_mode=render_mode, **options)
        full: Any = self.observation_space
        self.observation_space = spaces.Box(full.low[[0, 2]], full.high[[0, 2]], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        return obs[[0, 2]], info

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs[[0, 2]], float(reward), terminated, truncated, info
