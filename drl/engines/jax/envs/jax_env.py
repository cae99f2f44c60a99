"""JAX-native environments: their interface, the parts they share, and stepping them.

An environment is pure functions of a state, an action and noise, for N environments at once. `step_and_reset` steps it
inside a compiled program, `HostedVecEnv` from Python.
"""

import math
from functools import partial
from numbers import Real
from typing import NamedTuple, Protocol, final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from drl.core.contracts import VecEnv, VecStep
from drl.core.errors import BadInput
from drl.core.specs import ActionSpec, Array, ObsSpec
from drl.core.state_files import StateDict
from drl.engines.jax.layers import Tree
from drl.envs.episode_stats import EpisodeStats

State = Tree  # a pytree of arrays [N, …]: the whole state of the environments, including their step counters


class Noise(NamedTuple):
    """The random numbers of one call: one block for a reset, one for a step. A leading time axis suits a scan."""

    reset: Tree  # a pytree of arrays [..., N, …]
    step: Tree  # likewise, or None if steps are deterministic


class EnvStep(NamedTuple):
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

    def step(self, state: State, action: jax.Array, noise: Tree) -> EnvStep:
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


class JaxStep(NamedTuple):
    """`VecStep` for compiled programs; every row is valid."""

    reward: jax.Array  # [N] float32
    terminated: jax.Array  # [N] bool; takes precedence over truncated
    truncated: jax.Array  # [N] bool
    success: jax.Array | None  # [N] bool; counts where an episode ended; None: not reported
    next_obs: jax.Array  # [N, …] true successors
    obs: jax.Array  # [N, …] what to act on next: next_obs, or the first observation of a new episode
    action_mask: jax.Array | None = None  # [N, choices] bool: legal actions in `obs`; None: all
    next_action_mask: jax.Array | None = None  # the same for `next_obs`; all if there is no legal action


def step_and_reset(env: JaxEnv, state: State, action: jax.Array, noise: Noise) -> tuple[State, JaxStep]:
    """Step every environment, then begin a new episode where one ended. `action` is in the policy's units.

    >>> from drl.engines.jax.envs import make_jax_env
    >>> env = make_jax_env("Pendulum-v1")
    >>> def random_play(key):  # 100 steps of 8 envs; all noise is drawn before the scan
    ...     first, now, move = jax.random.split(key, 3)
    ...     state = env.reset(env.draw(first, (8,)).reset)
    ...     inputs = jax.random.normal(move, (100, 8, 1)), env.draw(now, (100, 8))
    ...     return jax.lax.scan(lambda state, x: step_and_reset(env, state, *x), state, inputs)
    >>> state, steps = jax.eval_shape(random_play, jax.random.key(0))  # jax.jit(random_play)(…) runs it
    >>> steps.next_obs.shape
    (100, 8, 3)
    """
    return advance(env, state, to_env_units(env.action_spec, action), noise)


def advance(env: JaxEnv, state: State, action: jax.Array, noise: Noise) -> tuple[State, JaxStep]:
    """The same with `action` in the environment's units."""
    moved = env.step(state, action, noise.step)
    truncated = moved.truncated & ~moved.terminated
    ended = moved.terminated | truncated
    fresh = env.reset(noise.reset)
    next_obs = env.observe(moved.state)
    obs = where_rows(ended, env.observe(fresh), next_obs)
    now = jax.tree.map(lambda new, old: where_rows(ended, new, old), fresh, moved.state)
    next_mask = legal_actions(env, moved.state)
    if next_mask is not None:
        next_mask = next_mask | ~next_mask.any(axis=1, keepdims=True)
    masks = (legal_actions(env, now), next_mask)
    return now, JaxStep(moved.reward, moved.terminated, truncated, moved.success, next_obs, obs, *masks)


