"""drl/BitFlip-v0 in JAX: flip bits until they equal a goal. The rules are those of `drl.games.probes`."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.jax.envs.jax_env import Moved, Noise, uniform_noise
from drl.games.probes import check_bits, draws_per_episode, goal_reward, is_reached, start_and_goal


class BitFlipState(NamedTuple):
    """State of N environments."""

    bits: jax.Array  # [N, bits] bool
    goal: jax.Array  # [N, bits] bool
    steps: jax.Array  # [N] int32


@dataclass(frozen=True)
class BitFlip:
    """An environment with goals: `compute_reward` and `compute_terminated` are what hindsight replay needs."""

    bits: int = 15

    def __post_init__(self) -> None:
        check_bits(self.bits)

    @property
    def max_steps(self) -> int:
        return self.bits

    @property
    def obs_spec(self) -> ObsSpec:
        part = ObsSpec("multi_binary", box_shape=(self.bits,))
        return ObsSpec("dict", keys=("achieved_goal", "desired_goal", "observation"), parts=(part,) * 3)

    @property
    def action_spec(self) -> ActionSpec:
        return ActionSpec("discrete", sizes=(self.bits,))

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        return uniform_noise(key, shape, reset=draws_per_episode(self.bits))

    def reset(self, noise: jax.Array) -> BitFlipState:
        return BitFlipState(*start_and_goal(noise), jnp.zeros(len(noise), jnp.int32))

    def observe(self, state: BitFlipState) -> jax.Array:
        return jnp.concatenate([state.bits, state.goal, state.bits], axis=1).astype(jnp.float32)

    def step(self, state: BitFlipState, action: jax.Array, noise: None) -> Moved:
        bits = state.bits ^ (jnp.arange(self.bits) == action[:, None])
        after = BitFlipState(bits, state.goal, state.steps + 1)
        reached = is_reached(bits, state.goal)
        out_of_time = after.steps >= self.bits
        return Moved(after, goal_reward(bits, state.goal), reached, out_of_time & ~reached, success=reached)

    def compute_reward(self, achieved_goal: jax.Array, desired_goal: jax.Array) -> jax.Array:
        """Of encoded goals `[B, bits]`."""
        return goal_reward(achieved_goal, desired_goal)

    def compute_terminated(self, achieved_goal: jax.Array, desired_goal: jax.Array) -> jax.Array:
        """Whether a goal is reached, for hindsight."""
        return is_reached(achieved_goal, desired_goal)
