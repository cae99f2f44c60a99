"""An environment with illegal actions: the best policy takes the highest legal one."""

from typing import final

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from drl.core.specs import MASK_KEY, Array
from drl.games.random_streams import Info

ACTIONS, LENGTH = 4, 5


@final
class LegalMovesEnv(gym.Env[Array, np.int64]):
    """Each step allows a random choice of four actions, at least one, and pays the action's number over 3. An illegal
    action raises. The mask is in the info, Gymnasium's convention; the observation is always 1."""

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self.observation_space: spaces.Box = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space: spaces.Discrete[np.int64] = spaces.Discrete(ACTIONS)
        self.legal: Array = np.ones(ACTIONS, bool)
        self.steps: int = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observed()

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, Info]:
        if not self.legal[action]:
            raise ValueError(f"action {action} is illegal; the mask was {self.legal.astype(int).tolist()}")
        self.steps += 1
        obs, info = self._observed()
        return obs, float(action) / 3.0, self.steps == LENGTH, False, info

    def _observed(self) -> tuple[Array, Info]:
        drawn = self.np_random.random(ACTIONS) < 0.5
        drawn[self.np_random.integers(ACTIONS)] = True
        self.legal = drawn
        return np.ones(1, np.float32), {MASK_KEY: drawn.astype(np.int8)}
