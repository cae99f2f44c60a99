"""The contracts of all other packages. NumPy and the standard library only.

`call_function_of` is for packages with the name of a public function: `drl.search`, `drl.doctor`, `drl.report`. Python
puts a package that was imported at `drl.NAME`, where the function was. So the package is called in its place.
"""

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package that is called like the function of its name in the module `__module__`."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self._function()(*arguments, **settings)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    def _function(self) -> Any:
        return getattr(importlib.import_module(self.__module__), self.__name__.rpartition(".")[2])


def call_function_of(package: str, module: str) -> None:
    """Let `package` be called: as its function of the same name, which `module` defines."""
    sys.modules[package].__class__ = CallablePackage
    sys.modules[package].__module__ = module
