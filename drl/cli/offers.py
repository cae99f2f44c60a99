"""`drl list` and `drl.list`: the algorithms, presets and environments that there are."""

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from drl.agents.agent_env import JAX_ONLY
from drl.algorithms import ALGORITHMS
from drl.cli.flags import Positional
from drl.core.errors import BadInput, did_you_mean, html_table
from drl.core.network_parts import import_plugins
from drl.settings.preset_records import COLUMNS, zoo_rows
from drl.settings.presets import list_named

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


@dataclass(frozen=True)
class ListCommand:
    """Show algorithms, presets and environments."""

    sections: Positional[tuple[str, ...]] = ()  # algorithms, presets and envs; default: all three
    all: bool = False  # also list environments that are not available here, and why
    plugins: tuple[str, ...] = ()  # your own modules to import first; their algorithms are listed, too

    def __call__(self) -> None:
        import_plugins(self.plugins)
        list(*self.sections, all=self.all, console=True)


class OfferedPreset(NamedTuple):
    """A row of the table in docs/zoo.md."""

    algorithm: str
    env: str
    score: str  # of `drl reproduce`; empty where nothing was measured
    worst_seed: str
    seeds: str
    steps: str
    time: str
    answer: str  # PASS, FAIL or UNDECIDED
    published: str


@dataclass(frozen=True, repr=False)
class Offers:
    """The result of `list`. Sections that were not requested are empty."""

    sections: tuple[str, ...]
    algorithms: dict[str, str]  # name → summary
    presets: tuple[OfferedPreset, ...]
    envs: dict[str, str | None]  # name → what is missing to make it; None: nothing

    def __str__(self) -> str:
        texts = {"algorithms": self._algorithms, "presets": self._presets, "envs": self._envs}
        lines = (line for name in self.sections for line in (f"{name}:", *(f"  {text}" for text in texts[name]())))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Offers({', '.join(f'{len(getattr(self, name))} {name}' for name in self.sections)})"

    def _algorithms(self) -> tuple[str, ...]:
        return tuple(f"{name:10} {summary}" for name, summary in self.algorithms.items())

    def _presets(self) -> tuple[str, ...]:
        table = [COLUMNS, *self.presets]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
        for_any = ", ".join(f"{algorithm}: --preset {name}" for algorithm, name in list_named())
        hints = ("train with one: drl train ALGORITHM --env ENVIRONMENT", f"for every environment: {for_any}")
        return (*lines, "", *hints)

    def _envs(self) -> tuple[str, ...]:
        return tuple(f"{name:40} {lack or ''}".rstrip() for name, lack in self.envs.items())

    def _repr_html_(self) -> str:
        tables = {
            "algorithms": html_table(("algorithm", ""), self.algorithms.items(), "algorithms"),
            "presets": html_table(COLUMNS, self.presets, "presets"),
            "envs": html_table(("environment", "lacks"), ((n, lack or "") for n, lack in self.envs.items()), "envs"),
        }
        return "".join(tables[name] for name in self.sections)


def list(*sections: str, all: bool = False, console: bool = False) -> Offers:
    """Algorithms, presets and environments as data. `sections` are algorithms, presets and envs; none: all three.

    Environments that cannot be made here are left out; with `all` they are listed with what they lack.
    """
    for name in sections:
        if name not in SECTIONS:
            raise BadInput(f"unknown section {name!r}; {did_you_mean(name, [*SECTIONS, '--all'])}")
    asked = sections or SECTIONS
    offers = Offers(
        asked,
        {record.name: record.summary for record in ALGORITHMS.values()} if "algorithms" in asked else {},
        tuple(OfferedPreset(*row) for row in zoo_rows()) if "presets" in asked else (),
        _offered_envs(all) if "envs" in asked else {},
    )
    if console:
        print(offers)
    return offers


def _offered_envs(everything: bool) -> dict[str, str | None]:
    """Return the environments that can be made here, or all of them with what they lack. None is made."""
    import gymnasium as gym

    offers = {name: _lacks(spec) for name, spec in sorted(gym.registry.items()) if not name.startswith("ALE/")}
    offers |= {f"{prefix}NAME": _not_installed(*needs) for prefix, needs in FAMILIES.items()}
    return {name: lack for name, lack in offers.items() if everything or lack is None}


def _lacks(spec: "EnvSpec") -> str | None:
    """Return what an environment lacks; None: nothing."""
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
