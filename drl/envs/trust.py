"""Which modules may be imported because a file names them: an environment `module:Id` runs the module's code."""

import importlib.util
import shlex
import site
import sysconfig
from pathlib import Path

from drl.core.errors import BadInput

# Common packages of environments; their import only registers the environments.
KNOWN_PACKAGES = (
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
    "procgen",
    "safety_gymnasium",
)


def check_trusted(env_id: str, source: str, command: str | None = None) -> None:
    """Raise if the id comes from a file and its module may only be imported when the user types it.

    `source` is the file; `command` is what to type in front of `--env`. None: only `--trust` helps.
    """
    module, _, _ = env_id.rpartition(":")
    if not module or _is_known(module):
        return
    advice = f"name it yourself: {command} --env {shlex.quote(env_id)} (or add --trust)" if command else "add --trust"
    what = f"the environment {env_id!r}, and importing the module {module!r} runs its code"
    raise BadInput(f"{source} names {what}; if you trust it, {advice}")


def is_known_package(module: str) -> bool:
    return module.partition(".")[0] in KNOWN_PACKAGES


def _is_known(module: str) -> bool:
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
