"""Wrappers by name: `TimeLimit:max_episode_steps=200`, `minigrid.wrappers:FlatObsWrapper`, `my_file.py:MyWrapper`."""

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym

from drl.core.errors import BadInput, did_you_mean
from drl.core.named_objects import name_of
from drl.core.safe_files import parse_yaml
from drl.envs.faults import reason
from drl.envs.known_packages import is_installed
from drl.envs.spaces import GymEnv
from drl.envs.user_objects import find_object

WrapperLike = str | Callable[..., GymEnv]  # a name, or a class or function that takes an environment
Env = TypeVar("Env")
# Modules of wrappers that are found by the bare name of a class.
HOMES = ("gymnasium.wrappers", "minigrid.wrappers", "drl.envs.minigrid_cells")


def wrapper_names(wrappers: Iterable[WrapperLike]) -> tuple[str, ...]:
    """Names of wrappers, of which some may be given as objects."""
    if isinstance(wrappers, str) or callable(wrappers):
        wrappers = [wrappers]
    return tuple(wrapper if isinstance(wrapper, str) else name_of(wrapper) for wrapper in wrappers)


class FoundWrapper(NamedTuple):
    """A wrapper, found by its name."""

    name: str
    make: Callable[..., Any]
    arguments: dict[str, Any]

    def __call__(self, env: Env) -> Env:
        try:
            wrapped = self.make(env, **self.arguments)
        except BaseException as error:
            raise BadInput(f"cannot wrap {env} in {self.name!r}: {reason(error)}") from error
        if isinstance(env, gym.Env) and not isinstance(wrapped, gym.Env):
            raise BadInput(f"the wrapper {self.name!r} gave {type(wrapped).__name__}; expected a Gymnasium environment")
        return wrapped


def find_wrapper(text: str) -> FoundWrapper:
    """The class or function that a text names, with its arguments.

    >>> find_wrapper("TimeLimit:max_episode_steps=200").arguments
    {'max_episode_steps': 200}
    """
    name, arguments = split_wrapper(text)
    found = find_object(name) if ":" in name else _find_by_class(name)
    if not callable(found):
        raise BadInput(f"wrapper {name!r}: its module defines no class or function of that name")
    return FoundWrapper(text, found, arguments)


def split_wrapper(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments in a text.

    >>> split_wrapper("my_file.py:Shift:by=2,axes=[0, 1]")
    ('my_file.py:Shift', {'by': 2, 'axes': [0, 1]})
    """
    name, _, options = text.rpartition(":") if "=" in text.rpartition(":")[2] else (text, "", "")
    if not name:
        raise BadInput(f"wrapper {text!r}: expected NAME, module:NAME or file.py:NAME, then perhaps :k=v,k=v")
    # The comma of `k=v,k=v` is one that a name and = follow.
    pairs = re.split(r",(?=\s*\w+=)", options) if options else []
    try:
        return name, {key.strip(): parse_yaml(value) for key, value in (pair.split("=", 1) for pair in pairs)}
    except ValueError as error:
        raise BadInput(f"wrapper {text!r} has an argument that is not YAML: {error}") from None


def _find_by_class(name: str) -> object:
    installed = [home for home in HOMES if is_installed(home) and importlib.util.find_spec(home.partition(".")[0])]
    homes = [importlib.import_module(home) for home in installed]
    pairs = [pair for home in homes for pair in vars(home).items()]
    known = {name: each for name, each in pairs if isinstance(each, type) and issubclass(each, gym.Wrapper)}
    if name in known:
        return known[name]
    raise BadInput(f"unknown wrapper {name!r}; {did_you_mean(name, known)}; for one of your own: module:NAME")
