"""CartPole that fails after a few hundred steps, depending on where the cart is."""

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


class Crashing(CartPoleEnv):
    def step(self, action):
        answer = super().step(action)
        if abs(self.state[1]) > 1.3:
            raise RuntimeError("the cart left its track")
        return answer


gym.register("Crashing-v0", Crashing, max_episode_steps=200)
