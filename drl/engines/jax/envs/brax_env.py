"""The environments of Brax (0.14) as JaxEnvs: continuous control on rigid-body physics. Ids are `brax:NAME`."""

import contextlib
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
from drl.engines.jax.envs.jax_env import Moved, Noise, check_max_steps, out_of_time
from drl.engines.jax.layers import Tree

Untyped = Any  # an object of Brax


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

    def step(self, state: BraxState, action: jax.Array, noise: None) -> Moved:
        inner = jax.vmap(self._env.step)(state.inner, action)
        # A scan needs equal types of input and output; some environments return rewards of a weak type.
        inner = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), inner, state.inner)
        steps = state.steps + 1
        terminated = inner.done.astype(bool)  # Brax's word for it, without its wrapper for the time limit
        after = BraxState(inner, steps)
        return Moved(after, inner.reward.astype(jnp.float32), terminated, out_of_time(steps, self.max_steps))


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
