"""Modules of the user's own that register algorithms, backbones, heads or model variants when they are imported."""

import importlib
import os
import sys
from collections.abc import Iterable

from drl.core.errors import BadInput


def import_plugins(modules: Iterable[str]) -> None:
    """Import each; what is installed comes before a file of that name in the current folder."""
    for module in modules:
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # a console script does not look there by itself
        try:
            importlib.import_module(module)
        except Exception as error:  # the module is the user's: anything may go wrong in it
            raise BadInput(f"cannot import plugin {module!r}: {type(error).__name__}: {error}") from error
