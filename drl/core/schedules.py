"""Numbers that change during training. A schedule is a plain function of time.

A rate `x` of a config has two more settings. `x_schedule` is a shape, or a function from the fraction of time used
(0 … 1) to the value; `x_end` is the final value. Time is the budget for learning rates, clip ranges and entropy
coefficients, and a number of environment steps for exploration.
"""

import math
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Any

from drl.core.errors import BadInput, one_line
from drl.core.network_parts import name_in, register_in

Schedule = Callable[[float], float]  # time → the value
Values = Callable[[float], float]  # the fraction of time used, from 0 to 1 → the value


@dataclass(frozen=True)
class Constant:
    """A constant.

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
        return self.start + (self.end - self.start) * _share(time, self.over)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from `start` at time 0 to `end` at time `over`, then `end`: slow, fast, slow.

    >>> Cosine(1.0, 0.0)(0.5), Cosine(1.0, 0.0)(2.0)
    (0.5, 0.0)
    """

    start: float
    end: float
    over: float = 1.0

    def __call__(self, time: float) -> float:
        return self.end + (self.start - self.end) * 0.5 * (1.0 + math.cos(math.pi * _share(time, self.over)))


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


@dataclass(frozen=True)
class OfFunction:
    """A registered function, stretched over `over`."""

    name: str
    over: float = 1.0

    def __call__(self, time: float) -> float:
        return float(FUNCTIONS[self.name](_share(time, self.over)))


def _share(time: float, over: float) -> float:
    return min(max(time / over, 0.0), 1.0)


FUNCTIONS: dict[str, Values] = {}  # of users, by name
SHAPES: dict[str, type[Linear | Cosine | Exponential]] = {
    "linear": Linear,
    "cosine": Cosine,
    "exponential": Exponential,
}
RATE_SHAPES = ("auto", "constant", "linear", "cosine")  # auto: linear if there is an end, else constant
EPSILON_SHAPES = ("exponential", "linear", "cosine", "constant")


def register_schedule(name: str, function: Values) -> None:
    """Register a function from the fraction of time used (0 … 1) to the value, for `--learning-rate-schedule name` and
    the schedules of all other rates."""
    if name in (*RATE_SHAPES, *SHAPES):
        raise BadInput(f"there is a schedule {name!r} already; choose another name")
    register_in(FUNCTIONS, "schedule", name, function)


def settle_rates(config: object, *rates: str, shapes: tuple[str, ...] = RATE_SHAPES) -> None:
    """Check the settings of a config's rates. A function given as `x_schedule` or `x` is replaced by its name, and `x`
    becomes its largest value, which other rates are relative to."""
    for rate in rates:
        first, last, shape = _settings(config, rate)
        start, kind = getattr(config, first), getattr(config, shape)
        if callable(start):
            if kind != getattr(type(config), shape):
                raise BadInput(f"both {first} and {shape} are given, and {first} is a function; leave {shape} out")
            start, kind = getattr(type(config), first), start
        kind = name_in(FUNCTIONS, shape, kind, lambda function: function, shapes)
        if kind in FUNCTIONS:
            largest = _largest(kind)
            if start not in (getattr(type(config), first), largest):
                raise BadInput(
                    f"{first} is {start}, but the largest value of its schedule {kind!r} is {largest}; give "
                    f"{_flag(first)} {largest}, or leave it out"
                )
            start = largest
        if kind not in (*SHAPES, "auto") and getattr(config, last) != getattr(type(config), last):
            raise BadInput(
                f"{last} is {getattr(config, last)}, but {shape} is {kind!r}, which does not use it; give "
                f"{_flag(last)} {getattr(type(config), last)}, or another schedule"
            )
        object.__setattr__(config, first, start)
        object.__setattr__(config, shape, kind)


