"""An environment that does not repeat itself: its observations depend on the process."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Unrepeatable(gym.Env):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action):
        return self._obs(), 1.0, False, False, {}

    def _obs(self):
        return np.random.default_rng().normal(size=2).astype(np.float32)


gym.register("Unrepeatable-v0", Unrepeatable, max_episode_steps=50)
