"""The environments of Brax (0.14; rigid-body physics) and of gymnax (1.x, with MinAtar) as JaxEnvs.

Ids are `brax:NAME` and `gymnax:NAME`. Both packages are imported when an environment is made.
"""

import contextlib
import dataclasses
import importlib
import inspect
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.errors import BadInput, MissingExtra, did_you_mean
from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.jax.envs.jax_env import EnvStep, Noise, check_max_steps, out_of_time
from drl.engines.jax.layers import Tree

Untyped = Any  # an object of Brax or gymnax


class BraxState(NamedTuple):
    """State of N environments."""

    inner: Tree  # Brax's own state of N environments; it holds the observation
    steps: jax.Array  # [N] int32, since the episode began


@dataclass(frozen=True)
class BraxEnv:
    """A Brax environment by name; `arguments` are those of its constructor, such as `backend`.

    Noise is one key per reset; steps are deterministic. Brax itself has no time limit: it leaves it to a wrapper.
    """

    name: str
    arguments: tuple[tuple[str, bool | int | float | str], ...] = ()
    max_steps: int | None = 1000

    def __post_init__(self) -> None:
        check_max_steps(self.max_steps)
        self._env  # noqa: B018  (raises now for a wrong name or argument)

    @cached_property
    def _env(self) -> Untyped:
        envs = _import_brax()
        if self.name not in envs._envs:
            raise BadInput(f"Brax knows no {self.name!r}: {did_you_mean(self.name, envs._envs)}")
        if self.name == "swimmer" and "a_min" not in inspect.signature(jnp.clip).parameters:
            raise BadInput("brax:swimmer needs an older jax: Brax calls clip(a_min=…) for it, which this jax has not")
        given = dict(self.arguments)
        try:
            with _silent():
                return envs.get_environment(self.name, **given)
        except (TypeError, ValueError) as error:
            raise BadInput(f"cannot make brax:{self.name} with env_kwargs={given}: {error}") from error

    @cached_property
    def obs_spec(self) -> ObsSpec:
        obs = jax.eval_shape(self._env.reset, jax.random.key(0)).obs
        if not isinstance(obs, jax.ShapeDtypeStruct):
            raise BadInput(f"cannot use the observations of brax:{self.name}, {obs}; expected one array")
        return ObsSpec("box", box_shape=obs.shape, box_dtype=np.dtype(obs.dtype).name)

    @cached_property
    def action_spec(self) -> ActionSpec:
        size = int(self._env.action_size)
        return ActionSpec("box", shape=(size,), low=(-1.0,) * size, high=(1.0,) * size, dtype="float32")

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        return Noise(jax.random.split(key, shape), None)

    def reset(self, noise: jax.Array) -> BraxState:
        return BraxState(jax.vmap(self._env.reset)(noise), jnp.zeros(len(noise), jnp.int32))

    def observe(self, state: BraxState) -> jax.Array:
        return state.inner.obs

    def step(self, state: BraxState, action: jax.Array, noise: None) -> EnvStep:
        inner = jax.vmap(self._env.step)(state.inner, action)
        # A scan needs equal types of input and output; some environments return rewards of a weak type.
        inner = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), inner, state.inner)
        steps = state.steps + 1
        terminated = inner.done.astype(bool)  # Brax's word for it, without its wrapper for the time limit
        after = BraxState(inner, steps)
        return EnvStep(after, inner.reward.astype(jnp.float32), terminated, out_of_time(steps, self.max_steps))


def _import_brax() -> ModuleType:
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # MJX prints that it found no warp, which is for GPUs
            return importlib.import_module("brax.envs")
    except ImportError as error:
        raise MissingExtra("an environment of Brax", "brax", error) from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without the advice that Brax, and MuJoCo about Brax's model files, give to those who can change them."""
    mujoco = importlib.import_module("mujoco")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        former = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda message: None)  # else they go to a file in the current folder
        try:
            yield
        finally:
            mujoco.set_mju_user_warning(former)


class GymnaxState(NamedTuple):
    """State of N environments."""

    inner: Tree  # gymnax's own state of N environments
    obs: jax.Array  # [N, …] stored, since gymnax may need a key to observe


