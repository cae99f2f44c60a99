"""Mountain Car: rock a weak car out of a valley. Gymnasium's MountainCar-v0 and MountainCarContinuous-v0."""

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

LEFT_END, RIGHT_END, FASTEST, GRAVITY = -1.2, 0.6, 0.07, 0.0025


def _start(noise: jax.Array) -> Timed:
    """At rest, near the bottom of the valley."""
    position = 0.2 * noise[:, 0] - 0.6
    return begin(jnp.stack([position, jnp.zeros_like(position)], axis=1))


def _roll(body: jax.Array, push: jax.Array) -> jax.Array:
    """Position and velocity after one step; the left wall stops the car."""
    position, velocity = body.T
    velocity = jnp.clip(velocity + push - GRAVITY * jnp.cos(3 * position), -FASTEST, FASTEST)
    position = jnp.clip(position + velocity, LEFT_END, RIGHT_END)
    velocity = jnp.where((position == LEFT_END) & (velocity < 0), 0.0, velocity)
    return jnp.stack([position, velocity], axis=1)


@dataclass(frozen=True)
class MountainCar:
    """body: position and velocity; also the observation. Push left, not at all, or right; −1 for every step."""

    goal_velocity: float = 0.0  # smallest velocity at the goal
    max_steps: int | None = 200
    obs_spec: ClassVar[ObsSpec] = ObsSpec("box", box_shape=(2,))
    action_spec: ClassVar[ActionSpec] = ActionSpec("discrete", sizes=(3,))

    def __post_init__(self) -> None:
        check_max_steps(self.max_steps)
        check_number("goal_velocity", self.goal_velocity)

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        return uniform_noise(key, shape, reset=1)

    def reset(self, noise: jax.Array) -> Timed:
        return _start(noise)

    def observe(self, state: Timed) -> jax.Array:
        return state.body

    def step(self, state: Timed, action: jax.Array, noise: None) -> Moved:
        after = Timed(_roll(state.body, 0.001 * (action.astype(jnp.float32) - 1.0)), state.steps + 1)
        reached = (after.body[:, 0] >= 0.5) & (after.body[:, 1] >= self.goal_velocity)
        reward = -jnp.ones(reached.shape)
        return Moved(after, reward, reached, out_of_time(after.steps, self.max_steps))


@dataclass(frozen=True)
class MountainCarContinuous:
    """The same with a continuous force. Reward: 100 at the goal, minus a tenth of the squared force at every step."""

    goal_velocity: float = 0.0  # smallest velocity at the goal
    max_steps: int | None = 999
    obs_spec: ClassVar[ObsSpec] = ObsSpec("box", box_shape=(2,))
    action_spec: ClassVar[ActionSpec] = ActionSpec("box", shape=(1,), low=(-1.0,), high=(1.0,), dtype="float32")

    def __post_init__(self) -> None:
        check_max_steps(self.max_steps)
        check_number("goal_velocity", self.goal_velocity)

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        return uniform_noise(key, shape, reset=1)

    def reset(self, noise: jax.Array) -> Timed:
        return _start(noise)

    def observe(self, state: Timed) -> jax.Array:
        return state.body

    def step(self, state: Timed, action: jax.Array, noise: None) -> Moved:
        force = action[:, 0]
        after = Timed(_roll(state.body, 0.0015 * jnp.clip(force, -1.0, 1.0)), state.steps + 1)
        reached = (after.body[:, 0] >= 0.45) & (after.body[:, 1] >= self.goal_velocity)
        reward = jnp.where(reached, 100.0, 0.0) - 0.1 * force**2
        return Moved(after, reward, reached, out_of_time(after.steps, self.max_steps))
