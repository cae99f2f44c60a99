"""Environments and wrappers by name.

- names of `drl.core.network_parts`: objects that were given, or that a module or file defines (`find_object`)
- ids of well-known packages, without `module:` in front: the package is imported (`import_package_of`)
- wrappers: `TimeLimit:max_episode_steps=200`, `minigrid.wrappers:FlatObsWrapper`, `my_file.py:MyWrapper`
"""

import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import io
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from drl.core.errors import BadInput, MissingExtra, did_you_mean
from drl.core.network_parts import IN_MEMORY, given_objects, is_given, name_of
from drl.core.safe_files import parse_yaml
from drl.envs.env_wrappers import OneHotCells
from drl.envs.faults import reason
from drl.envs.spaces import GymEnv

WrapperLike = str | Callable[..., GymEnv]  # a name, or a class or function that takes an environment
Env = TypeVar("Env")
PACKAGES = (
    "ale_py",
    "brax",
    "bsuite",
    "drl",
    "gymnasium",
    "gymnasium_robotics",
    "gymnax",
    "highway_env",
    "metaworld",
    "minigrid",
    "miniwob",
    "miniworld",
    "mo_gymnasium",
    "mpe2",
    "pettingzoo",
    "procgen",
    "safety_gymnasium",
    "supersuit",
)


class Family(NamedTuple):
    """Environments of one package."""

    ids: str  # pattern of how their ids begin
    package: str  # whose import registers them
    extra: str  # of ours that installs it


FAMILIES = (
    Family(r"ALE/", "ale_py", "atari"),
    Family(r"(MiniGrid|BabyAI)-", "minigrid", "minigrid"),
    Family(
        r"(highway|merge|roundabout|parking|intersection|racetrack|exit|lane-keeping|two-way|u-turn)-",
        "highway_env",
        "highway",
    ),
    Family(
        r"(Point|Ant)Maze_|Fetch(Reach|Push|Slide|PickAndPlace)|Hand(Reach|Manipulate)|AdroitHand|FrankaKitchen",
        "gymnasium_robotics",
        "robotics",
    ),
)
# Modules of wrappers that are found by the bare name of a class.
HOMES = ("gymnasium.wrappers", "minigrid.wrappers")


def is_known_package(module: str) -> bool:
    """Whether it is a module of a known package; a file such as `minigrid.py` or `drl.x/y.py` is none."""
    return module.partition(".")[0] in PACKAGES and not module.endswith(".py")


def is_installed(module: str) -> bool:
    """Whether it is a known package and the import would find the installed one, not a file in the current folder."""
    package = module.partition(".")[0]
    if not is_known_package(module):
        return False
    if package == "drl":
        return True
    found = importlib.util.find_spec(package)  # imports nothing for a top-level name
    if found is None:
        return True  # not installed, and never searched for in the current folder: the import will fail
    places = {*site.getsitepackages(), site.getusersitepackages(), *map(sysconfig.get_path, ("purelib", "platlib"))}
    origin = Path(found.origin or next(iter(found.submodule_search_locations or ("/",)))).resolve()
    return any(origin.is_relative_to(Path(place).resolve()) for place in places)


def find_object(name: str) -> object | None:
    """The object of this name: the one that was given, or what its module or file defines; None: it defines no such
    object."""
    if is_given(name):
        return given_objects()[name]
    module, _, label = name.rpartition(":")
    return getattr(import_for(name), label, None) if module else None


def import_for(name: str) -> ModuleType:
    """Import the module or file of `module:NAME`. That runs its code."""
    source = name.rpartition(":")[0]
    if source == IN_MEMORY:
        raise BadInput(
            f"{name!r} is an object of the program that trained with it, and no file defines it; in Python pass it "
            "again, as env= or wrappers="
        )
    try:
        return _import_file(Path(source)) if source.endswith(".py") else _import_module(source)
    except BaseException as error:  # a user's module can raise anything
        raise BadInput(f"cannot import {source!r} for {name!r}: {reason(error)}") from error


def _import_module(source: str) -> ModuleType:
    if "" not in sys.path and os.getcwd() not in sys.path and not is_known_package(source):
        sys.path.append(os.getcwd())  # console scripts do not search the current folder
    return importlib.import_module(source)


def _import_file(path: Path) -> ModuleType:
    """A Python file as a module; a second call gives the same module."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    path = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        loader = importlib.machinery.SourceFileLoader(name, str(path))
        spec = importlib.machinery.ModuleSpec(name, loader, origin=str(path))
        spec.has_location = True  # gives it a __file__
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.parent))  # for what it imports from its own folder
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        finally:
            sys.path.remove(str(path.parent))
        cloudpickle.register_pickle_by_value(module)  # worker processes cannot import it by name
    return sys.modules[name]


def import_package_of(name: str) -> None:
    """Import the well-known package that registers this id, if there is one."""
    family = next((each for each in FAMILIES if re.match(each.ids, name)), None)
    if family is None or not is_installed(family.package):  # not one of the same name in the current folder
        return
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # Gymnasium-Robotics reports old versions of some of its ids
            gym.register_envs(importlib.import_module(family.package))
    except ImportError as error:
        raise MissingExtra(f"environment {name!r}", family.extra, error) from error
    except BaseException as error:
        raise BadInput(f"cannot import {family.package!r} for {name!r}: {reason(error)}") from error


def prepare_package_of(spec: EnvSpec) -> None:
    """Make the package of an environment work with the versions that we test with."""
    if not str(spec.entry_point).startswith("gymnasium_robotics."):
        return
    utils: Any = importlib.import_module("gymnasium_robotics.utils.mujoco_utils")
    # Version 1.4.2 asserts that a NumPy number is in a tuple of joint types. Those of MuJoCo 3.17 and 4.0 do not equal
    # NumPy's numbers, so every arm and hand fails; plain integers do.
    if isinstance(utils.mujoco, ModuleType):
        joints = {name: int(value) for name, value in utils.mujoco.mjtJoint.__members__.items()}
        utils.mujoco = SimpleNamespace(**{**vars(utils.mujoco), "mjtJoint": SimpleNamespace(**joints)})


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
    known[OneHotCells.__name__] = OneHotCells
    if name in known:
        return known[name]
    raise BadInput(f"unknown wrapper {name!r}; {did_you_mean(name, known)}; for one of your own: module:NAME")
