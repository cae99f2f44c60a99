"""Gymnasium's classic control in JAX: CartPole, Mountain Car, Pendulum and Acrobot, with the same equations."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from drl.core.errors import BadInput
from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.jax.envs.jax_env import (
    EnvStep,
    Noise,
    Timed,
    begin,
    check_max_steps,
    check_number,
    out_of_time,
    uniform_noise,
)


class ClassicControl:
    """The methods that all of these environments share. A state is the coordinates of a body and a step counter."""

    max_steps: int | None
    reset_draws: ClassVar[int]  # uniform numbers per reset

    def __post_init__(self) -> None:
        check_max_steps(self.max_steps)

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        return uniform_noise(key, shape, reset=self.reset_draws)

    def observe(self, state: Timed) -> jax.Array:
        return state.body

    def _moved(self, state: Timed, body: jax.Array, reward: jax.Array, terminated: jax.Array) -> EnvStep:
        """The result of a step to `body`; the time limit truncates."""
        after = Timed(body, state.steps + 1)
        return EnvStep(after, reward, terminated, out_of_time(after.steps, self.max_steps))


# ── CartPole: keep a pole upright on a cart ───────────────────────────────────────────────────────────────────────

POLE_GRAVITY, CART_MASS, POLE_MASS, HALF_LENGTH = 9.8, 1.0, 0.1, 0.5
TOTAL_MASS, POLE_MOMENT = CART_MASS + POLE_MASS, POLE_MASS * HALF_LENGTH
FORCE, POLE_SECONDS = 10.0, 0.02  # of one push; per step
FARTHEST, STEEPEST = 2.4, 12 * 2 * math.pi / 360  # beyond these the episode terminates


@dataclass(frozen=True)
class CartPole(ClassicControl):
    """body: position, velocity, angle, angular velocity; also the observation."""

    reset_draws = 4
    sutton_barto_reward: bool = False  # −1 at failure and 0 before, instead of 1 at every step
    max_steps: int | None = 500
    obs_spec: ClassVar[ObsSpec] = ObsSpec("box", box_shape=(4,))
    action_spec: ClassVar[ActionSpec] = ActionSpec("discrete", sizes=(2,))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.sutton_barto_reward, bool):
            raise BadInput(f"sutton_barto_reward = {self.sutton_barto_reward!r}; expected true or false")

    def reset(self, noise: jax.Array) -> Timed:
        return begin(0.1 * noise - 0.05)

    def step(self, state: Timed, action: jax.Array, noise: None) -> EnvStep:
        _, x_dot, angle, angle_dot = state.body.T
        sin, cos = jnp.sin(angle), jnp.cos(angle)
        push = (jnp.where(action == 1, FORCE, -FORCE) + POLE_MOMENT * angle_dot**2 * sin) / TOTAL_MASS
        turn = (POLE_GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE_MASS * cos**2 / TOTAL_MASS))
        pull = push - POLE_MOMENT * turn * cos / TOTAL_MASS
        rates = jnp.stack([x_dot, pull, angle_dot, turn], axis=1)
        body = state.body + POLE_SECONDS * rates
        failed = (jnp.abs(body[:, 0]) > FARTHEST) | (jnp.abs(body[:, 2]) > STEEPEST)
        reward = -failed.astype(jnp.float32) if self.sutton_barto_reward else jnp.ones(failed.shape)
        return self._moved(state, body, reward, failed)


# ── Mountain Car: rock a weak car out of a valley ─────────────────────────────────────────────────────────────────

LEFT_END, RIGHT_END, CAR_FASTEST, CAR_GRAVITY = -1.2, 0.6, 0.07, 0.0025


@dataclass(frozen=True)
class MountainCar(ClassicControl):
    """body: position and velocity; also the observation. Push left, not at all, or right; −1 for every step."""

    reset_draws = 1
    goal_velocity: float = 0.0  # smallest velocity at the goal
    max_steps: int | None = 200
    obs_spec: ClassVar[ObsSpec] = ObsSpec("box", box_shape=(2,))
    action_spec: ClassVar[ActionSpec] = ActionSpec("discrete", sizes=(3,))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("goal_velocity", self.goal_velocity)

    def reset(self, noise: jax.Array) -> Timed:
        """At rest, near the bottom of the valley."""
        position = 0.2 * noise[:, 0] - 0.6
        return begin(jnp.stack([position, jnp.zeros_like(position)], axis=1))

    def step(self, state: Timed, action: jax.Array, noise: None) -> EnvStep:
        body = _roll(state.body, 0.001 * (action.astype(jnp.float32) - 1.0))
        reached = self._reached(body, 0.5)
        return self._moved(state, body, -jnp.ones(reached.shape), reached)

    def _reached(self, body: jax.Array, goal: float) -> jax.Array:
        return (body[:, 0] >= goal) & (body[:, 1] >= self.goal_velocity)


@dataclass(frozen=True)
class MountainCarContinuous(MountainCar):
    """The same with a continuous force. Reward: 100 at the goal, minus a tenth of the squared force at every step."""

    max_steps: int | None = 999
    action_spec: ClassVar[ActionSpec] = ActionSpec("box", shape=(1,), low=(-1.0,), high=(1.0,), dtype="float32")

    def step(self, state: Timed, action: jax.Array, noise: None) -> EnvStep:
        force = action[:, 0]
        body = _roll(state.body, 0.0015 * jnp.clip(force, -1.0, 1.0))
        reached = self._reached(body, 0.45)
        return self._moved(state, body, jnp.where(reached, 100.0, 0.0) - 0.1 * force**2, reached)


def _roll(body: jax.Array, push: jax.Array) -> jax.Array:
    """Position and velocity after one step; the left wall stops the car."""
    position, velocity = body.T
    velocity = jnp.clip(velocity + push - CAR_GRAVITY * jnp.cos(3 * position), -CAR_FASTEST, CAR_FASTEST)
    position = jnp.clip(position + velocity, LEFT_END, RIGHT_END)
    velocity = jnp.where((position == LEFT_END) & (velocity < 0), 0.0, velocity)
    return jnp.stack([position, velocity], axis=1)


# ── Pendulum: swing up and stay up with little torque; it never terminates ────────────────────────────────────────

STRONGEST, PENDULUM_FASTEST, PENDULUM_SECONDS = 2.0, 8.0, 0.05


@dataclass(frozen=True)
class Pendulum(ClassicControl):
    """body: angle (0 is up) and velocity.

    Gymnasium's angle grows with every turn; here it stays in [−π, π), where float32 is most precise. The observation,
    sine and cosine, is the same.
    """

    reset_draws = 2
    g: float = 10.0  # gravity
    max_steps: int | None = 200
    obs_spec: ClassVar[ObsSpec] = ObsSpec("box", box_shape=(3,))
    action_spec: ClassVar[ActionSpec] = ActionSpec(
        "box", shape=(1,), low=(-STRONGEST,), high=(STRONGEST,), dtype="float32"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("g", self.g)

    def reset(self, noise: jax.Array) -> Timed:
        return begin((2 * noise - 1) * jnp.array([math.pi, 1.0]))

    def observe(self, state: Timed) -> jax.Array:
        angle, speed = state.body.T
        return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed], axis=1)

    def step(self, state: Timed, action: jax.Array, noise: None) -> EnvStep:
        angle, speed = state.body.T
        torque = jnp.clip(action[:, 0], -STRONGEST, STRONGEST)
        reward = -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = speed + (1.5 * self.g * jnp.sin(angle) + 3.0 * torque) * PENDULUM_SECONDS
        speed = jnp.clip(speed, -PENDULUM_FASTEST, PENDULUM_FASTEST)
        angle = jnp.mod(angle + speed * PENDULUM_SECONDS + math.pi, 2 * math.pi) - math.pi
        return self._moved(state, jnp.stack([angle, speed], axis=1), reward, jnp.zeros(angle.shape, bool))


# ── Acrobot: swing the tip of two hanging links above a line (the textbook's equations) ───────────────────────────

ACROBOT_GRAVITY, ACROBOT_SECONDS = 9.8, 0.2
FASTEST_1, FASTEST_2 = 4 * math.pi, 9 * math.pi  # of the two joints

Body = tuple[jax.Array, ...]  # the four columns of a body


@dataclass(frozen=True)
class Acrobot(ClassicControl):
    """body: angle of the first link (0 hangs down), angle of the second to the first, their velocities."""

    reset_draws = 4
    max_steps: int | None = 500
    obs_spec: ClassVar[ObsSpec] = ObsSpec("box", box_shape=(6,))
    action_spec: ClassVar[ActionSpec] = ActionSpec("discrete", sizes=(3,))

    def reset(self, noise: jax.Array) -> Timed:
        return begin(0.2 * noise - 0.1)

    def observe(self, state: Timed) -> jax.Array:
        first, second, first_dot, second_dot = state.body.T
        columns = [jnp.cos(first), jnp.sin(first), jnp.cos(second), jnp.sin(second), first_dot, second_dot]
        return jnp.stack(columns, axis=1)

    def step(self, state: Timed, action: jax.Array, noise: None) -> EnvStep:
        torque = action.astype(jnp.float32) - 1.0
        first, second, first_dot, second_dot = _runge_kutta(tuple(state.body.T), torque)
        first, second = _wrapped(first), _wrapped(second)
        first_dot = jnp.clip(first_dot, -FASTEST_1, FASTEST_1)
        second_dot = jnp.clip(second_dot, -FASTEST_2, FASTEST_2)
        body = jnp.stack([first, second, first_dot, second_dot], axis=1)
        reached = -jnp.cos(first) - jnp.cos(first + second) > 1.0
        return self._moved(state, body, jnp.where(reached, 0.0, -1.0), reached)


def _rates(body: Body, torque: jax.Array) -> Body:
    """Time derivatives. Mass, length and moment of inertia of each link are 1, its center of mass is in the middle."""
    first, second, first_dot, second_dot = body
    sin, cos = jnp.sin(second), jnp.cos(second)
    d1 = 3.5 + cos
    d2 = 1.25 + 0.5 * cos
    phi2 = 0.5 * ACROBOT_GRAVITY * jnp.sin(first + second)
    phi1 = -0.5 * second_dot**2 * sin - second_dot * first_dot * sin + 1.5 * ACROBOT_GRAVITY * jnp.sin(first) + phi2
    second_ddot = (torque + d2 / d1 * phi1 - 0.5 * first_dot**2 * sin - phi2) / (1.25 - d2**2 / d1)
    first_ddot = -(d2 * second_ddot + phi1) / d1
    return first_dot, second_dot, first_ddot, second_ddot


def _runge_kutta(body: Body, torque: jax.Array) -> Body:
    """One fourth-order step on separate columns, which avoids stacking."""
    k1 = _rates(body, torque)
    k2 = _rates(_ahead(body, k1, ACROBOT_SECONDS / 2), torque)
    k3 = _rates(_ahead(body, k2, ACROBOT_SECONDS / 2), torque)
    k4 = _rates(_ahead(body, k3, ACROBOT_SECONDS), torque)
    slope = tuple((a + 2 * b + 2 * c + d) / 6 for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
    return _ahead(body, slope, ACROBOT_SECONDS)


def _ahead(body: Body, slope: Body, seconds: float) -> Body:
    return tuple(value + seconds * rate for value, rate in zip(body, slope, strict=True))


def _wrapped(angle: jax.Array) -> jax.Array:
    return jnp.mod(angle + math.pi, 2 * math.pi) - math.pi
