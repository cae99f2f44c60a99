"""Environments and wrappers by name.

- names of `drl.core.network_parts`: objects passed in Python, or defined by a module or file (`find_object`)
- ids of well-known packages, without `module:` in front: the package is imported (`import_package_of`)
- wrappers: `TimeLimit:max_episode_steps=200`, `minigrid.wrappers:FlatObsWrapper`, `my_file.py:MyWrapper`
- games of several agents: `pettingzoo:NAME` (`find_game`)
"""

import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, Protocol, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from drl.core.errors import BadInput, MissingExtra, did_you_mean
from drl.core.network_parts import IN_MEMORY, given_objects, is_given, name_of
from drl.core.safe_files import parse_yaml
from drl.core.specs import RawObs
from drl.envs.env_wrappers import OneHotCells
from drl.envs.faults import reason
from drl.envs.spaces import GymEnv, GymSpace, Info

WrapperLike = str | Callable[..., GymEnv]  # a name, or a class or function that takes an environment
Env = TypeVar("Env")
PACKAGES = (
    "ale_py brax bsuite drl gymnasium gymnasium_robotics gymnax highway_env metaworld minigrid miniwob miniworld "
    "mo_gymnasium mpe2 pettingzoo procgen safety_gymnasium supersuit"
)


class ParallelGame(Protocol):
    """The part of PettingZoo's `ParallelEnv` that we use."""

    possible_agents: list[str]
    agents: list[str]  # those that act next
    metadata: Info
    render_mode: str | None

    def observation_space(self, agent: str) -> GymSpace:
        """The observation space of one agent."""

    def action_space(self, agent: str) -> GymSpace:
        """The action space of one agent."""

    def reset(self, seed: int | None = None) -> tuple[dict[str, RawObs], dict[str, Info]]: ...
    def step(self, actions: dict[str, object]) -> tuple[
        dict[str, RawObs], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Info]
    ]: ...  # fmt: skip
    def render(self) -> Any:
        """A picture of the game."""

    def close(self) -> None: ...


class Family(NamedTuple):
    """Environments of one package."""

    ids: str  # pattern that their ids begin with
    package: str  # its import registers them
    extra: str  # our extra that installs it


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
HOMES = ("gymnasium.wrappers", "minigrid.wrappers")  # modules whose wrappers need no module in their name
PREFIX = "pettingzoo:"
GAME_FAMILIES = ("atari", "butterfly", "classic", "sisl")  # folders of the package `pettingzoo`


def is_known_package(module: str) -> bool:
    """Whether it is a module of a known package, not a file such as `minigrid.py` or `drl.x/y.py`."""
    return module.partition(".")[0] in PACKAGES.split() and not module.endswith(".py")


def is_installed(module: str) -> bool:
    """Whether it is a known package, and its import finds the installed one, not a file in the current folder."""
    package = module.partition(".")[0]
    if not is_known_package(module):
        return False
    if package == "drl":
        return True
    found = importlib.util.find_spec(package)  # imports nothing for a top-level name
    if found is None:
        return True  # not installed: the import will fail
    places = {*site.getsitepackages(), site.getusersitepackages(), *map(sysconfig.get_path, ("purelib", "platlib"))}
    origin = Path(found.origin or next(iter(found.submodule_search_locations or ("/",)))).resolve()
    return any(origin.is_relative_to(Path(place).resolve()) for place in places)


def find_object(name: str) -> object | None:
    """Return the object of this name, passed in Python or defined by its module or file; None: not defined there."""
    if is_given(name):
        return given_objects()[name]
    module, _, label = name.rpartition(":")
    return getattr(import_for(name), label, None) if module else None


def import_for(name: str) -> ModuleType:
    """Import the module or file of `module:NAME`, which runs its code."""
    source = name.rpartition(":")[0]
    if source == IN_MEMORY:
        raise BadInput(
            f"{name!r} is an object of the program that trained with it, and no file defines it; in Python pass it "
            "again, as env= or wrappers="
        )
    try:
        if source.endswith(".py"):
            return _import_file(Path(source))
        if "" not in sys.path and os.getcwd() not in sys.path and not is_known_package(source):
            sys.path.append(os.getcwd())  # console scripts do not search the current folder
        return importlib.import_module(source)
    except BaseException as error:  # a user's module can raise anything
        raise BadInput(f"cannot import {source!r} for {name!r}: {reason(error)}") from error


def _import_file(path: Path) -> ModuleType:
    """Import a Python file as a module, once."""
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
    """Import the well-known package that registers this id, if any."""
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
    """Repair the package of an environment for the versions that we test with."""
    if not str(spec.entry_point).startswith("gymnasium_robotics."):
        return
    utils: Any = importlib.import_module("gymnasium_robotics.utils.mujoco_utils")
    # Version 1.4.2 asserts that a NumPy number is in a tuple of joint types. Those of MuJoCo 3.17 and 4.0 do not equal
    # NumPy's numbers, so every arm and hand fails; plain integers do.
    if isinstance(utils.mujoco, ModuleType):
        joints = {name: int(value) for name, value in utils.mujoco.mjtJoint.__members__.items()}
        utils.mujoco = SimpleNamespace(**{**vars(utils.mujoco), "mjtJoint": SimpleNamespace(**joints)})


def wrapper_names(wrappers: Iterable[WrapperLike]) -> tuple[str, ...]:
    """Return the names of wrappers; some of them may be objects."""
    if isinstance(wrappers, str) or callable(wrappers):
        wrappers = [wrappers]
    return tuple(wrapper if isinstance(wrapper, str) else name_of(wrapper) for wrapper in wrappers)


