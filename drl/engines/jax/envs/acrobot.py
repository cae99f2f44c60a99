"""Acrobot: swing the tip of two hanging links above a line. Gymnasium's Acrobot-v1 (the textbook's equations)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.jax.envs.jax_env import Moved, Noise, Timed, begin, check_max_steps, out_of_time, uniform_noise

GRAVITY, SECONDS = 9.8, 0.2
FASTEST_1, FASTEST_2 = 4 * math.pi, 9 * math.pi  # of the two joints

Body = tuple[jax.Array, ...]  # the four columns of a body


@dataclass(frozen=True)
class Acrobot:
    """body: angle of the first link (0 hangs down), angle of the second to the first, their velocities."""

    max_steps: int | None = 500
    obs_spec: ClassVar[ObsSpec] = ObsSpec("box", box_shape=(6,))
    action_spec: ClassVar[ActionSpec] = ActionSpec("discrete", sizes=(3,))

    def __post_init__(self) -> None:
        check_max_steps(self.max_steps)

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        return uniform_noise(key, shape, reset=4)

    def reset(self, noise: jax.Array) -> Timed:
        return begin(0.2 * noise - 0.1)

    def observe(self, state: Timed) -> jax.Array:
        first, second, first_dot, second_dot = state.body.T
        columns = [jnp.cos(first), jnp.sin(first), jnp.cos(second), jnp.sin(second), first_dot, second_dot]
        return jnp.stack(columns, axis=1)

    def step(self, state: Timed, action: jax.Array, noise: None) -> Moved:
        torque = action.astype(jnp.float32) - 1.0
        first, second, first_dot, second_dot = _runge_kutta(tuple(state.body.T), torque)
        first, second = _wrapped(first), _wrapped(second)
        first_dot = jnp.clip(first_dot, -FASTEST_1, FASTEST_1)
        second_dot = jnp.clip(second_dot, -FASTEST_2, FASTEST_2)
        after = Timed(jnp.stack([first, second, first_dot, second_dot], axis=1), state.steps + 1)
        reached = -jnp.cos(first) - jnp.cos(first + second) > 1.0
        reward = jnp.where(reached, 0.0, -1.0)
        return Moved(after, reward, reached, out_of_time(after.steps, self.max_steps))


def _rates(body: Body, torque: jax.Array) -> Body:
    """Time derivatives. Mass, length and moment of inertia of each link are 1, its center of mass is in the middle."""
    first, second, first_dot, second_dot = body
    sin, cos = jnp.sin(second), jnp.cos(second)
    d1 = 3.5 + cos
    d2 = 1.25 + 0.5 * cos
    phi2 = 0.5 * GRAVITY * jnp.sin(first + second)
    phi1 = -0.5 * second_dot**2 * sin - second_dot * first_dot * sin + 1.5 * GRAVITY * jnp.sin(first) + phi2
    second_ddot = (torque + d2 / d1 * phi1 - 0.5 * first_dot**2 * sin - phi2) / (1.25 - d2**2 / d1)
    first_ddot = -(d2 * second_ddot + phi1) / d1
    return first_dot, second_dot, first_ddot, second_ddot


def _runge_kutta(body: Body, torque: jax.Array) -> Body:
    """One fourth-order step on separate columns, which avoids stacking."""
    k1 = _rates(body, torque)
    k2 = _rates(_ahead(body, k1, SECONDS / 2), torque)
    k3 = _rates(_ahead(body, k2, SECONDS / 2), torque)
    k4 = _rates(_ahead(body, k3, SECONDS), torque)
    slope = tuple((a + 2 * b + 2 * c + d) / 6 for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
    return _ahead(body, slope, SECONDS)


def _ahead(body: Body, slope: Body, seconds: float) -> Body:
    return tuple(value + seconds * rate for value, rate in zip(body, slope, strict=True))


def _wrapped(angle: jax.Array) -> jax.Array:
    return jnp.mod(angle + math.pi, 2 * math.pi) - math.pi
