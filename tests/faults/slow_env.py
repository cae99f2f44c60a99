"""CartPole whose step can be told to do something first, once."""

from collections.abc import Callable

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

first_do: list[tuple[int, Callable[[], None]]] = []  # after so many steps of all environments


class SlowCartPole(CartPoleEnv):
    steps = 0

    def step(self, action):
        SlowCartPole.steps += 1
        if first_do and SlowCartPole.steps >= first_do[0][0]:
            first_do.pop()[1]()
        return super().step(action)


class EndlessCartPole(SlowCartPole):
    """Its episodes never end."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        self.state = tuple(number % 0.1 for number in self.state)
        return obs, reward, False, False, info


gym.register("Slow-v0", SlowCartPole, max_episode_steps=100)
gym.register("Endless-v0", EndlessCartPole)
