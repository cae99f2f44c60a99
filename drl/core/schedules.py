"""Numbers that change during training. A schedule is a plain function of time.

The caller defines "time": the share of the budget used for learning rates and clip ranges (`Linear`), or environment
steps for exploration.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from drl.core.configs import EpsilonGreedyConfig


class Schedule(Protocol):
    def __call__(self, time: float) -> float: ...


@dataclass(frozen=True)
class Constant:
    """The same number at all times.

    >>> Constant(0.2)(0.9)
    0.2
    """

    value: float

    def __call__(self, time: float) -> float:
        return self.value


@dataclass(frozen=True)
class Linear:
    """From `start` at time 0 to `end` at time `over`, then `end`.

    >>> Linear(1.0, 0.0)(0.25), Linear(1.0, 0.0)(2.0)
    (0.75, 0.0)
    """

    start: float
    end: float
    over: float = 1.0

    def __call__(self, time: float) -> float:
        share = min(max(time / self.over, 0.0), 1.0)
        return self.start + (self.end - self.start) * share


@dataclass(frozen=True)
class Exponential:
    """end + (start − end)·exp(−time / decay).

    >>> Exponential(1.0, 0.0, 10.0)(0.0)
    1.0
    """

    start: float
    end: float
    decay: float

    def __call__(self, time: float) -> float:
        return self.end + (self.start - self.end) * math.exp(-time / self.decay)


def schedule(start: float, end: float | None) -> Schedule:
    """A config's pair `x`, `x_end`: constant when `x_end` is None, else linear over the budget."""
    return Constant(start) if end is None else Linear(start, end)


def epsilon_schedule(config: EpsilonGreedyConfig, noisy: bool, first_update: int) -> Schedule:
    """ε over environment steps. Noisy networks need no ε after their first update."""
    if noisy:
        return Linear(1.0, 0.0, first_update)
    shape = Exponential if config.epsilon_schedule == "exponential" else Linear
    return shape(config.epsilon_start, config.epsilon_end, config.epsilon_decay)
