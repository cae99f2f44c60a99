"""Games of several agents who act at the same time: PettingZoo's parallel API, by name and by object."""

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from drl.core.errors import BadInput, MissingExtra, did_you_mean
from drl.core.specs import RawObs
from drl.envs.faults import reason
from drl.envs.known_packages import is_installed
from drl.envs.spaces import EnvKwargs, GymSpace, Info
from drl.envs.user_objects import import_for
from drl.envs.wrapper_names import FoundWrapper

PREFIX = "pettingzoo:"
FAMILIES = ("atari", "butterfly", "classic", "sisl")  # folders of the package `pettingzoo`


class Game(Protocol):
    """PettingZoo's `ParallelEnv`, as far as it is used here."""

    possible_agents: list[str]
    agents: list[str]  # those who act next
    metadata: Info
    render_mode: str | None

    def observation_space(self, agent: str) -> GymSpace:
        """Of one agent."""

    def action_space(self, agent: str) -> GymSpace:
        """Of one agent."""

    def reset(self, seed: int | None = None) -> tuple[dict[str, RawObs], dict[str, Info]]: ...
    def step(self, actions: dict[str, object]) -> tuple[
        dict[str, RawObs], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Info]
    ]: ...  # fmt: skip
    def render(self) -> Any:
        """A picture of the game."""

    def close(self) -> None: ...


class SeveralAgents(BadInput):
    """A game of several agents where one Gymnasium environment is expected."""

    def __init__(self, name: str):
        super().__init__(f"{name} is a game of several agents; expected an environment with one agent (Gymnasium)")


def game_module(env_id: str) -> str:
    """The module of `pettingzoo:NAME`: NAME, below `pettingzoo` if it is one of its families. Its `mpe` is `mpe2` now.

    >>> game_module("pettingzoo:butterfly.pistonball_v6"), game_module("pettingzoo:mpe2.simple_spread_v3")
    ('pettingzoo.butterfly.pistonball_v6', 'mpe2.simple_spread_v3')
    """
    name = re.sub(r"^mpe\.", "mpe2.", env_id.removeprefix(PREFIX))
    return f"pettingzoo.{name}" if name.partition(".")[0] in FAMILIES else name


def find_game(env_id: str) -> Callable[..., object]:
    """The function that makes the game `pettingzoo:NAME`: its module's `parallel_env`, else `env`."""
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
    return make  # type: ignore[no-any-return]


def _cannot_import(env_id: str, module: str, error: BaseException | None) -> BadInput:
    missing = error.name or "" if isinstance(error, ImportError) else ""
    package, _, last = module.rpartition(".")
    if missing in ("mpe2", "pygame"):
        return MissingExtra(f"environment {env_id!r}", "pettingzoo", missing)
    if missing and not module.startswith(missing) and module.startswith("pettingzoo."):
        needs = f"pip install 'pettingzoo[{module.split('.')[1]}]'"
        return BadInput(f"environment {env_id!r} needs the module {missing!r}; install it with: {needs}")
    said = f"cannot import {module!r} for {env_id!r}: {'' if error is None else reason(error)}"
    known = _games_in(package)
    return BadInput(f"{said}; {did_you_mean(last, known)}" if known else said)


def _games_in(package: str) -> list[str]:
    """Names of the modules of a package that are games of PettingZoo."""
    found = sys.modules.get(package)
    names = (module.name for module in pkgutil.iter_modules(getattr(found, "__path__", [])))
    return [name for name in names if re.search(r"_v\d+$", name)]


def is_game(env: object) -> bool:
    """Whether an object is an environment of PettingZoo."""
    library = sys.modules.get("pettingzoo")
    return library is not None and isinstance(env, library.ParallelEnv | library.AECEnv)


def as_parallel(env: object, name: str) -> Game:
    """A game in which all agents act at once. PettingZoo converts those in turns, if these say that they allow it."""
    library = sys.modules.get("pettingzoo")
    if library is None or not is_game(env):
        raise BadInput(f"{name} gave {type(env).__name__}; expected a ParallelEnv of PettingZoo")
    if isinstance(env, library.ParallelEnv):
        return env  # type: ignore[no-any-return]
    if not env.metadata.get("is_parallelizable"):  # type: ignore[attr-defined]
        raise BadInput(
            f"{name} is played in turns (PettingZoo's AEC API); expected a game in which all agents act at once, "
            "such as pettingzoo:mpe2.simple_spread_v3"
        )
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(env)  # type: ignore[no-any-return]


def make_game(call: Callable[[], object], name: str, env_kwargs: EnvKwargs, wrappers: Iterable[FoundWrapper]) -> Game:
    """A game with its wrappers around it, which take and give a `ParallelEnv`."""
    try:
        game = as_parallel(call(), name)
    except BadInput:
        raise
    except BaseException as error:
        raise BadInput(f"cannot make {name!r} with env_kwargs={env_kwargs}: {reason(error)}") from error
    for wrapper in wrappers:
        game = as_parallel(wrapper(game), f"the wrapper {wrapper.name!r}")
    return game
