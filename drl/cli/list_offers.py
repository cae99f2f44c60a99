"""`drl list`: the algorithms, presets and environments."""

import importlib.util
from typing import TYPE_CHECKING

from drl.core.algorithms import ALGORITHMS
from drl.core.errors import BadInput, did_you_mean
from drl.experiment.open_envs import JAX_ONLY
from drl.experiment.preset_records import COLUMNS, zoo_rows
from drl.experiment.presets import list_named

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

SECTIONS = ("algorithms", "presets", "envs")
# Where an environment's code is → the module that it imports and the extra that brings it.
NEEDS = {
    "gymnasium.envs.box2d": ("Box2D", "box2d"),
    "gymnasium.envs.mujoco": ("mujoco", "mujoco"),
    "gymnasium.envs.phys2d": ("jax", "jax"),
    "gymnasium.envs.tabular": ("jax", "jax"),
}
FAMILIES = {"ALE/": ("ale_py", "atari")} | {prefix: (prefix[:-1], prefix[:-1]) for prefix in JAX_ONLY}


def main(arguments: list[str]) -> int:
    """Run `drl list`."""
    if arguments and arguments[0] in ("-h", "--help"):
        print("usage: drl list [algorithms] [presets] [envs] [--all]\n\n--all: also what cannot be made here, and why")
        return 0
    names = [name for name in arguments if name != "--all"]
    for name in names:
        if name not in SECTIONS:
            raise BadInput(f"unknown section {name!r}; {did_you_mean(name, [*SECTIONS, '--all'])}")
    everything = "--all" in arguments
    sections = {"algorithms": _algorithms, "presets": _presets, "envs": lambda: _envs(everything)}
    for name in names or SECTIONS:
        print(f"{name}:")
        for line in sections[name]():
            print(f"  {line}")
    return 0


def _algorithms() -> list[str]:
    return [f"{record.name:10} {record.summary}" for record in ALGORITHMS.values()]


def _presets() -> list[str]:
    """The table of docs/zoo.md without its commands."""
    table = [COLUMNS, *zoo_rows()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
    for_any = [f"{algorithm}: --preset {name}" for algorithm, name in list_named()]
    hints = ["train with one: drl train ALGORITHM --env ENVIRONMENT", f"for every environment: {', '.join(for_any)}"]
    return [*lines, "", *hints]


def _envs(everything: bool) -> list[str]:
    """What can be made here, or all with what is missing. Nothing is made, so that it takes no time."""
    import gymnasium as gym

    offers = {name: _lacks(spec) for name, spec in sorted(gym.registry.items()) if not name.startswith("ALE/")}
    offers |= {f"{prefix}NAME": _not_installed(*needs) for prefix, needs in FAMILIES.items()}
    return [f"{name:40} {lack or ''}".rstrip() for name, lack in offers.items() if everything or lack is None]


def _lacks(spec: "EnvSpec") -> str | None:
    """What is missing to make an environment; None: nothing."""
    if not isinstance(spec.entry_point, str):
        raises = getattr(spec.entry_point, "__module__", "") == "gymnasium.envs"  # a function that says what to do
        return "has left Gymnasium; making it says where it is" if raises else None
    module = spec.entry_point.partition(":")[0]
    for place, needs in NEEDS.items():
        if module.startswith(place):
            return _not_installed(*needs)
    package = module.partition(".")[0]
    return None if importlib.util.find_spec(package) is not None else f"needs the package {package}"


def _not_installed(module: str, extra: str) -> str | None:
    if importlib.util.find_spec(module) is not None:
        return None
    return f"needs {module}: pip install 'drl-workshop[{extra}]'"
