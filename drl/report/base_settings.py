"""The settings of a run without any flag: its preset, or the defaults of its algorithm."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from drl.algorithms import find_algorithm
from drl.core.errors import BadInput
from drl.core.specs import PlainDict, PlainValue
from drl.settings.experiment import AS_SET, Experiment
from drl.settings.presets import load_preset


class Base(NamedTuple):
    """Settings that a run's settings are compared with."""

    name: str  # in words
    settings: PlainDict


def base_of(settings: PlainDict, command: Sequence[str], compiled: PlainValue = None) -> Base | None:
    """Return the base settings; None if the algorithm or the preset is unknown. `command` is the typed command, which
    may name a preset. `compiled` is the run's record of its compilation."""
    algorithm, env = settings.get("algorithm"), settings.get("env")
    if not isinstance(algorithm, str) or not isinstance(env, str):
        return None
    named = _preset_named(command)
    try:
        find_algorithm(algorithm)  # before its name becomes part of a path
        preset = load_preset(algorithm, env, named)
        made = Experiment.from_flat((preset or {}) | {"algorithm": algorithm, "env": env}, "preset").to_flat()
    except BadInput:
        return None
    if isinstance(compiled, dict) and compiled.get("reason") != AS_SET:
        made["compile"] = settings.get("compile")  # the resolved value of auto is not a change
    words = f"preset {named} of {algorithm} for {env}" if named else f"preset of {algorithm} for {env}"
    return Base(words if preset is not None else f"defaults of {algorithm}", made)


def _preset_named(command: Sequence[str]) -> str | None:
    """
    >>> _preset_named(["drl", "train", "dqn", "--preset", "rainbow"]), _preset_named(["drl", "--preset=x"])
    ('rainbow', 'x')
    """
    for word, following in itertools.pairwise([*command, ""]):
        flag, equals, value = word.partition("=")
        if flag == "--preset":
            return (value if equals else following) or None
    return None
