"""Trained agents at a table: what every seat needs to know about them."""

import copy
from typing import Any

import numpy as np


def own_copy(agent: Any, rng: np.random.Generator | None = None) -> Any:
    """A copy that shares the weights but remembers for itself, at the start of a game.

    A recurrent agent can so meet itself, and training does not notice. It explores from `rng` where one is given.
    """
    mine = copy.copy(agent)
    if hasattr(mine, "begin"):
        mine.begin()
    if rng is not None and hasattr(mine, "rng"):
        mine.rng = rng
    return mine


def rounds_seen(agent: Any, otherwise: int) -> int:
    """How many rounds the agent's observations show: it says so itself, or `otherwise`."""
    spec = getattr(agent, "obs_spec", None)
    return otherwise if spec is None else int(spec.shape[0])
