"""Flip bits until they equal a goal: the environment in which hindsight experience replay was introduced."""

from typing import SupportsInt, final

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from drl.core.errors import BadInput
from drl.core.specs import AnyArray, Array
from drl.games.random_streams import Info

GoalObs = dict[str, Array]  # observation, achieved_goal, desired_goal


@final
class BitFlipEnv(gym.Env[GoalObs, np.int64]):
    """Action i flips bit i. Each step costs 1; the one that reaches the goal costs nothing and terminates. Episodes are
    truncated after as many steps as there are bits, enough for any goal: the best return is 1 minus the number of bits
    that differ at the start. At random, an agent hardly ever reaches a goal of 15 bits."""

    goal: Array
    state: Array

    def __init__(self, bits: int = 15, render_mode: str | None = None):
        check_bits(bits)
        self.bits: int = bits
        self.render_mode: str | None = render_mode
        names = ("achieved_goal", "desired_goal", "observation")
        self.observation_space: spaces.Dict = spaces.Dict({name: spaces.MultiBinary(bits) for name in names})
        self.action_space: spaces.Discrete[np.int64] = spaces.Discrete(bits)
        self.state = self.goal = np.zeros(bits, bool)
        self.steps: int = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[GoalObs, Info]:
        super().reset(seed=seed)
        self.state, self.goal = start_and_goal(self.np_random.random(draws_per_episode(self.bits)))
        self.steps = 0
        return self._observe(), {}

    def step(self, action: SupportsInt) -> tuple[GoalObs, float, bool, bool, Info]:
        self.state = self.state ^ (np.arange(self.bits) == int(action))
        self.steps += 1
        reached = bool(is_reached(self.state, self.goal))
        reward = float(self.compute_reward(self.state, self.goal, {}))
        return self._observe(), reward, reached, not reached and self.steps == self.bits, {"is_success": reached}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Info) -> Array:
        """Of one goal or a batch of them; `info` is not used."""
        return goal_reward(achieved_goal, desired_goal)

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Info) -> Array:
        """Whether a goal is reached, for hindsight."""
        return is_reached(achieved_goal, desired_goal)

    def _observe(self) -> GoalObs:
        state, goal = self.state.astype(np.int8), self.goal.astype(np.int8)
        return {"achieved_goal": state, "desired_goal": goal, "observation": state.copy()}


def check_bits(bits: int) -> None:
    """Raise unless it is a whole number of at least 1."""
    if isinstance(bits, bool) or not isinstance(bits, int) or bits < 1:
        raise BadInput(f"bits = {bits!r}; expected a whole number, 1 or more")


# The rules, for arrays of NumPy and of JAX; the last axis holds the bits.


def draws_per_episode(bits: int) -> int:
    """Uniform numbers for `start_and_goal`."""
    return 2 * bits + 1


def start_and_goal(uniform: AnyArray) -> tuple[AnyArray, AnyArray]:
    """A coin for each bit of the start and of the goal. Where they are equal, one bit of the goal is flipped."""
    bits = uniform.shape[-1] // 2
    start, goal = uniform[..., :bits] < 0.5, uniform[..., bits:-1] < 0.5
    chosen = np.arange(bits) == (uniform[..., -1:] * bits).astype(np.int32)
    return start, goal ^ (chosen & is_reached(start, goal)[..., None])


def is_reached(achieved_goal: AnyArray, desired_goal: AnyArray) -> AnyArray:
    """Where all bits agree."""
    return (achieved_goal == desired_goal).all(axis=-1)


def goal_reward(achieved_goal: AnyArray, desired_goal: AnyArray) -> AnyArray:
    """0 where a goal is reached, −1 elsewhere."""
    return is_reached(achieved_goal, desired_goal).astype(np.float32) - 1.0
