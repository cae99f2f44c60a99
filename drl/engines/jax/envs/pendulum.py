"""Pendulum: swing up and stay up with little torque. Gymnasium's Pendulum-v1. It never terminates."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.jax.envs.jax_env import (
    Moved,
    Noise,
    Timed,
    begin,
    check_max_steps,
    check_number,
    out_of_time,
    uniform_noise,
)

STRONGEST, FASTEST, SECONDS = 2.0, 8.0, 0.05


@dataclass(frozen=True)
class Pendulum:
    """body: angle (0 is up) and velocity.

    Gymnasium's angle grows with every turn; here it stays in [−π, π), where float32 is most precise. The observation,
    sine and cosine, is the same.
    """

    g: float = 10.0  # gravity
    max_steps: int | None = 200
    obs_spec: ClassVar[ObsSpec] = ObsSpec("box", box_shape=(3,))
    action_spec: ClassVar[ActionSpec] = ActionSpec(
        "box", shape=(1,), low=(-STRONGEST,), high=(STRONGEST,), dtype="float32"
    )

    def __post_init__(self) -> None:
        check_max_steps(self.max_steps)
        check_number("g", self.g)

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        return uniform_noise(key, shape, reset=2)

    def reset(self, noise: jax.Array) -> Timed:
        return begin((2 * noise - 1) * jnp.array([math.pi, 1.0]))

    def observe(self, state: Timed) -> jax.Array:
        angle, speed = state.body.T
        return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed], axis=1)

    def step(self, state: Timed, action: jax.Array, noise: None) -> Moved:
        angle, speed = state.body.T
        torque = jnp.clip(action[:, 0], -STRONGEST, STRONGEST)
        reward = -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = jnp.clip(speed + (1.5 * self.g * jnp.sin(angle) + 3.0 * torque) * SECONDS, -FASTEST, FASTEST)
        angle = jnp.mod(angle + speed * SECONDS + math.pi, 2 * math.pi) - math.pi
        after = Timed(jnp.stack([angle, speed], axis=1), state.steps + 1)
        never = jnp.zeros(angle.shape, bool)
        return Moved(after, reward, never, out_of_time(after.steps, self.max_steps))
