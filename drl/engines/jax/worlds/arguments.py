"""Checks of what a user may change in a world."""

import math
from numbers import Real

from drl.core.errors import BadInput


def check_max_steps(max_steps: int | None) -> None:
    if max_steps is not None and (isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1):
        raise BadInput(f"max_episode_steps = {max_steps!r}; expected a whole number, 1 or more, or -1 for no limit")


def check_number(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise BadInput(f"{name} = {value!r}; expected a finite number")
