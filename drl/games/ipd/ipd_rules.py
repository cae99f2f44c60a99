"""The rules of the iterated Prisoner's Dilemma, shared by both environments and the exact values.

Outcomes are numbered CC, CD, DC, DD = 0 … 3, the agent's move first. A state 0 … 4 is a player's view of the last
round: empty (nothing played yet), CC, CD, DC, DD. Moves are 0 (defect) and 1 (cooperate).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import Array

if TYPE_CHECKING:
    import jax

DEFECT, COOPERATE = 0, 1
OUTCOMES = ("CC", "CD", "DC", "DD")
STATES = ("start", *OUTCOMES)
OTHER_SIDE = np.array([0, 1, 3, 2, 4])  # own state → the same state seen by the other player
SURVIVAL = 0.95  # default
ONE_HOT = np.eye(len(STATES), dtype=np.float32)

Moves = TypeVar("Moves", int, Array, "jax.Array")  # of one game or of many


@dataclass(frozen=True)
class Rules:
    """The payoffs and the end of a game, checked.

    >>> Rules().survival, Rules(rounds=10).survival, Rules(payoffs=[2, -1, 3, 0]).payoffs
    (0.95, None, (2.0, -1.0, 3.0, 0.0))
    """

    payoffs: Sequence[float] = (3.0, 0.0, 5.0, 1.0)  # to the agent, after CC, CD, DC, DD
    survival: float | None = None  # chance that a game continues after a round; default 0.95 if rounds is None
    rounds: int | None = None  # or: every game has this many rounds
    history: int = 20  # rounds in an observation

    def __post_init__(self) -> None:
        payoffs = self.payoffs.tolist() if isinstance(self.payoffs, np.ndarray) else self.payoffs
        if not isinstance(payoffs, list | tuple) or len(payoffs) != 4 or not all(map(_is_finite, payoffs)):
            raise BadInput(f"payoffs = {self.payoffs!r}; expected four finite numbers, for CC, CD, DC and DD")
        object.__setattr__(self, "payoffs", tuple(map(float, payoffs)))
        if self.survival is not None and self.rounds is not None:
            raise BadInput(f"both survival ({self.survival}) and rounds ({self.rounds}) are given; choose one ending")
        if self.rounds is None:
            survival = SURVIVAL if self.survival is None else self.survival
            if not _is_finite(survival) or not 0 <= survival < 1:
                raise BadInput(f"survival = {survival!r}; expected a number from 0 to below 1, such as 0.95")
            object.__setattr__(self, "survival", float(survival))
        elif not _is_count(self.rounds):
            raise BadInput(f"rounds = {self.rounds!r}; expected a whole number, 1 or more")
        if not _is_count(self.history):
            raise BadInput(f"history = {self.history!r}; expected a whole number of rounds, 1 or more")

    @property
    def expected_rounds(self) -> float:
        """Mean rounds of a game. Divide the value of a game by it to get a payoff per round."""
        return 1 / (1 - self.survival) if self.survival is not None else float(self.rounds or 0)


def outcome_of(move: Moves, other: Moves) -> Moves:
    """The number of the outcome of two moves, or of two arrays of moves."""
    return 3 - 2 * move - other


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
