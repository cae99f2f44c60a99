"""How many faults are tried: a few by `make test`, all by `make faults`."""

import os
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")
LONG = os.environ.get("DRL_FAULTS") == "long"


def some(cases: Sequence[Case], few: int) -> list[Case]:
    """All cases in the long form; `few` of them, spread evenly, in the short one."""
    cases = list(cases)
    if LONG or len(cases) <= few:
        return cases
    return [cases[i * len(cases) // few] for i in range(few)]
