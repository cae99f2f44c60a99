"""What a search may change, for every algorithm: plain tables, read by `search.py`.

A dimension's name is the setting's flat name; `width` stands for every hidden layer of the network at once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drl.core.errors import BadInput, did_you_mean


@dataclass(frozen=True)
class Real:
    """A number between two bounds, drawn on a logarithmic scale."""

    low: float
    high: float

    def suggest(self, trial: Any, name: str) -> float:
        return float(trial.suggest_float(name, self.low, self.high, log=True))

    def nearest(self, value: Any) -> float:
        return min(max(float(value), self.low), self.high)


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    options: tuple[Any, ...]

    def suggest(self, trial: Any, name: str) -> Any:
        return trial.suggest_categorical(name, self.options)

    def nearest(self, value: Any) -> Any:
        if value in self.options or isinstance(value, str):
            return value if value in self.options else self.options[0]
        return min(self.options, key=lambda option: abs(option - value))


Dimension = Real | Choice
Space = dict[str, Dimension]

SWITCH = Choice((False, True))
GAMMA = Choice((0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999))
WIDTH = Choice((32, 64, 128, 256))
GRAD_NORM = Choice((0.3, 0.5, 1.0, 2.0, 5.0))
ENTROPY = Real(1e-6, 0.1)
ACTIVATION = Choice(("tanh", "relu"))

# The one place where an algorithm's name becomes what is searched: (base, what `all` adds).
SPACES: dict[str, tuple[Space, Space]] = {
    "dqn": (
        {"learning_rate": Real(1e-5, 1e-2), "gamma": GAMMA, "tau": Real(1e-3, 1.0)},
        {
            "double": SWITCH,
            "dueling": SWITCH,
            "prioritized": SWITCH,
            "noisy": SWITCH,
            "distributional": Choice(("none", "c51", "qr")),
            "n_step": Choice((1, 2, 3, 5)),
            "batch_size": Choice((32, 64, 128, 256)),
            "width": WIDTH,
        },
    ),
    "ppo": (
        {"learning_rate": Real(1e-5, 1e-2), "gamma": GAMMA, "entropy_coef": ENTROPY},
        {
            "rollout_length": Choice((32, 64, 128, 256, 512, 1024, 2048)),
            "epochs": Choice((1, 4, 10, 20)),
            "minibatches": Choice((1, 4, 8, 32)),
            "gae_lambda": Choice((0.8, 0.9, 0.95, 0.98, 1.0)),
            "clip_range": Choice((0.1, 0.2, 0.3)),
            "max_grad_norm": GRAD_NORM,
            "activation": ACTIVATION,
            "width": WIDTH,
        },
    ),
    "a2c": (
        {"learning_rate": Real(1e-5, 1e-2), "gamma": GAMMA, "entropy_coef": ENTROPY},
        {
            "rollout_length": Choice((5, 8, 16, 32, 64, 128)),
            "gae_lambda": Choice((0.8, 0.9, 0.95, 0.98, 1.0)),
            "optimizer": Choice(("rmsprop", "adam")),
            "normalize_advantage": SWITCH,
            "max_grad_norm": GRAD_NORM,
            "activation": ACTIVATION,
            "width": WIDTH,
        },
    ),
    "reinforce": (
        {"learning_rate": Real(1e-5, 3e-2), "gamma": GAMMA, "entropy_coef": ENTROPY},
        {
            "episodes_per_step": Choice((1, 2, 4, 8, 16)),
            "baseline": Choice(("none", "mean", "value")),
            "normalize_advantage": SWITCH,
            "max_grad_norm": GRAD_NORM,
            "activation": ACTIVATION,
            "width": WIDTH,
        },
    ),
}
MODES = ("base", "all")


def space_for(algorithm: str, mode: str, num_envs: int = 1, budget: int | None = None) -> Space:
    """The dimensions of a search. `budget` in environment steps leaves out rollouts that would fill most of a trial.

    >>> list(space_for("dqn", "base"))
    ['learning_rate', 'gamma', 'tau']
    >>> space_for("ppo", "all", num_envs=8, budget=10_000)["rollout_length"].options
    (32, 64, 128)
    """
    if algorithm not in SPACES:
        raise BadInput(f"there is no search space for {algorithm!r}; {did_you_mean(algorithm, SPACES)}")
    if mode not in MODES:
        raise BadInput(f"mode is {mode!r}; expected 'base' or 'all'")
    base, more = SPACES[algorithm]
    space = base | (more if mode == "all" else {})
    rollouts = space.get("rollout_length")
    if isinstance(rollouts, Choice):
        longest = max((budget or 40_960) // (8 * num_envs), rollouts.options[0])  # at least eight in a trial
        space["rollout_length"] = Choice(tuple(length for length in rollouts.options if length <= longest))
    return space


def starting_point(space: Space, flat: Mapping[str, Any]) -> dict[str, Any]:
    """The point of the space nearest to these settings: the search's first trial.

    >>> space: Space = {"gamma": GAMMA, "tau": Real(0.01, 0.1), "width": WIDTH}
    >>> starting_point(space, {"gamma": 0.97, "tau": 1, "hidden_sizes": [99]})
    {'gamma': 0.98, 'tau': 0.1, 'width': 128}
    """
    values = {"width": (flat.get("hidden_sizes") or [64])[-1]} | dict(flat)
    return {name: one.nearest(values[name]) for name, one in space.items() if values.get(name) is not None}


def as_settings(values: Mapping[str, Any], layers: int = 2, images: bool = False) -> dict[str, Any]:
    """Flat settings from a trial's values: `width` becomes the layers it stands for.

    >>> as_settings({"gamma": 0.9, "width": 64}, layers=3)
    {'gamma': 0.9, 'hidden_sizes': [64, 64, 64]}
    >>> as_settings({"width": 128}, images=True)
    {'cnn_features': 512}
    """
    settings = {name: _rounded(value) for name, value in values.items() if name != "width"}
    if "width" in values:  # a network for images has one wide layer, four times as wide
        settings |= {"cnn_features": 4 * values["width"]} if images else {"hidden_sizes": [values["width"]] * layers}
    return settings


def _rounded(value: Any) -> Any:
    """Four significant digits: nobody can tell 0.00031234567 from 0.0003123, and presets are read by people."""
    if isinstance(value, float) and value and math.isfinite(value):
        return float(f"{value:.4g}")
    return value