def where_rows(mask: jax.Array, yes: jax.Array, no: jax.Array) -> jax.Array:
    """`jnp.where` by whole rows: `mask` is [N], the others [N, …]."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (yes.ndim - 1)), yes, no)


def to_env_units(spec: ActionSpec, action: jax.Array) -> jax.Array:
    """Translate a batch `[N, *policy_shape]`. Gaussian actions are clipped to [−1, 1], which spans the bounds."""
    if spec.kind == "box":
        low, high = np.asarray(spec.low, np.float32), np.asarray(spec.high, np.float32)
        bounded = np.isfinite(low) & np.isfinite(high)
        lower, upper = np.where(bounded, low, 0), np.where(bounded, high, 0)  # avoids infinity times zero below
        inside = jnp.clip(action, -1.0, 1.0)
        scaled = jnp.where(bounded, upper * (inside + 1) / 2 + lower * (1 - inside) / 2, action)
        limited = jnp.clip(scaled, low, high)  # one-sided bounds are only clipped
        return limited.reshape(len(action), *spec.shape)
    moved = action + np.asarray(spec.starts, np.int32) if spec.starts else action
    return moved.reshape(len(action), *spec.shape)


@final
class HostedVecEnv(VecEnv):
    """For evaluation on environments that exist only in JAX, such as Brax's, and for using them with any engine.

    Slower than a compiled rollout by one call of a compiled function per step, for any number of environments.

    >>> from drl.engines.jax.envs import make_jax_env
    >>> with HostedVecEnv(make_jax_env("CartPole-v1"), num_envs=4, seed=1, env_id="CartPole-v1") as env:
    ...     env.reset().shape, env.step(np.array([0, 1, 0, 1])).reward
    ((4, 4), array([1., 1., 1., 1.], dtype=float32))
    """

    vectorization = "jax"
    unreachable = "it is a compiled program; use --vectorization sync, if Gymnasium has it"

    def __init__(self, env: JaxEnv, num_envs: int, seed: int, env_id: str, stream: str = "world"):
        self.env_id: str = env_id
        self.num_envs: int = num_envs
        self.seed: int = seed
        self.obs_spec: ObsSpec = env.obs_spec
        self.action_spec: ActionSpec = env.action_spec
        self.stats: EpisodeStats = EpisodeStats(env_id, num_envs, seed, stream)
        self._always_valid = np.ones(num_envs, bool)
        self._env = env
        self._key = jax.random.key(0)  # replaced by the first reset
        self._state: State = None

    def reset(self) -> Array:
        first, seeds = not self.stats.begun, self.stats.begin()
        if first:
            self._key = jax.random.key(seeds[0])
        self._key, self._state, obs, mask = _start(self._env, self.num_envs, self._key)
        self.stats.obs = np.array(obs)
        self.action_mask = self.stats.action_mask = None if mask is None else np.array(mask)
        return self.stats.obs

    def step(self, action: Array) -> VecStep:
        stats = self.stats
        stats.check_action(action)
        self._key, self._state, step = _move(self._env, self.num_envs, self._key, self._state, action)
        # Copies: the receiver may write into them.
        reward, terminated, truncated, success, next_obs, obs, mask, next_mask = jax.tree.map(np.array, step)
        stats.add(reward.astype(np.float64))
        stats.obs = obs
        self.action_mask = stats.action_mask = mask
        ended = np.flatnonzero(terminated | truncated).tolist()
        reported = [None if success is None else bool(success[i]) for i in ended]
        episodes = [stats.finish(i, bool(terminated[i]), word) for i, word in zip(ended, reported, strict=True)]
        return VecStep(reward, terminated, truncated, next_obs, obs, self._always_valid, episodes, mask, next_mask)

    def state_dict(self) -> StateDict:
        inside = [np.asarray(leaf) for leaf in jax.tree.leaves(self._state)]
        return self.stats.state_dict() | {"inside": inside, "key": np.asarray(jax.random.key_data(self._key))}

    def load_state_dict(self, state: StateDict) -> str | None:
        self.stats.load_state_dict(state)
        self.action_mask = self.stats.action_mask
        self._key = jax.random.wrap_key_data(jax.numpy.asarray(state["key"]))
        if self.stats.obs is not None:
            shape = jax.eval_shape(lambda key: _start(self._env, self.num_envs, key)[1], self._key)
            self._state = jax.tree.unflatten(jax.tree.structure(shape), state["inside"])
            self.stats.begun = True
        return None

    def close(self) -> None:
        """There is nothing to close."""


# Module-level functions, so that a second environment of the same kind does not compile again.


@partial(jax.jit, static_argnums=(0, 1))
def _start(env: JaxEnv, num_envs: int, key: jax.Array) -> tuple[jax.Array, State, jax.Array, jax.Array | None]:
    key, now = jax.random.split(key)
    state = env.reset(env.draw(now, (num_envs,)).reset)
    return key, state, env.observe(state), legal_actions(env, state)


@partial(jax.jit, static_argnums=(0, 1))
def _move(
    env: JaxEnv, num_envs: int, key: jax.Array, state: State, action: jax.Array
) -> tuple[jax.Array, State, JaxStep]:
    key, now = jax.random.split(key)
    return key, *advance(env, state, action, env.draw(now, (num_envs,)))
