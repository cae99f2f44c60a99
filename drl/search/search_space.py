"""The search space of an algorithm, from its record, and conversion between its points and settings.

A dimension has the flat name of its setting; `width` is the width of all hidden layers.
"""

import math

from drl.algorithms import find_algorithm
from drl.algorithms.search_dimensions import Choice, Space
from drl.core.errors import BadInput
from drl.core.specs import PlainDict

MODES = ("base", "all")


def space_for(algorithm: str, mode: str, num_envs: int = 1, budget: int | None = None) -> Space:
    """The dimensions of a search. `budget` (environment steps) excludes rollouts that would fill most of a trial.

    >>> list(space_for("dqn", "base"))
    ['learning_rate', 'gamma', 'tau']
    >>> space_for("ppo", "all", num_envs=8, budget=10_000)["rollout_length"].options
    (32, 64, 128)
    """
    record = find_algorithm(algorithm)
    if not record.search_base:
        raise BadInput(f"the record of {algorithm!r} has no search space; give it search_base")
    if mode not in MODES:
        raise BadInput(f"mode is {mode!r}; expected 'base' or 'all'")
    space = dict(record.search_base) | (dict(record.search_all) if mode == "all" else {})
    rollouts = space.get("rollout_length")
    if isinstance(rollouts, Choice):
        longest = max((budget or 40_960) // (8 * num_envs), rollouts.options[0])  # at least eight rollouts in a trial
        space["rollout_length"] = Choice(tuple(length for length in rollouts.options if length <= longest))
    return space


def starting_point(space: Space, flat: PlainDict) -> PlainDict:
    """The point of the space nearest to these settings: the first trial of a search.

    >>> from drl.algorithms.search_dimensions import GAMMA, WIDTH, Real
    >>> space: Space = {"gamma": GAMMA, "tau": Real(0.01, 0.1), "width": WIDTH}
    >>> starting_point(space, {"gamma": 0.97, "tau": 1, "hidden_sizes": [99]})
    {'gamma': 0.98, 'tau': 0.1, 'width': 128}
    """
    values = {"width": (flat.get("hidden_sizes") or [64])[-1]} | dict(flat)
    return {name: one.nearest(values[name]) for name, one in space.items() if values.get(name) is not None}


def as_settings(values: PlainDict, layers: int = 2, images: bool = False) -> PlainDict:
    """Flat settings from a trial's values. `width` becomes `hidden_sizes` or `cnn_features`.

    >>> as_settings({"gamma": 0.9, "width": 64}, layers=3)
    {'gamma': 0.9, 'hidden_sizes': [64, 64, 64]}
    >>> as_settings({"width": 128}, images=True)
    {'cnn_features': 512}
    """
    settings = {name: _rounded(value) for name, value in values.items() if name != "width"}
    if "width" in values:  # a network for images has one hidden layer, four times as wide
        settings |= {"cnn_features": 4 * values["width"]} if images else {"hidden_sizes": [values["width"]] * layers}
    return settings


def _rounded(value: object) -> object:
    """Floats with four significant digits, so that presets are readable."""
    if isinstance(value, float) and value and math.isfinite(value):
        return float(f"{value:.4g}")
    return value
