"""`make settings`: write drl/core/settings.py, which editors and type checkers read.

It describes every setting of `drl train` and `drl search`, and those of models and replay buffers that are built by
hand, with the types and comments of the configs that state them.
"""

import dataclasses
import inspect
import re
import subprocess
import sys
import textwrap
import typing
from pathlib import Path

from drl.cli.completion import SETTINGS, Words
from drl.core import settings
from drl.core.algorithms import ALGORITHMS
from drl.core.configs import (
    OPTIMIZER_NAMES,
    ActorCriticConfig,
    ConfigClass,
    ModelConfig,
    QModelConfig,
    ReplayConfig,
    stated_type,
)
from drl.core.network_parts import ACTIVATIONS, INITIALIZATIONS
from drl.core.schedules import EPSILON_SHAPES, RATE_SHAPES
from drl.experiment.config import OF_A_RUN, RunConfig
from drl.experiment.scaling_config import ScalingConfig
from drl.search.search_plan import PRUNERS, SearchConfig
from drl.search.search_space import MODES

NOT_HERE = ("env", "env_kwargs", "wrappers")  # arguments of `train` and `search` with types of their own
OF_SEEDS = ("num_seeds", "seeds", "workers")  # settings of several runs
# Of parts built by hand: the name of the description, and the config that it describes.
PARTS: dict[str, tuple[ConfigClass, str]] = {
    "ModelSettings": (ModelConfig, "a policy model, with or without a value"),
    "QModelSettings": (QModelConfig, "a model of action values"),
    "ActorCriticSettings": (ActorCriticConfig, "an actor with critics"),
    "ReplaySettings": (ReplayConfig, "a replay buffer"),
}
FILES = ("results_dir", "fallback_dir", "from_agent", "storage")
# The values of a setting that has no others.
CHOICES: Words = {
    **{name: SETTINGS[f"--{name}"] for name in ("engine", "vectorization", "compile")},
    "recurrent": ("none", "gru", "lstm"),
    "distribution": ("auto", "gaussian", "tanh_gaussian"),
    "distributional": ("none", "c51", "qr"),
    "her": ("none", "future", "final", "episode"),
    "noise": ("gaussian", "ornstein_uhlenbeck"),
    "target_q": ("min", "mean"),
    "actor_q": ("min", "mean", "first"),
    "loss": ("huber", "squared"),
    "baseline": ("none", "mean", "value"),
    "mode": MODES,
    "pruner": PRUNERS,
}
# The values that editors propose for a setting that takes others too.
PROPOSED: Words = {
    **{name: SETTINGS[f"--{name}"] for name in ("device", "backbone")},
    "cluster": ("local", "auto"),
    "activation": tuple(ACTIVATIONS),
    "optimizer": OPTIMIZER_NAMES,
    "init": ("auto", *INITIALIZATIONS),
    "epsilon_schedule": EPSILON_SHAPES,
}
HEADER = '''"""The settings of `drl.train` and its like, and of parts built by hand, for editors and type checkers.

Written by `make settings` from the configs that state them; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from drl.core.configs import AnyPath, Number, Rate, Switch, Whole
from drl.core.network_parts import Factory

if TYPE_CHECKING:
    import torch

'''


class Stated(typing.NamedTuple):
    """A setting in one config."""

    algorithm: str  # "": of every algorithm
    kind: ConfigClass
    default: object


def text() -> str:
    """The file, as it should be."""
    run = _of({"": (RunConfig, ScalingConfig)})
    learning = _of({record.name: tuple(record.parts.values()) for record in ALGORITHMS.values()})
    every = {name: stated for name, stated in (run | learning).items() if name not in NOT_HERE}
    trainer = {name: stated for name, stated in every.items() if name not in OF_A_RUN.split()}
    one = {name: stated for name, stated in every.items() if name not in {*trainer, *OF_SEEDS}}
    seeds = {name: every[name] for name in OF_SEEDS}
    search = {name: stated for name, stated in _of({"": (SearchConfig,)}).items() if name not in {*every, *NOT_HERE}}
    parts = [
        f"{HEADER}AlgorithmName = {_literal(ALGORITHMS)} | str  # also one that a plugin registers\n",
        _described("TrainerSettings", "TypedDict", "Of `drl.make_trainer`; defaults without a preset.", trainer),
        _described("Settings", "TrainerSettings", "Of `drl.train`: of a trainer and of its run.", one),
        _described("SeedsSettings", "Settings", "Of `drl.train_seeds`: of runs that differ in their seed.", seeds),
        _described("SearchSettings", "Settings", "Of `drl.search`: of the search and of its trials.", search),
        *(
            _described(name, "TypedDict", f"Of {what}: the fields of `{kind.__name__}`.", _of({"": (kind,)}))
            for name, (kind, what) in PARTS.items()
        ),
    ]
    ruff = [sys.executable, "-m", "ruff", "format", "-"]
    return subprocess.run(ruff, input="\n\n".join(parts), check=True, capture_output=True, text=True).stdout


