"""`drl list`: the algorithms, presets and environments."""

from drl.core.algorithms import ALGORITHMS
from drl.core.errors import BadInput, did_you_mean
from drl.experiment.open_envs import JAX_ONLY
from drl.experiment.preset_records import COLUMNS, zoo_rows

SECTIONS = ("algorithms", "presets", "envs")


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("-h", "--help"):
        print("usage: drl list [algorithms] [presets] [envs]")
        return 0
    for name in arguments:
        if name not in SECTIONS:
            raise BadInput(f"unknown section {name!r}; {did_you_mean(name, SECTIONS)}")
    for name in arguments or SECTIONS:
        print(f"{name}:")
        for line in {"algorithms": _algorithms, "presets": _presets, "envs": _envs}[name]():
            print(f"  {line}")
    return 0


def _algorithms() -> list[str]:
    return [f"{record.name:10} {record.summary}" for record in ALGORITHMS.values()]


def _presets() -> list[str]:
    """The table of docs/zoo.md without its commands."""
    table = [COLUMNS, *zoo_rows()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
    return [*lines, "", "train with one: drl train ALGORITHM --env ENVIRONMENT"]


def _envs() -> list[str]:
    import gymnasium as gym

    return [*sorted(gym.registry), *(f"{prefix}NAME, stepped in JAX (extra {prefix[:-1]})" for prefix in JAX_ONLY)]
