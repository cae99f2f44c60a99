"""Objects of the user's program under names that a config can hold: environments, wrappers, activations, schedules.

A name is `module:NAME`, `file.py:NAME` for one of the script, or `python:NAME` for an object that no module holds under
its own name, such as a lambda or an instance. The process that was given an object uses the object itself, not the
name; another one gets it with the run, or must find it by its name.
"""

import functools
import sys
from pathlib import Path

IN_MEMORY = "python"  # "module" of objects that cannot be imported
_given: dict[str, object] = {}


def name_of(thing: object, label: str = "") -> str:
    """The name of an object, under which this process keeps it.

    >>> name_of(Path)
    'pathlib:Path'
    """
    named = thing.func if isinstance(thing, functools.partial) else thing
    label = label or getattr(named, "__qualname__", type(named).__qualname__)
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if module is None or getattr(module, label, None) is not thing:
        return _keep(f"{IN_MEMORY}:{label}", thing)
    if module.__name__ != "__main__":
        return _keep(f"{module.__name__}:{label}", thing)
    script = getattr(module, "__file__", None)  # a notebook or an interactive session has none
    return _keep(f"{Path(script).name if script else IN_MEMORY}:{label}", thing)


def _keep(name: str, thing: object) -> str:
    """The name, with a number if another object has it."""
    unique, number = name, 1
    while _given.setdefault(unique, thing) is not thing:
        number += 1
        unique = f"{name}_{number}"
    return unique


def given_objects() -> dict[str, object]:
    """All objects by name, for another process."""
    return dict(_given)


def give_objects(objects: dict[str, object]) -> None:
    """What another process was given."""
    _given.update(objects)


def is_given(name: str) -> bool:
    """Whether this process was given an object under this name."""
    return name in _given
