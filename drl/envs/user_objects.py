"""Objects of the user's program under a name that a config can hold: environments and wrappers.

A name is `module:NAME`, `file.py:NAME`, or `python:NAME` for an object that no module holds under its own name, such as
a lambda or an instance. The process that was given an object uses the object itself, not the name.
"""

import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import cloudpickle  # type: ignore[import-untyped]

from drl.core.errors import BadInput
from drl.envs.faults import reason
from drl.envs.known_packages import is_known_package

IN_MEMORY = "python"  # "module" of objects that cannot be imported
_given: dict[str, object] = {}


def name_of(thing: object, label: str = "") -> str:
    """The name of an object, by which `find_object` finds it in this process.

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


def find_object(name: str) -> object | None:
    """The object of this name: the one that was given, or what its module or file defines; None: it defines no such
    object."""
    if name in _given:
        return _given[name]
    module, _, label = name.rpartition(":")
    return getattr(import_for(name), label, None) if module else None


def import_for(name: str) -> ModuleType:
    """Import the module or file of `module:NAME`. That runs its code."""
    source = name.rpartition(":")[0]
    if source == IN_MEMORY:
        raise BadInput(
            f"{name!r} is an object of the program that trained with it, and no file defines it; in Python pass it "
            "again, as env= or wrappers="
        )
    try:
        return _import_file(Path(source)) if source.endswith(".py") else _import_module(source)
    except BaseException as error:  # a user's module can raise anything
        raise BadInput(f"cannot import {source!r} for {name!r}: {reason(error)}") from error


def _import_module(source: str) -> ModuleType:
    if "" not in sys.path and os.getcwd() not in sys.path and not is_known_package(source):
        sys.path.append(os.getcwd())  # console scripts do not search the current folder
    return importlib.import_module(source)


def _import_file(path: Path) -> ModuleType:
    """A Python file as a module; a second call gives the same module."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    path = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        loader = importlib.machinery.SourceFileLoader(name, str(path))
        spec = importlib.machinery.ModuleSpec(name, loader, origin=str(path))
        spec.has_location = True  # gives it a __file__
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.parent))  # for what it imports from its own folder
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        finally:
            sys.path.remove(str(path.parent))
        cloudpickle.register_pickle_by_value(module)  # worker processes cannot import it by name
    return sys.modules[name]
