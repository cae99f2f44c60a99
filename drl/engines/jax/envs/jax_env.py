"""What a JAX-native environment is: pure functions of a state, an action and noise, for N copies at once. Below it,
what such environments share: checks of arguments, the time limit, uniform noise."""

import math
from numbers import Real
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from drl.core.errors import BadInput
from drl.core.specs import ActionSpec, Array, ObsSpec
from drl.engines.jax.layers import Tree

State = Tree  # a pytree of arrays [N, …]: everything an environment remembers, its step counter included


class Noise(NamedTuple):
    """All the chance of one call: one block for a reset, one for a step. Cut along time, it feeds a scan."""

    reset: Tree  # a pytree of arrays [..., N, …]
    step: Tree  # likewise, or None where a step knows no chance


class Moved(NamedTuple):
    """What one step did, before anything is reset."""

    state: State  # the true successor, also at an episode's end
    reward: jax.Array  # [N] float32
    terminated: jax.Array  # [N] bool
    truncated: jax.Array  # [N] bool; may be set beside `terminated`, which wins in `step_and_reset`
    success: jax.Array | None = None  # [N] bool; counts where an episode ended; None: the environment does not say


class JaxEnv(Protocol):
    """N environments as pure, batched functions. An instance is a frozen dataclass: hashable, equal to its like, so
    `jit` takes it as a static argument and compiles once per kind of environment.

    Randomness comes in from outside, as arrays, so that a rollout can draw all of it before its scan. Nothing here
    resets by itself: `step_and_reset` does.

    >>> from drl.engines.jax.envs import make_jax_env
    >>> env = make_jax_env("CartPole-v1")
    >>> noise = env.draw(jax.random.key(0), (8,))
    >>> env.observe(env.reset(noise.reset)).shape
    (8, 4)
    """

    @property
    def obs_spec(self) -> ObsSpec: ...  # the same as `make_vec_env` gives for the Gymnasium twin
    @property
    def action_spec(self) -> ActionSpec: ...
    @property
    def max_steps(self) -> int | None: ...  # steps after which an episode is truncated; None: no clock

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        """Noise for `shape` resets and steps: `(N,)` for one call, `(T, N)` for a scan over T of them."""
        ...

    def reset(self, noise: Tree) -> State:
        """N new episodes from the `reset` block of a Noise of shape `(N,)`."""
        ...

    def observe(self, state: State) -> jax.Array:
        """What an agent sees, encoded: `[N, *obs_spec.shape]`."""
        ...

    # An environment with illegal actions also has `action_mask(state) -> [N, choices] bool`; see `legal_actions`.

    def step(self, state: State, action: jax.Array, noise: Tree) -> Moved:
        """One step of every environment. `action` is in the environment's units; `noise` is the `step` block of a
        Noise."""
        ...


def legal_actions(env: JaxEnv, state: State) -> jax.Array | None:
    """What is legal in N states `[N, choices]`; None: everything, in an environment without masks."""
    mask = getattr(env, "action_mask", None)
    return None if mask is None else mask(state)


def check_max_steps(max_steps: int | None) -> None:
    if max_steps is not None and (isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1):
        raise BadInput(f"max_episode_steps = {max_steps!r}; expected a whole number, 1 or more, or -1 for no limit")


def check_number(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise BadInput(f"{name} = {value!r}; expected a finite number")


class Timed(NamedTuple):
    """A body's coordinates and the clock."""

    body: jax.Array  # [N, coordinates] float32
    steps: jax.Array  # [N] int32, since the episode began


def begin(body: jax.Array) -> Timed:
    return Timed(body, jnp.zeros(len(body), jnp.int32))


def out_of_time(steps: jax.Array, max_steps: int | None) -> jax.Array:
    return jnp.zeros(steps.shape, bool) if max_steps is None else steps >= max_steps


def uniform_noise(key: jax.Array, shape: tuple[int, ...], *, reset: int, step: int = 0) -> Noise:
    """Draws from [0, 1): `reset` of them for each reset, `step` for each step."""
    reset_key, step_key = jax.random.split(key)
    per_step = jax.random.uniform(step_key, (*shape, step)) if step else None
    return Noise(jax.random.uniform(reset_key, (*shape, reset)), per_step)


def rounded_up(values: ArrayLike) -> Array:
    """The smallest float32 that is not below each value.

    >>> float(np.float32(0.9)), float(rounded_up(0.9))
    (0.8999999761581421, 0.9000000357627869)
    """
    exact = np.asarray(values, np.float64)
    nearest = exact.astype(np.float32)
    return np.where(nearest < exact, np.nextafter(nearest, np.float32(np.inf)), nearest)
