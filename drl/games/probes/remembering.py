"""Environments that only a recurrent agent can solve."""

from typing import SupportsInt

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from drl.core.specs import Array
from drl.games.random_streams import Info

Step = tuple[Array, float, bool, bool, Info]


class _CueEnv(gym.Env[Array, np.int64]):
    """The first observation shows a cue, −1 or 1; later ones hide it. Entries: cue or 0, whether to answer now."""

    def __init__(self, length: int, render_mode: str | None = None):
        self.length: int = length
        self.render_mode: str | None = render_mode
        self.observation_space: spaces.Box = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space: spaces.Discrete[np.int64] = spaces.Discrete(2)
        self._cue, self._step = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self._cue, self._step = 2 * int(self.np_random.integers(2)) - 1, 0
        return np.array([self._cue, 0], np.float32), {}

    def _observe(self) -> Array:
        return np.array([0, self._step == self.length - 1], np.float32)


class RecallEnv(_CueEnv):
    """`length` steps; only the last action counts: reward 1 if it names the cue (0 for −1, 1 for 1), else −1.

    Best return 1; an agent without rnn_state gets 0 on average.
    """

    def __init__(self, length: int = 4, render_mode: str | None = None):
        super().__init__(length, render_mode)

    def step(self, action: SupportsInt) -> Step:
        self._step += 1
        ends = self._step == self.length
        right = 2 * int(action) - 1 == self._cue
        info: Info = {"is_success": right} if ends else {}
        return self._observe(), (1.0 if right else -1.0) if ends else 0.0, ends, False, info


class MoodEnv(_CueEnv):
    """Every one of `length` steps pays the cue, whatever the action.

    Terminated: V = cue · (1 − γ^k) / (1 − γ), k steps before the end. Truncated, the value continues past the end:
    V = cue / (1 − γ) at every step, also at the final observation, which does not show the cue.
    """

    def __init__(self, length: int = 3, truncate: bool = False, render_mode: str | None = None):
        super().__init__(length, render_mode)
        self.truncate = truncate

    def step(self, action: object) -> Step:
        self._step += 1
        ends = self._step == self.length
        obs = np.zeros(2, np.float32) if self.truncate else self._observe()  # truncation must not be predictable
        return obs, float(self._cue), ends and not self.truncate, ends and self.truncate, {}


class CartPoleNoVelocityEnv(CartPoleEnv):
    """Gymnasium's CartPole without the two velocities: the agent must infer motion from earlier observations."""

    def __init__(self, render_mode: str | None = None, **options: bool):
        super().__init__(render_mode=render_mode, **options)
        full = self.observation_space
        assert isinstance(full, spaces.Box)
        self.observation_space: spaces.Box = spaces.Box(full.low[[0, 2]], full.high[[0, 2]], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Array, Info]:
        obs, info = super().reset(seed=seed, options=options)
        return obs[[0, 2]], info

    def step(self, action: int | Array) -> Step:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs[[0, 2]], float(reward), terminated, truncated, info