@dataclass(frozen=True)
class GymnaxEnv:
    """A gymnax environment by name; `arguments` are fields of its params or arguments of its constructor.

    Noise is one key per environment: gymnax draws its own random numbers.
    """

    name: str
    arguments: tuple[tuple[str, bool | int | float | str], ...] = ()

    def __post_init__(self) -> None:
        self._env_and_params  # noqa: B018  (raises now for a wrong name or argument)

    @cached_property
    def _env_and_params(self) -> tuple[Untyped, Untyped]:
        gymnax = _import_gymnax()
        if self.name not in gymnax.registered_envs:
            raise BadInput(f"gymnax knows no {self.name!r}: {did_you_mean(self.name, gymnax.registered_envs)}")
        given = dict(self.arguments)
        # Which arguments are fields of the params is known only once an environment exists.
        fields = {field.name for field in dataclasses.fields(gymnax.make(self.name)[1])}
        try:
            env, params = gymnax.make(self.name, **{k: v for k, v in given.items() if k not in fields})
            return env, params.replace(**{k: v for k, v in given.items() if k in fields})
        except (TypeError, ValueError) as error:
            message = f"cannot make gymnax:{self.name} with env_kwargs={given}: {error}; params: {sorted(fields)}"
            raise BadInput(message) from error

    @cached_property
    def obs_spec(self) -> ObsSpec:
        env, params = self._env_and_params
        space = env.observation_space(params)
        if type(space).__name__ == "Discrete":
            return ObsSpec("discrete", sizes=(int(space.n),))
        if type(space).__name__ != "Box":
            raise BadInput(f"cannot use observation space {space} of gymnax:{self.name}; expected Box or Discrete")
        shape, dtype = tuple(space.shape), np.dtype(space.dtype).name
        # gymnax's images are float (height, width, channels); models expect the channels first.
        channels_last = len(shape) == 3 and shape[2] < min(shape[:2])
        return ObsSpec("box", box_shape=shape, box_dtype=dtype, channels_last=channels_last)

    @cached_property
    def action_spec(self) -> ActionSpec:
        env, params = self._env_and_params
        space = env.action_space(params)
        if type(space).__name__ == "Discrete":
            return ActionSpec("discrete", sizes=(int(space.n),))
        if type(space).__name__ != "Box":
            raise BadInput(f"cannot use action space {space} of gymnax:{self.name}; expected Discrete or Box")
        low, high = (
            tuple(np.broadcast_to(np.asarray(bound, np.float32), space.shape).ravel().tolist())
            for bound in (space.low, space.high)
        )
        return ActionSpec("box", shape=tuple(space.shape), low=low, high=high, dtype="float32")

    @property
    def max_steps(self) -> int | None:
        limit = getattr(self._env_and_params[1], "max_steps_in_episode", None)
        return None if limit is None else int(limit)

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        reset_key, step_key = jax.random.split(key)
        return Noise(jax.random.split(reset_key, shape), jax.random.split(step_key, shape))

    def reset(self, noise: jax.Array) -> GymnaxState:
        env, params = self._env_and_params
        obs, inner = jax.vmap(env.reset_env, in_axes=(0, None))(noise, params)
        return GymnaxState(inner, self._encode(obs))

    def observe(self, state: GymnaxState) -> jax.Array:
        return state.obs

    def step(self, state: GymnaxState, action: jax.Array, noise: jax.Array) -> EnvStep:
        env, params = self._env_and_params
        # `step_env` is gymnax's step without resets, so it returns the true successor.
        move = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))
        obs, inner, reward, terminated, info = move(noise, state.inner, action, params)
        truncated = jax.vmap(env.is_truncated, in_axes=(0, None))(inner, params)
        # A scan needs equal types of input and output; some environments turn integers into floats.
        inner = jax.tree.map(lambda new, old: new.astype(old.dtype).reshape(old.shape), inner, state.inner)
        terminated = terminated.astype(bool)
        success = info["is_success"].astype(bool) if "is_success" in info else None
        after = GymnaxState(inner, self._encode(obs))
        return EnvStep(after, reward.astype(jnp.float32), terminated, truncated.astype(bool), success)

    def _encode(self, obs: jax.Array) -> jax.Array:
        """`ObsSpec.encode` for the two supported kinds of space."""
        spec = self.obs_spec
        if spec.kind == "discrete":
            return jax.nn.one_hot(obs, spec.sizes[0])
        encoded = obs.astype(spec.dtype).reshape(len(obs), *spec.box_shape)
        return jnp.moveaxis(encoded, 3, 1) if spec.channels_last else encoded.reshape(len(obs), *spec.shape)


def _import_gymnax() -> ModuleType:
    try:
        gymnax = importlib.import_module("gymnax")
        environment = importlib.import_module("gymnax.environments.environment")
    except ImportError as error:
        raise MissingExtra("an environment of gymnax", "gymnax", error) from error
    if not hasattr(environment.Environment, "is_truncated"):
        raise BadInput("this gymnax has one flag for termination and time limit; install a newer one: gymnax>=1.0")
    return gymnax
