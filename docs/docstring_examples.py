"""For the API reference: the doctests of docstrings as blocks of code."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


class Fenced(griffe.Extension):
    """Puts a fence around every doctest, up to the next empty line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            fenced = EXAMPLE.sub(lambda example: f"```pycon\n{example[0]}\n```", obj.docstring.value)
            obj.docstring.value = re.sub(r" *# doctest: .*", "", fenced)
