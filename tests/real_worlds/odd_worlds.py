"""Environments whose observations are unusual: an image beside a vector, text, graphs, sequences."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SPACES = {
    "picture": spaces.Dict(
        rgb=spaces.Box(0, 255, (64, 64, 3), np.uint8),
        state=spaces.Dict(position=spaces.Box(-1.0, 1.0, (2,), np.float32), item=spaces.Discrete(3)),
        hint=spaces.Text(8),
    ),
    "text": spaces.Text(8),
    "graph": spaces.Graph(spaces.Box(0.0, 1.0, (2,)), spaces.Discrete(2)),
    "sequence": spaces.Sequence(spaces.Discrete(3)),
    "nested graph": spaces.Dict(map=spaces.Graph(spaces.Box(0.0, 1.0, (2,)), None), step=spaces.Discrete(4)),
}


class OddWorld(gym.Env):
    """Procgen-like: five random observations, a reward for one of the actions."""

    def __init__(self, space="picture"):
        self.observation_space, self.action_space = SPACES[space], spaces.Discrete(15)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.count += 1
        return self.observation_space.sample(), float(action == 3), False, self.count == 5, {}