def _of(configs: dict[str, tuple[ConfigClass, ...]]) -> dict[str, list[Stated]]:
    found: dict[str, list[Stated]] = {}
    for algorithm, kinds in configs.items():
        for kind in kinds:
            for field in dataclasses.fields(kind):
                found.setdefault(field.name, []).append(Stated(algorithm, kind, field.default))
    return found


def _described(name: str, base: str, summary: str, settings: dict[str, list[Stated]]) -> str:
    lines = [f"class {name}({base}, total=False):", f'    """{summary}"""', ""]
    for setting, stated in settings.items():
        lines.append(f"    {setting}: {_type(setting, stated)}")
        lines += textwrap.wrap(
            f'"""{_comment(setting, stated)}"""', 120, initial_indent="    ", subsequent_indent="    "
        )
    return "\n".join(lines) + "\n"


def _type(name: str, stated: list[Stated]) -> str:
    """What a setting takes: the types that the configs state, and those that are converted to them."""
    options = dict.fromkeys(option for each in stated for option in _options(name, each.kind))
    return " | ".join(sorted(options, key=lambda option: option == "None"))


def _options(name: str, kind: ConfigClass) -> list[str]:
    wanted, optional = stated_type(kind, name)
    ending = ["None"] if optional else []
    if hasattr(kind, f"{name.removesuffix('_start')}_schedule"):
        return ["Rate", *ending]
    if name in CHOICES:
        return [_literal(CHOICES[name]), *ending]
    if name.endswith("_schedule") or name in PROPOSED:
        own = [_literal(PROPOSED.get(name, RATE_SHAPES)), "str"]
        if name.endswith("_schedule"):
            own.append("Callable[[float], float]")
        elif name in ("activation", "init", "optimizer"):
            own.append("Factory")
        elif name == "device":
            own.append("torch.device")
        return own + ending
    if name == "optimizer_kwargs":
        return ["Mapping[str, object]", "list[str]", "tuple[str, ...]"]
    if typing.get_origin(wanted) is tuple:
        items = {int: "Sequence[Whole]", str: "list[str] | tuple[str, ...]"}
        pairs = ["Mapping[str, object]"] if name.endswith("_kwargs") else []
        return [items[typing.get_args(wanted)[0]], *pairs, *ending]
    plain = {int: "Whole", float: "Number", bool: "Switch", str: "AnyPath" if name in FILES else "str"}
    return [plain[wanted], *ending]


def _literal(options: typing.Iterable[str]) -> str:
    return f"Literal[{', '.join(repr(option) for option in options).replace(chr(39), chr(34))}]"


def _comment(name: str, stated: list[Stated]) -> str:
    """What a setting means, its default and its algorithms. Where algorithms differ, most of them come first."""
    meanings, defaults = dict[str, list[str]](), dict[str, list[str]]()
    for each in stated:
        meanings.setdefault(comment_of(each.kind, name).rstrip("."), []).append(each.algorithm)
        defaults.setdefault(repr(each.default), []).append(each.algorithm)
    said = [*_by_users(meanings)]
    if list(defaults) != ["()"] and not (list(defaults) == ["None"] and re.search("None|efault", said[0])):
        said.append(f"Default: {'; '.join(_by_users(defaults))}")
    own = dict.fromkeys(each.algorithm for each in stated)
    others = [algorithm for algorithm in ALGORITHMS if algorithm not in own]
    if "" not in own and others:
        said.append(f"Of {', '.join(own)}" if len(own) <= len(others) else f"Not of {', '.join(others)}")
    return "".join(f"{part}. " for part in said).strip()


def _by_users(groups: dict[str, list[str]]) -> list[str]:
    """Each text with its algorithms behind it, the most common one without."""
    first, *others = sorted(groups, key=lambda text: -len(groups[text]))
    return [first, *(f"{text} ({', '.join(groups[text])})" for text in others)]


def comment_of(kind: ConfigClass, name: str) -> str:
    """The comment beside a config's field, or above it.

    >>> comment_of(RunConfig, "seed")
    'root of every random stream'
    """
    for each in inspect.getmro(kind):
        if name not in vars(each).get("__annotations__", {}):
            continue
        lines = inspect.getsource(each).splitlines()
        place = next(n for n, line in enumerate(lines) if re.match(rf"    {name}:", line))
        if "  # " in lines[place]:
            return lines[place].partition("  # ")[2]
        above: list[str] = []
        while lines[place - 1 - len(above)].startswith("    # "):
            above.insert(0, lines[place - 1 - len(above)].removeprefix("    # "))
        return " ".join(above)
    raise KeyError(f"{kind.__name__} has no field {name}")


if __name__ == "__main__":
    Path(str(settings.__file__)).write_text(text(), encoding="utf-8")