class FoundWrapper(NamedTuple):
    """A wrapper and its arguments."""

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
    """Find the class or function that a text names, with its arguments.

    >>> find_wrapper("TimeLimit:max_episode_steps=200").arguments
    {'max_episode_steps': 200}
    """
    name, arguments = split_wrapper(text)
    if ":" in name:
        found = find_object(name)
    else:
        installed = [home for home in HOMES if is_installed(home) and importlib.util.find_spec(home.partition(".")[0])]
        pairs = [pair for home in installed for pair in vars(importlib.import_module(home)).items()]
        known = {name: each for name, each in pairs if isinstance(each, type) and issubclass(each, gym.Wrapper)}
        known[OneHotCells.__name__] = OneHotCells
        if name not in known:
            raise BadInput(f"unknown wrapper {name!r}; {did_you_mean(name, known)}; for one of your own: module:NAME")
        found = known[name]
    if not callable(found):
        raise BadInput(f"wrapper {name!r}: its module defines no class or function of that name")
    return FoundWrapper(text, found, arguments)


def split_wrapper(text: str) -> tuple[str, dict[str, Any]]:
    """Split a text into the name of a wrapper and its arguments.

    >>> split_wrapper("my_file.py:Shift:by=2,axes=[0, 1]")
    ('my_file.py:Shift', {'by': 2, 'axes': [0, 1]})
    """
    name, _, options = text.rpartition(":") if "=" in text.rpartition(":")[2] else (text, "", "")
    if not name:
        raise BadInput(f"wrapper {text!r}: expected NAME, module:NAME or file.py:NAME, then perhaps :k=v,k=v")
    # A comma separates arguments where a name and = follow it.
    pairs = re.split(r",(?=\s*\w+=)", options) if options else []
    try:
        return name, {key.strip(): parse_yaml(value) for key, value in (pair.split("=", 1) for pair in pairs)}
    except ValueError as error:
        raise BadInput(f"wrapper {text!r} has an argument that is not YAML: {error}") from None


def game_module(env_id: str) -> str:
    """Return the module of `pettingzoo:NAME`: NAME, inside `pettingzoo` if it is one of its families. `mpe` is now
    `mpe2`.

    >>> game_module("pettingzoo:butterfly.pistonball_v6"), game_module("pettingzoo:mpe2.simple_spread_v3")
    ('pettingzoo.butterfly.pistonball_v6', 'mpe2.simple_spread_v3')
    """
    name = re.sub(r"^mpe\.", "mpe2.", env_id.removeprefix(PREFIX))
    return f"pettingzoo.{name}" if name.partition(".")[0] in GAME_FAMILIES else name


def find_game(env_id: str) -> Callable[..., object]:
    """Return the function that makes the game `pettingzoo:NAME`: its module's `parallel_env`, else `env`."""
    if not is_installed("pettingzoo"):  # a file of this name in the current folder
        raise BadInput(
            f"{env_id!r} needs the installed package pettingzoo, but another module of its name is in the way"
        )
    try:
        importlib.import_module("pettingzoo")
    except ImportError as error:
        raise MissingExtra(f"environment {env_id!r}", "pettingzoo", error) from error
    module = game_module(env_id)
    try:
        found = import_for(f"{module}:parallel_env")
    except BadInput as error:
        raise _cannot_import(env_id, module, error.__cause__) from error
    make = getattr(found, "parallel_env", None) or getattr(found, "env", None)
    if not callable(make):
        raise BadInput(f"{module} has no parallel_env; expected a module with a function parallel_env(render_mode=…)")
    return make


def _cannot_import(env_id: str, module: str, error: BaseException | None) -> BadInput:
    missing = error.name or "" if isinstance(error, ImportError) else ""
    package, _, last = module.rpartition(".")
    if missing in ("mpe2", "pygame"):
        return MissingExtra(f"environment {env_id!r}", "pettingzoo", missing)
    if missing and not module.startswith(missing) and module.startswith("pettingzoo."):
        needs = f"pip install 'pettingzoo[{module.split('.')[1]}]'"
        return BadInput(f"environment {env_id!r} needs the module {missing!r}; install it with: {needs}")
    said = f"cannot import {module!r} for {env_id!r}: {'' if error is None else reason(error)}"
    siblings = pkgutil.iter_modules(getattr(sys.modules.get(package), "__path__", []))
    known = [each.name for each in siblings if re.search(r"_v\d+$", each.name)]  # games of PettingZoo
    return BadInput(f"{said}; {did_you_mean(last, known)}" if known else said)


def is_game(env: object) -> bool:
    """Whether an object is an environment of PettingZoo."""
    library = sys.modules.get("pettingzoo")
    return library is not None and isinstance(env, library.ParallelEnv | library.AECEnv)


def as_parallel(env: object, name: str) -> ParallelGame:
    """Return a game in which all agents act at once. PettingZoo converts turn-based ones that declare it possible."""
    library = sys.modules.get("pettingzoo")
    if library is None or not is_game(env):
        raise BadInput(f"{name} gave {type(env).__name__}; expected a ParallelEnv of PettingZoo")
    if isinstance(env, library.ParallelEnv):
        return env
    if not env.metadata.get("is_parallelizable"):  # type: ignore[attr-defined]
        raise BadInput(
            f"{name} is played in turns (PettingZoo's AEC API); expected a game in which all agents act at once, "
            "such as pettingzoo:mpe2.simple_spread_v3"
        )
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(env)
