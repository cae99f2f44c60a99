"""What a JAX-native world is: pure functions of a state, an action and noise, for N worlds at once."""

from typing import Any, NamedTuple, Protocol

import jax

from drl.core.specs import ActionSpec, ObsSpec

State = Any  # a pytree of arrays [N, …]: everything a world remembers, its step counter included


class Noise(NamedTuple):
    """All the chance of one call: one block for a reset, one for a step. Cut along time, it feeds a scan."""

    reset: Any  # a pytree of arrays [..., N, …]
    step: Any  # likewise, or None where a step knows no chance


class Moved(NamedTuple):
    """What one step did, before anything is reset."""

    state: State  # the true successor, also at an episode's end
    reward: jax.Array  # [N] float32
    terminated: jax.Array  # [N] bool
    truncated: jax.Array  # [N] bool; may be set beside `terminated`, which wins in `step_and_reset`
    success: jax.Array | None = None  # [N] bool; counts where an episode ended; None: the world does not say


class JaxWorld(Protocol):
    """N worlds as pure, batched functions. An instance is a frozen dataclass: hashable, equal to its like, so `jit`
    takes it as a static argument and compiles once per kind of world.

    Randomness comes in from outside, as arrays, so that a rollout can draw all of it before its scan. Nothing here
    resets by itself: `step_and_reset` does.

    >>> from drl.engines.jax.worlds import make_jax_world
    >>> world = make_jax_world("CartPole-v1")
    >>> noise = world.draw(jax.random.key(0), (8,))
    >>> world.observe(world.reset(noise.reset)).shape
    (8, 4)
    """

    @property
    def obs_spec(self) -> ObsSpec: ...  # the same as `make_world` gives for the Gymnasium twin
    @property
    def action_spec(self) -> ActionSpec: ...
    @property
    def max_steps(self) -> int | None: ...  # steps after which an episode is truncated; None: no clock

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        """Noise for `shape` resets and steps: `(N,)` for one call, `(T, N)` for a scan over T of them."""
        ...

    def reset(self, noise: Any) -> State:
        """N new episodes from the `reset` block of a Noise of shape `(N,)`."""
        ...

    def observe(self, state: State) -> jax.Array:
        """What an agent sees, encoded: `[N, *obs_spec.shape]`."""
        ...

    def step(self, state: State, action: jax.Array, noise: Any) -> Moved:
        """One step of every world. `action` is in the world's units; `noise` is the `step` block of a Noise."""
        ...
