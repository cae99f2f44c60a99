"""An environment that sends signals to its own process in the middle of a step; a second one must end that step."""

import os
import signal
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Signalling(gym.Env):
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None, signals=1):
        self.render_mode, self.signals = render_mode, signals
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 40:
            for _ in range(self.signals):
                os.kill(os.getpid(), signal.SIGINT)
            if self.signals > 1:
                time.sleep(3.0)
                raise RuntimeError("the second signal has not ended this step")
        return np.zeros(2, np.float32), 1.0, False, self.steps % 10 == 0, {}


gym.register("Signalling-v0", Signalling)
