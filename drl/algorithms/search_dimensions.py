"""Dimensions of a hyperparameter search, by the flat name of a setting. An algorithm's record lists its own."""

from dataclasses import dataclass
from typing import Protocol

from drl.core.specs import PlainValue


class Trial(Protocol):
    """The part of `optuna.Trial` that dimensions use."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """A number from an interval."""

    def suggest_categorical(self, name: str, choices: tuple[PlainValue, ...]) -> PlainValue:
        """One of several values."""


@dataclass(frozen=True)
class Real:
    """A number between two bounds, drawn on a logarithmic scale."""

    low: float
    high: float

    def suggest(self, trial: Trial, name: str) -> float:
        """A number for this trial."""
        return float(trial.suggest_float(name, self.low, self.high, log=True))

    def nearest(self, value: PlainValue) -> float:
        """The number of the interval that is closest to a given one."""
        return min(max(float(value), self.low), self.high)


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    options: tuple[PlainValue, ...]

    def suggest(self, trial: Trial, name: str) -> PlainValue:
        """An option for this trial."""
        return trial.suggest_categorical(name, self.options)

    def nearest(self, value: PlainValue) -> PlainValue:
        """The option that is closest to a given value."""
        if value in self.options or isinstance(value, str):
            return value if value in self.options else self.options[0]
        return min(self.options, key=lambda option: abs(option - value))


Dimension = Real | Choice
Space = dict[str, Dimension]

SWITCH = Choice((False, True))
GAMMA = Choice((0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999))
WIDTH = Choice((32, 64, 128, 256))  # of every hidden layer of the network at once
GRAD_NORM = Choice((0.3, 0.5, 1.0, 2.0, 5.0))
ENTROPY = Real(1e-6, 0.1)
ACTIVATION = Choice(("tanh", "relu"))
LEARNING_RATE = Real(1e-5, 1e-2)
