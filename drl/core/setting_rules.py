"""Rules that settings must satisfy, and the largest sizes that they may have.

A config class lists its rules in `RULES`; `check_fields` applies them once, when a config is made. A size that cannot
fit is refused before anything is allocated.
"""

import math
import os
import sys
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from drl.core.errors import BadInput, shown
from drl.core.specs import PlainValue

MOST_WHOLE = 10**15  # of a whole number without a limit of its own
MOST_TEXT = 4096  # characters of a text
LARGEST = 1e100  # of a score; sums and squares of larger numbers could overflow
# Largest value → the settings that it applies to, by flat name; for lists, of each entry.
LIMITS = {
    2**63 - 1: "seed seeds",
    10_000_000: "batch_size rollout_length",
    1_000_000: "window evaluation_episodes episodes eval_episodes n_trials updates_per_log gradient_steps epochs "
    "episodes_per_step",
    100_000: "num_envs",
    65_536: "hidden_sizes critic_hidden_sizes cnn_features recurrent_size",
    10_000: "num_seeds keep_checkpoints num_checkpoints num_atoms n_step reports rerun_best rerun_seeds",
    1024: "threads n_jobs workers",
    1000: "frame_stack num_critics",
}
MOST = {name: most for most, names in LIMITS.items() for name in names.split()}


class Rule(NamedTuple):
    """A condition on a value, in words and as a test."""

    text: str
    holds: Callable[[Any], bool]


Rules = Mapping[Rule, str]  # rule → names of the settings that it applies to
WHOLE_FROM_2 = Rule("a whole number of at least 2", lambda x: x >= 2)
WHOLE_FROM_1 = Rule("a whole number of at least 1", lambda x: x >= 1)
WHOLE_FROM_0 = Rule("a whole number of at least 0", lambda x: x >= 0)
ABOVE_0 = Rule("a number above 0", lambda x: x > 0)
FROM_0 = Rule("a number of at least 0", lambda x: x >= 0)
FROM_0_TO_1 = Rule("a number from 0 to 1", lambda x: 0 <= x <= 1)
FROM_0_BELOW_1 = Rule("a number of at least 0, below 1", lambda x: 0 <= x < 1)


def one_of(*options: str) -> Rule:
    """Return the rule that a setting is one of several texts.

    >>> one_of("none", "gru", "lstm").text
    "'none', 'gru' or 'lstm'"
    """
    *first, last = map(repr, options)
    return Rule(f"{', '.join(first)} or {last}", lambda x: x in options)


def check_fields(config: Any) -> None:
    """Replace every field of a new config by its `plain_setting`; raise unless it is finite, not too large, and
    satisfies the rules that its class and parent classes state in `RULES`. None satisfies every rule."""
    values = vars(config)
    for name, given in list(values.items()):
        value = given
        if type(given) not in PLAIN and (value := plain_setting(given)) is not given:
            object.__setattr__(config, name, value)
        if isinstance(value, float):
            if not math.isfinite(value):
                raise BadInput(f"{name} is {value}; expected a finite number")
        elif value is not None and type(value) is not bool and value != ():
            check_size(name, value)
    for kind in reversed(type(config).__mro__):
        for rule, names in vars(kind).get("RULES", {}).items():
            for name in names.split():
                if (value := values[name]) is not None and not rule.holds(value):
                    raise BadInput(f"{name} is {value!r}; expected {rule.text}")


PLAIN = (bool, int, float, str, type(None))  # types of settings that need no conversion


def plain_setting(value: PlainValue) -> PlainValue:
    """Convert a setting for files: NumPy numbers to Python's, paths and torch devices to text, lists to tuples.

    >>> plain_setting([np.int64(64), np.float32(0.5)]), plain_setting(range(3))
    ((64, 0.5), (0, 1, 2))
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple | range):
        return tuple(each if type(each) in PLAIN else plain_setting(each) for each in value)
    torch = sys.modules.get("torch")  # loaded already if the value is a device
    return str(value) if torch is not None and isinstance(value, torch.device) else value


def is_score(value: object) -> TypeGuard[float]:
    """Whether a value from a file can be a score: a finite number of a sensible size.

    >>> [is_score(value) for value in (1, -2.5, True, None, float("nan"), float("inf"), 10**400, "3")]
    [True, True, False, False, False, False, False, False]
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def check_size(name: str, value: object) -> None:
    """Raise if a setting is above its limit, or a text that is too long or not printable.

    >>> check_size("num_envs", 10**11)
    Traceback (most recent call last):
    drl.core.errors.BadInput: num_envs is 100,000,000,000; expected at most 100,000
    """
    for each in value if isinstance(value, tuple | list) else (value,):
        if isinstance(each, str) and (len(each) > MOST_TEXT or not each.isprintable()):
            raise BadInput(f"{name} is {each[:80]!r}; expected a text of at most {MOST_TEXT} printable characters")
        if isinstance(each, int) and abs(each) > (most := MOST.get(name, MOST_WHOLE)):
            given = f"{each:,}" if abs(each) < 10**20 else f"a number of more than {each.bit_length() // 4} digits"
            raise BadInput(f"{name} is {given}; expected at most {most:,}")


def check_whole(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Raise unless a setting is a whole number from `least` to `most`, or to its limit if `most` is None.

    >>> check_whole("port", 70000, 0, 65535)
    Traceback (most recent call last):
    drl.core.errors.BadInput: port is 70000; expected a whole number from 0 to 65535
    """
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else least - 1
    if number < least or (most is not None and number > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise BadInput(f"{name} is {shown(value)}; expected a whole number {span}")
    check_size(name, number)


def total_memory() -> float:
    """Return the bytes of memory of this machine; infinity if unknown."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def check_memory(needs: dict[str, float]) -> None:
    """Raise if the memory of this machine is smaller than the sum of `needs`: bytes by setting.

    >>> check_memory({"capacity 1,000,000,000,000": 4e16, "batch_size 32": 100})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    drl.core.errors.BadInput: capacity 1,000,000,000,000 needs at least 40,000,000.0 GB, and this machine has ...
    """
    total, largest = total_memory(), max(needs, key=needs.__getitem__, default="")
    if sum(needs.values()) > total:
        raise BadInput(
            f"{largest} needs at least {needs[largest] / 1e9:,.1f} GB, and this machine has {total / 1e9:,.1f} GB; "
            f"give a smaller {largest.partition(' ')[0]}"
        )
