"""Well-known packages of environments. Their import only registers environments."""

import importlib.util
import site
import sysconfig
from pathlib import Path

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
