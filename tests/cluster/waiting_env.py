"""CartPole that waits in every step, so that a run lasts long enough to be disturbed, on any machine."""

import os
import time

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


class WaitingCartPole(CartPoleEnv):
    def __init__(self, seconds=0.002, render_mode=None):
        super().__init__(render_mode)
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


class ExitingCartPole(CartPoleEnv):
    def step(self, action):
        os._exit(7)


if "Waiting-v0" not in gym.registry:  # pytest may have imported this file under another name
    gym.register("Waiting-v0", WaitingCartPole, max_episode_steps=100)
