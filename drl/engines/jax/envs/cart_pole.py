"""CartPole: keep a pole upright on a cart. Gymnasium's CartPole-v0 (200 steps) and -v1 (500 steps)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from drl.core.errors import BadInput
from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.jax.envs.jax_env import Moved, Noise, Timed, begin, check_max_steps, out_of_time, uniform_noise

GRAVITY, CART_MASS, POLE_MASS, HALF_LENGTH = 9.8, 1.0, 0.1, 0.5
TOTAL_MASS, POLE_MOMENT = CART_MASS + POLE_MASS, POLE_MASS * HALF_LENGTH
FORCE, SECONDS = 10.0, 0.02  # of one push; per step
FARTHEST, STEEPEST = 2.4, 12 * 2 * math.pi / 360  # beyond these the episode terminates


@dataclass(frozen=True)
class CartPole:
    """body: position, velocity, angle, angular velocity; also the observation."""

    sutton_barto_reward: bool = False  # −1 at failure and 0 before, instead of 1 at every step
    max_steps: int | None = 500
    obs_spec: ClassVar[ObsSpec] = ObsSpec("box", box_shape=(4,))
    action_spec: ClassVar[ActionSpec] = ActionSpec("discrete", sizes=(2,))

    def __post_init__(self) -> None:
        check_max_steps(self.max_steps)
        if not isinstance(self.sutton_barto_reward, bool):
            raise BadInput(f"sutton_barto_reward = {self.sutton_barto_reward!r}; expected true or false")

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        return uniform_noise(key, shape, reset=4)

    def reset(self, noise: jax.Array) -> Timed:
        return begin(0.1 * noise - 0.05)

    def observe(self, state: Timed) -> jax.Array:
        return state.body

    def step(self, state: Timed, action: jax.Array, noise: None) -> Moved:
        _, x_dot, angle, angle_dot = state.body.T
        sin, cos = jnp.sin(angle), jnp.cos(angle)
        push = (jnp.where(action == 1, FORCE, -FORCE) + POLE_MOMENT * angle_dot**2 * sin) / TOTAL_MASS
        turn = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE_MASS * cos**2 / TOTAL_MASS))
        pull = push - POLE_MOMENT * turn * cos / TOTAL_MASS
        rates = jnp.stack([x_dot, pull, angle_dot, turn], axis=1)
        after = Timed(state.body + SECONDS * rates, state.steps + 1)
        failed = (jnp.abs(after.body[:, 0]) > FARTHEST) | (jnp.abs(after.body[:, 2]) > STEEPEST)
        reward = -failed.astype(jnp.float32) if self.sutton_barto_reward else jnp.ones(failed.shape)
        return Moved(after, reward, failed, out_of_time(after.steps, self.max_steps))
