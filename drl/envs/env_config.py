"""An environment as its agent sees it: its id, its arguments, the wrappers around it, the frames of an observation."""

import copy
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from drl.core.configs import Whole
from drl.core.contracts import VecEnv
from drl.core.errors import BadInput
from drl.core.network_parts import is_given, name_of
from drl.core.setting_rules import plain_setting
from drl.envs.env_names import WrapperLike, find_object, wrapper_names
from drl.envs.parallel_vec_env import ParallelGame, is_game
from drl.envs.spaces import EnvKwargs, GymEnv, GymVectorEnv


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """An environment, by names and plain data."""

    env: str  # an id, `module:Id`, `module:Class`, `file.py:Class` or `pettingzoo:NAME`
    env_kwargs: EnvKwargs = field(default_factory=dict)  # for its constructor
    wrappers: tuple[str, ...] = ()  # the first one innermost; see env_names.py
    frame_stack: int = 1  # frames per observation; see env_wrappers.py

    def __post_init__(self) -> None:
        stack = plain_setting(self.frame_stack)
        object.__setattr__(self, "frame_stack", stack)
        if isinstance(stack, bool) or not isinstance(stack, int) or stack < 1:
            raise BadInput(f"frame_stack = {stack!r}; expected a whole number, 1 or more")


# An id, a config, Gymnasium's own config, an environment to copy, or a class or function that makes one.
EnvLike = str | EnvConfig | EnvSpec | GymEnv | ParallelGame | Callable[..., GymEnv | ParallelGame]
AnyVector = GymVectorEnv | VecEnv
VECTORS = (gym.vector.VectorEnv, VecEnv)
AnyEnv = EnvLike | AnyVector  # a vector environment is stepped as it is; no second one can be made of it


def as_config(
    env: AnyEnv,
    env_kwargs: EnvKwargs | None = None,
    wrappers: Iterable[WrapperLike] | None = None,
    frame_stack: Whole | None = None,
) -> EnvConfig:
    """Any description of an environment as a config. Arguments that are not None replace those of the config.

    >>> as_config("CartPole-v1", wrappers=["TimeAwareObservation"])
    EnvConfig(env='CartPole-v1', env_kwargs={}, wrappers=('TimeAwareObservation',), frame_stack=1)
    """
    config = env if isinstance(env, EnvConfig) else EnvConfig(env=env if isinstance(env, str) else _named(env))
    if env_kwargs is not None:
        config = replace(config, env_kwargs=dict(env_kwargs))
    if wrappers is not None:
        config = replace(config, wrappers=wrapper_names(wrappers))
    return config if frame_stack is None else replace(config, frame_stack=plain_setting(frame_stack))


def _named(env: object) -> str:
    """The name of an environment that is given as an object."""
    if isinstance(env, gym.Env):
        env = env.spec or Copies(env)
    elif is_game(env):
        env = Copies(env)
    if isinstance(env, EnvSpec):
        return env.id if gym.registry.get(env.id) == env else name_of(env, env.id)
    if not callable(env) and not isinstance(env, VECTORS):
        raise BadInput(
            f"env is {env!r:.80}; expected an id such as CartPole-v1, a function or class that makes a Gymnasium "
            "environment, one to copy, its EnvSpec, or a vector environment"
        )
    return name_of(env)


def given_vector(env: str) -> AnyVector | None:
    """The vector environment that was given under this name, if it is one."""
    found = find_object(env) if is_given(env) else None
    return found if isinstance(found, VECTORS) else None


def without_vector(config: EnvConfig) -> EnvConfig | None:
    """The same with single environments, for evaluation and films: of the id that a vector environment was made from;
    None: it does not tell one."""
    vector = given_vector(config.env)
    if vector is None:
        return config
    spec = getattr(vector, "spec", None)
    if spec is None or spec.id not in gym.registry:
        return None
    return replace(config, env=spec.id, env_kwargs=dict(gym.registry[spec.id].kwargs))


class Copies:
    """Makes copies of one environment."""

    def __init__(self, env: Any):
        self.env: Any = env
        self.__qualname__ = type(env.unwrapped).__qualname__
        try:
            copy.deepcopy(env)
        except Exception as error:
            raise BadInput(
                f"the environment {self.__qualname__} cannot be copied ({error}); pass a function that makes one"
            ) from error

    def __call__(self) -> object:
        return copy.deepcopy(self.env)


def call_maker(make: Callable[..., object], render_mode: str | None, env_kwargs: EnvKwargs) -> object:
    """What a user's class or function makes. One that does not take `render_mode` is not asked to."""
    options = dict(env_kwargs)
    if render_mode is not None and _takes(make, "render_mode"):
        options["render_mode"] = render_mode
    return make(**options)


def _takes(make: Callable[..., object], name: str) -> bool:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.name == name or each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
