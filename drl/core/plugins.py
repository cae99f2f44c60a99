"""User modules that register algorithms, backbones, heads or model variants when they are imported."""

import importlib
import os
import sys
from collections.abc import Iterable

from drl.core.errors import BadInput


def import_plugins(modules: Iterable[str]) -> None:
    """Import each module; installed modules take precedence over files in the current folder."""
    for module in modules:
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # console scripts do not search the current folder
        try:
            importlib.import_module(module)
        except Exception as error:  # a user module can raise anything
            raise BadInput(f"cannot import plugin {module!r}: {type(error).__name__}: {error}") from error
