"""The interface of JAX-native environments: pure functions of a state, an action and noise, for N environments at once.
Also what they share: checks of arguments, the time limit, uniform noise."""

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

State = Tree  # a pytree of arrays [N, …]: the whole state of the environments, including their step counters


class Noise(NamedTuple):
    """The random numbers of one call: one block for a reset, one for a step. A leading time axis suits a scan."""

    reset: Tree  # a pytree of arrays [..., N, …]
    step: Tree  # likewise, or None if steps are deterministic


class Moved(NamedTuple):
    """The result of one step, before any reset."""

    state: State  # the true successor, also at an episode's end
    reward: jax.Array  # [N] float32
    terminated: jax.Array  # [N] bool
    truncated: jax.Array  # [N] bool; `terminated` takes precedence in `step_and_reset`
    success: jax.Array | None = None  # [N] bool; counts where an episode ended; None: not reported


class JaxEnv(Protocol):
    """N environments as pure, batched functions. An instance is a frozen dataclass with hash and equality, so
    `jit` takes it as a static argument and compiles once per kind of environment.

    Random numbers are arguments, so that a rollout can draw all of them before its scan. `step` does not reset;
    `step_and_reset` does.

    >>> from drl.engines.jax.envs import make_jax_env
    >>> env = make_jax_env("CartPole-v1")
    >>> noise = env.draw(jax.random.key(0), (8,))
    >>> env.observe(env.reset(noise.reset)).shape
    (8, 4)
    """

    @property
    def obs_spec(self) -> ObsSpec:
        """The same as that of `make_vec_env` for the Gymnasium version."""

    @property
    def action_spec(self) -> ActionSpec:
        """The same for actions."""

    @property
    def max_steps(self) -> int | None:
        """Steps after which an episode is truncated; None: no limit."""

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        """Noise for `shape` resets and steps: `(N,)` for one call, `(T, N)` for a scan over T of them."""
        ...

    def reset(self, noise: Tree) -> State:
        """N new episodes from the `reset` block of a Noise of shape `(N,)`."""
        ...

    def observe(self, state: State) -> jax.Array:
        """Encoded observations `[N, *obs_spec.shape]`."""
        ...

    # An environment with illegal actions also has `action_mask(state) -> [N, choices] bool`; see `legal_actions`.
    # One with goals has `compute_reward(achieved, desired) -> [B]` of encoded goals, and may have `compute_terminated`.

    def step(self, state: State, action: jax.Array, noise: Tree) -> Moved:
        """One step of every environment. `action` is in the environment's units; `noise` is the `step` block of a
        Noise."""
        ...


def legal_actions(env: JaxEnv, state: State) -> jax.Array | None:
    """Legal actions in N states `[N, choices]`; None: all, in an environment without masks."""
    mask = getattr(env, "action_mask", None)
    return None if mask is None else mask(state)


def check_max_steps(max_steps: int | None) -> None:
    """Raise unless it is a whole number of at least 1, or None."""
    if max_steps is not None and (isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1):
        raise BadInput(f"max_episode_steps = {max_steps!r}; expected a whole number, 1 or more, or -1 for no limit")


def check_number(name: str, value: float) -> None:
    """Raise unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise BadInput(f"{name} = {value!r}; expected a finite number")


class Timed(NamedTuple):
    """The coordinates of a body and the step counter."""

    body: jax.Array  # [N, coordinates] float32
    steps: jax.Array  # [N] int32, since the episode began


def begin(body: jax.Array) -> Timed:
    """N bodies at the beginning of their episodes."""
    return Timed(body, jnp.zeros(len(body), jnp.int32))


def out_of_time(steps: jax.Array, max_steps: int | None) -> jax.Array:
    """[N] bool; where the time limit is reached."""
    return jnp.zeros(steps.shape, bool) if max_steps is None else steps >= max_steps


def uniform_noise(key: jax.Array, shape: tuple[int, ...], *, reset: int, step: int = 0) -> Noise:
    """Uniform numbers from [0, 1): `reset` of them for each reset, `step` for each step."""
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
