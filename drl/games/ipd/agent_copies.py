"""Trained agents as players of a game."""

import copy
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from drl.core.specs import Array


class Actor(Protocol):
    """Anything with `act(obs)`; sampling also needs `act(obs, explore=True)`."""

    @property
    def act(self) -> Callable[..., Array]:
        """What chooses moves."""


ActorT = TypeVar("ActorT", bound=Actor)


def own_copy(agent: ActorT, rng: np.random.Generator | None = None) -> ActorT:
    """A copy with shared weights and its own rnn_state, at the start of a game.

    A recurrent agent can play against itself, and training is not affected. With `rng` the copy explores from it.
    """
    mine = copy.copy(agent)
    if hasattr(mine, "begin"):
        mine.begin()
    if rng is not None and hasattr(mine, "rng"):
        mine.rng = rng
    return mine


def rounds_seen(agent: object, otherwise: int) -> int:
    """Rounds in the agent's observations, from its `obs_spec`; `otherwise` if it has none."""
    spec = getattr(agent, "obs_spec", None)
    return otherwise if spec is None else int(spec.shape[0])
