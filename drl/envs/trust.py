"""Whose word is enough to import a module: an environment `module:Id` runs the module's code."""

import importlib.util
import shlex
import site
import sysconfig
from pathlib import Path

from drl.core.errors import BadInput

# Packages of environments that people of this field have installed; none does more on import than register itself.
KNOWN_PACKAGES = (
    "ale_py",
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
    "procgen",
    "safety_gymnasium",
)


def check_trusted(env_id: str, source: str, command: str) -> None:
    """Raise if an id that stands in a file names a module which only the person at the keyboard may have imported.

    `source` is the file; `command` is what to type in front of `--env`.
    """
    module, _, _ = env_id.rpartition(":")
    if not module or _is_known(module):
        return
    raise BadInput(
        f"{source} names the environment {env_id!r}, and importing the module {module!r} runs its code; if you trust "
        f"it, name it yourself: {command} --env {shlex.quote(env_id)} (or add --trust)"
    )


def is_known_package(module: str) -> bool:
    return module.partition(".")[0] in KNOWN_PACKAGES


def _is_known(module: str) -> bool:
    """Whether it is a known package and what would be imported is the installed one, not a file of that name here."""
    package = module.partition(".")[0]
    if not is_known_package(module):
        return False
    if package == "drl":
        return True
    found = importlib.util.find_spec(package)  # of a top-level name: imports nothing
    if found is None:
        return True  # not installed, and a known name is never looked for in the current folder: the import will fail
    places = {*site.getsitepackages(), site.getusersitepackages(), *map(sysconfig.get_path, ("purelib", "platlib"))}
    origin = Path(found.origin or next(iter(found.submodule_search_locations or ("/",)))).resolve()
    return any(origin.is_relative_to(Path(place).resolve()) for place in places)
