"""Attributes and methods of environments, accessed from outside: `get`, `set` and `call` of every VecEnv.

Every change is recorded with its place in each running episode, so that an episode can be replayed.
"""

import base64
import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from drl.core.contracts import EnvChange
from drl.core.errors import BadInput, did_you_mean, shown
from drl.core.log import Change
from drl.core.specs import Array, EnvValue
from drl.core.state_files import StateDict

STEPPED = ("step", "reset")  # methods that a VecEnv calls; some keep a reference to them
LOST = "lost"  # kind of a stored value that cannot be restored
MOST_STORED = 1 << 20  # letters of a stored value


def check_name(name: object) -> None:
    """Raise for what cannot be the name of an attribute."""
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
        raise BadInput(f"{shown(name)} is not the name of an attribute; expected one such as 'level'")


def _owner(env: object, name: str, where: str) -> object:
    """Return the outermost wrapper or environment that defines an attribute, like Gymnasium's `get_wrapper_attr`."""
    check_name(name)
    # Some wrappers of PettingZoo forward attributes to the next one, so `hasattr` does not find the owner.
    layers: list[object] = []
    while env is not None and not any(env is layer for layer in layers):
        layers.append(env)
        inside = getattr(env, "__dict__", {})
        env = inside.get("env", inside.get("aec_env"))
    for layer in layers:
        if name in getattr(layer, "__dict__", {}) or hasattr(type(layer), name):
            return layer
    if hasattr(layers[-1], name):  # by its own __getattr__
        return layers[-1]
    known = {each for layer in layers for each in (*getattr(layer, "__dict__", {}), *dir(type(layer)))}
    near = did_you_mean(name, (each for each in known if not each.startswith("_")))
    raise BadInput(f"{where} has no attribute {name!r}; {near}")


def set_on(env: object, name: str, value: object, where: str) -> None:
    """Set the attribute of one environment."""
    setattr(_owner(env, name, where), name, value)


def access(env: object, what: str, name: str, content: EnvValue, where: str) -> EnvValue:
    """`get`, `set` or `call` an attribute of one environment, or `check_set` it: raise unless it can be set. `content`
    is the value, or the arguments and keyword arguments of the call."""
    owner = _owner(env, name, where)
    attribute = getattr(owner, name)
    if what == "get":
        return attribute
    if what == "call":
        if not callable(attribute):
            raise BadInput(f"{name!r} of {where} is {shown(attribute)}, not a method; use get")
        return attribute(*content[0], **content[1])
    if name in STEPPED or (callable(attribute) and not callable(content)):
        raise BadInput(f"{name!r} is a method of {where}, which set cannot replace; use call")
    descriptor = getattr(type(owner), name, None)
    if isinstance(descriptor, property) and descriptor.fset is None:
        raise BadInput(f"{name!r} of {where} is a property that cannot be set; set the attribute that it reads")
    if what == "set":
        setattr(owner, name, content)
    return None


class _Made(NamedTuple):
    """One change."""

    number: int  # changes before it
    tick: int  # steps of the VecEnv before it
    change: EnvChange
    stored: EnvValue  # its value as plain data


class Changes:
    """Changes of environments, with their number at the start of each running episode."""

    def __init__(self, num_envs: int):
        self.made: list[_Made] = []  # without those that a later one replaced
        self.count: int = 0  # of all changes
        self.known: list[int] = [0] * num_envs  # `count` when each running episode began

    def begin(self, index: int | None = None) -> None:
        """Start an episode in one environment, or in all."""
        if index is None:
            self.known = [self.count] * len(self.known)
        else:
            self.known[index] = self.count

    def add(self, change: EnvChange, tick: int) -> None:
        """Record a change."""
        first = min(self.known)  # episodes began after the changes before this one: only the last value counts
        newest = {made.change.name: made.number for made in self.made if made.number < first}
        kept = [
            made
            for made in self.made
            if made.number >= first or made.change.arguments or newest[made.change.name] == made.number
        ]
        if change.arguments is not None:
            plain: EnvValue = [LOST, f"{change.name}() was called, which is not called again"]
        else:
            plain, change = stored_or_lost(change.value), change._replace(value=own_copy(change.value))
        self.made = [*kept, _Made(self.count, tick, change, plain)]
        self.count += 1

    def of(self, index: int, began: int) -> tuple[Change, ...]:
        """Return the changes for replaying the running episode of an environment, which began at the tick `began`."""
        known = self.known[index]
        return tuple(
            Change(-1 if made.number < known else made.tick - began, made.change.name, made.stored)
            for made in self.made
        )

    @property
    def changes(self) -> list[EnvChange]:
        """All changes, in order."""
        return [made.change for made in self.made]

    @property
    def lost(self) -> str | None:
        """Why the changes cannot be repeated, if they cannot."""
        return lost_in(made.stored for made in self.made)

    def state_dict(self, tick: int) -> StateDict:
        made = [[each.number, each.tick - tick, each.change.name, each.stored] for each in self.made]
        return {"made": made, "count": self.count, "known": list(self.known)}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore such a state; ticks count from it."""
        self.made = [
            _Made(int(number), int(tick), EnvChange(str(name), restored(value)), value)
            for number, tick, name, value in state["made"]
        ]
        self.count, self.known = int(state["count"]), [int(count) for count in state["known"]]

    def set_all(self, set_value: Callable[[str, EnvValue], object]) -> None:
        """Repeat every change that can be restored."""
        for made in self.made:
            if not is_lost(made.stored):
                set_value(made.change.name, made.change.value)


def own_copy(value: EnvValue) -> EnvValue:
    """Copy a value for one environment, as if sent to a worker process; an object that no file can hold is shared."""
    return value if is_lost(stored_or_lost(value)) else copy.deepcopy(value)


def set_before(changes: Iterable[Change], set_value: Callable[[str, EnvValue], None]) -> None:
    """Repeat the changes made before an episode's reset."""
    for change in changes:
        if change.after < 0:
            set_value(change.name, restored(change.value))