def schedule_of(config: object, rate: str, over: float = 1.0) -> Schedule:
    """Make the schedule of a config's rate. A shape without an `x_end` ends at 0."""
    first, last, shape = _settings(config, rate)
    start, end, kind = getattr(config, first), getattr(config, last, None), getattr(config, shape, "auto")
    if kind in FUNCTIONS:
        return OfFunction(kind, over)
    if kind == "constant" or (kind == "auto" and end is None):
        return Constant(start)
    return SHAPES["linear" if kind == "auto" else kind](start, end or 0.0, over)


def changing_rates(config: object, *rates: str) -> dict[str, Schedule]:
    """Return the schedules of rates that are not constant."""
    schedules = {rate: schedule_of(config, rate) for rate in rates}
    return {rate: each for rate, each in schedules.items() if not isinstance(each, Constant)}


@cache
def rates_type(names: tuple[str, ...]) -> Any:
    """Make a named tuple class of rates for losses: `rates.clip_range`."""
    return namedtuple("Rates", names)


def values_at(schedules: Mapping[str, Schedule], time: float) -> dict[str, float]:
    """Return the value of each schedule at a time."""
    return {name: each(time) for name, each in schedules.items()}


def epsilon_schedule(config: Any, noisy: bool, first_update: int) -> Schedule:
    """ε over environment steps. Noisy networks need no ε after their first update."""
    if noisy:
        return Linear(1.0, 0.0, first_update)
    return schedule_of(config, "epsilon", config.epsilon_decay)


def _settings(config: object, rate: str) -> tuple[str, str, str]:
    """Return the setting names of a rate's initial value, final value and schedule."""
    return f"{rate}_start" if hasattr(config, f"{rate}_start") else rate, f"{rate}_end", f"{rate}_schedule"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@cache
def _largest(name: str) -> float:
    """Return the largest value of a function at 0 %, 1 %, … of the time. Raise if a value cannot be a rate."""
    values = []
    for percent in range(101):
        try:
            values.append(float(FUNCTIONS[name](percent / 100)))
        except Exception as error:  # the function is a user's
            reason = one_line(error, 160)
            raise BadInput(f"the schedule {name!r} fails at {percent / 100} of the time: {reason}") from error
        if not 0.0 <= values[-1] < math.inf:
            raise BadInput(f"the schedule {name!r} is {values[-1]} at {percent / 100} of the time; expected at least 0")
    return max(values)


class ScheduledRates:
    """Scheduled settings of an algorithm: the rates that its losses read, and the learning rate. A run may change
    `learning_rate_factor`, which multiplies the learning rate."""

    schedules: dict[str, Schedule]  # of the rates that losses read
    _schedule: Schedule
    _factor = 1.0
    _values: list[float] | None = None  # of `schedules` at the last call
    _rates: Any = None  # the same by name, as numbers of the engine
    as_number: Callable[[float], Any] = float  # makes such a number

    def rates_at(self, progress: float) -> Any:
        """Return the rates of the losses by name, at a fraction of the budget."""
        values = [each(progress) for each in self.schedules.values()]
        if values != self._values:  # constant rates are made once
            self._values = values
            self._rates = rates_type(tuple(self.schedules))(*map(self.as_number, values))
        return self._rates

    @property
    def learning_rate(self) -> Schedule:
        """The learning rate at a fraction of the budget."""
        return lambda progress: self._factor * self._schedule(progress)

    @learning_rate.setter
    def learning_rate(self, schedule: Schedule) -> None:
        self._schedule = schedule

    @property
    def learning_rate_factor(self) -> float:
        """Multiplies every learning rate, from the next update on; saved in checkpoints."""
        return self._factor

    @learning_rate_factor.setter
    def learning_rate_factor(self, factor: float) -> None:
        if isinstance(factor, bool) or not isinstance(factor, Real) or not 0 <= factor < math.inf:
            raise BadInput(f"learning_rate_factor is {factor!r:.40}; expected a number of at least 0, such as 0.5")
        self._factor = float(factor)
