"""Validate environment outputs; convert exceptions."""

import contextlib
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import ArrayLike

from drl.core.errors import BadInput, DrlError, EnvFailed, Interrupted, raised_at, shown
from drl.core.specs import NUMBERS, Array


class Closable(Protocol):
    """Something with `close`."""

    def close(self) -> None: ...


Made = TypeVar("Made", bound=Closable)
MOST_LETTERS = 500  # of an exception's text


def checked(reward: object, terminated: object, truncated: object, info: object) -> tuple[float, bool, bool]:
    """Reward and flags of one step, as plain numbers. Raises `BadInput` if one of them or the info is something else.

    >>> checked(np.float32(1.5), np.True_, 0, {})
    (1.5, True, False)
    >>> checked("high", False, False, {})
    Traceback (most recent call last):
    drl.core.errors.BadInput: step gave the reward 'high'; expected a number
    """
    if not isinstance(info, Mapping):
        raise BadInput(f"step gave {shown(info)} as info; expected a dict")
    number = _single(reward)
    if number is None:
        raise BadInput(f"step gave the reward {shown(reward)}; expected a number")
    return float(number), _flag("terminated", terminated), _flag("truncated", truncated)


def _flag(name: str, value: object) -> bool:
    number = _single(value)
    if number is None or number not in (0, 1):
        raise BadInput(f"step gave {name} = {shown(value)}; expected True or False")
    return bool(number)


def _single(value: object) -> float | None:
    """A number, or an array of one number; None: it is something else. Text is not a number, even if it reads so."""
    array = np.asarray(value)
    return array.item() if array.dtype.kind in NUMBERS and array.size == 1 else None


def checked_rows(name: str, values: ArrayLike, num_envs: int) -> Array:
    """Rewards, or flags, of a vector environment as a new array `[N]` of float64, or bool."""
    flags = name != "reward"
    try:
        array = np.asarray(values)
    except ValueError:  # its entries have different shapes
        array = np.zeros(0)
    fits = array.shape == (num_envs,) and array.dtype.kind in NUMBERS
    if fits and flags and array.dtype.kind != "b":
        fits = bool(((array == 0) | (array == 1)).all())
    if not fits:
        kind = "flags (True or False)" if flags else "numbers"
        raise BadInput(f"step gave {name} = {shown(values)}; expected an array of {num_envs} {kind}")
    return array.astype(bool if flags else np.float64)


def checked_info(info: object) -> None:
    """Raise unless an environment's info is a mapping."""
    if not isinstance(info, Mapping):
        raise BadInput(f"it gave {shown(info)} as info; expected a dict")


def reason(error: BaseException) -> str:
    """An exception in one line, with the file and line that raised it, as the reason of a failure. One that a signal's
    handler raised (Ctrl-C) is not the environment's: it is raised again.

    >>> reason(SystemExit(3))
    'SystemExit: 3'
    """
    if _from_signal(error):
        raise error
    if isinstance(error, DrlError):
        return str(error)
    try:
        said = " ".join(str(error).split())[:MOST_LETTERS]
    except Exception:
        said = "an exception that cannot be shown"
    where = raised_at(error)
    return (f"{type(error).__name__}: {said}" if said else type(error).__name__) + (f" ({where})" if where else "")


def _from_signal(error: BaseException) -> bool:
    """Whether a signal's handler raised it. Python's own handler of Ctrl-C leaves no trace: where it is installed,
    every KeyboardInterrupt counts as Ctrl-C. While a run trains, ours is installed, which raises `Interrupted`."""
    if isinstance(error, Interrupted):
        return True
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@contextlib.contextmanager
def making(env_id: str, env_kwargs: Mapping[str, object]) -> Iterator[None]:
    """Convert exceptions while an environment is made to `BadInput`, apart from missing packages."""
    try:
        yield
    except (BadInput, ImportError, DependencyNotInstalled):
        raise
    except BaseException as error:
        raise BadInput(f"cannot make {env_id!r} with env_kwargs={env_kwargs}: {reason(error)}") from error


@contextlib.contextmanager
def blamed(env_id: str) -> Iterator[None]:
    """Whatever is raised inside is the environment's failure, apart from our own errors and those of files."""
    try:
        yield
    except (DrlError, OSError):
        raise
    except BaseException as error:
        raise EnvFailed(f"environment {env_id!r} failed: {reason(error)}") from error


def make_all(env_fns: Sequence[Callable[[], Made]], env_id: str) -> list[Made]:
    """All environments; if one cannot be made, those before it are closed."""
    envs: list[Made] = []
    try:
        for make in env_fns:
            envs.append(make())
    except BaseException:
        for env in envs:
            close_anyway(env.close, env_id)
        raise
    return envs


def close_anyway(close: Callable[[], object], env_id: str) -> None:
    """Close an environment. If that fails, nothing is lost: it is a warning."""
    try:
        close()
    except BaseException as error:
        warn_of_closing(env_id, reason(error))


def warn_of_closing(env_id: str, why: str) -> None:
    """Say that an environment could not be closed."""
    warnings.warn(f"environment {env_id!r} could not be closed: {why}", stacklevel=3)