def replayed(
    actions: Sequence[EnvValue] | Array, changes: Sequence[Change], set_value: Callable[[str, object], None]
) -> Iterator[EnvValue]:
    """Yield the actions of an episode, integers as Python's; before each of them, repeat the changes made there."""
    if isinstance(actions, np.ndarray) and actions.ndim == 1:
        actions = actions.tolist()
    during = {change.after for change in changes if change.after >= 0}
    for count in range(len(actions) + 1):
        if count in during:
            for change in changes:
                if change.after == count:
                    set_value(change.name, restored(change.value))
        if count < len(actions):
            yield actions[count]


def is_lost(plain: object) -> bool:
    """Whether a stored value cannot be restored."""
    return isinstance(plain, list) and plain[:1] == [LOST]


def lost_in(values: Iterable[EnvValue]) -> str | None:
    """Return why the first lost value cannot be restored, if there is one."""
    return next((str(value[1]) for value in values if is_lost(value)), None)


def stored_or_lost(value: object) -> EnvValue:
    """Like `stored`, or `[LOST, why]` for a value that no file can hold.

    >>> stored_or_lost(object())
    ['lost', 'an object was set, which no file can hold']
    """
    try:
        plain = stored(value)
    except TypeError as error:
        return [LOST, f"{error} was set, which no file can hold"]
    return plain if len(json.dumps(plain)) <= MOST_STORED else [LOST, "a value was set that is too large to store"]


def stored(value: object) -> EnvValue:
    """Encode a value as plain data for `restored`: numbers, texts, arrays, and lists, tuples and dicts of them. Raises
    TypeError for others.

    >>> restored(stored({"size": (3, 4), "map": np.eye(2)}))
    {'size': (3, 4), 'map': array([[1., 0.],
           [0., 1.]])}
    """
    try:
        return _stored(value)
    except RecursionError:
        raise TypeError("a value that contains itself") from None


def _stored(value: object) -> EnvValue:
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is float:
        return ["float", repr(value)]
    if type(value) in (list, tuple):
        return [type(value).__name__, [_stored(each) for each in value]]  # type: ignore[attr-defined]
    if type(value) is dict:
        return ["dict", [[_stored(key), _stored(each)] for key, each in value.items()]]
    if type(value) is np.ndarray or isinstance(value, np.generic):
        array = np.asarray(value)
        if array.dtype.kind not in "biufc":
            raise TypeError(f"an array of type {array.dtype}")
        kind = "array" if type(value) is np.ndarray else "scalar"
        content = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        return [kind, [array.dtype.str, list(array.shape), content]]
    kind = type(value).__name__
    raise TypeError(f"{'an' if kind[0].lower() in 'aeio' else 'a'} {kind}")


def restored(plain: EnvValue) -> EnvValue:
    """Decode a value that `stored` encoded; None for a lost one."""
    if not isinstance(plain, list):
        return plain
    kind, content = plain
    if kind == "float":
        return float(content)
    if kind in ("list", "tuple"):
        values = [restored(each) for each in content]
        return values if kind == "list" else tuple(values)
    if kind == "dict":
        return {restored(key): restored(each) for key, each in content}
    if kind in ("array", "scalar"):
        dtype = np.dtype(content[0])
        if dtype.kind not in "biufc":
            raise ValueError(f"a value has the type {dtype}")
        array = np.frombuffer(base64.b64decode(content[2], validate=True), dtype).reshape(content[1]).copy()
        return array if kind == "array" else array[()]
    if kind == LOST:
        return None
    raise ValueError(f"a value has the kind {kind!r:.40}")
