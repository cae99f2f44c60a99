"""Environments and wrappers by the names of `drl.core.named_objects`: given, or imported from a module or a file."""

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
from drl.core.named_objects import IN_MEMORY, given_objects, is_given
from drl.envs.faults import reason
from drl.envs.known_packages import is_known_package


def find_object(name: str) -> object | None:
    """The object of this name: the one that was given, or what its module or file defines; None: it defines no such
    object."""
    if is_given(name):
        return given_objects()[name]
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
