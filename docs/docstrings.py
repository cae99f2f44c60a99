"""For the API reference: doctests as blocks of code, and the comments beside the fields of a class as a table."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


def comment_of(field: griffe.Attribute) -> str:
    """The comment on the line of a field, or else the one above it."""
    lines = [line.strip() for line in field.lines_collection[field.filepath]]
    first, last = (field.lineno or 1) - 1, (field.endlineno or 1) - 1
    if "  # " in lines[last]:
        return lines[last].split("  # ", 1)[1]
    above = []
    while lines[first - 1].startswith("# "):
        first -= 1
        above.insert(0, lines[first].removeprefix("# "))
    return " ".join(above)


class Readable(griffe.Extension):
    """Changes docstrings before they are rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Puts a fence around every doctest, up to the next empty line."""
        if obj.docstring is not None:
            fenced = EXAMPLE.sub(lambda example: f"```pycon\n{example[0]}\n```", obj.docstring.value)
            obj.docstring.value = re.sub(r" *# doctest: .*", "", fenced)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Adds the fields, each with its comment."""
        fields = {name: comment_of(each) for name, each in cls.attributes.items() if not each.is_alias and each.lineno}
        told = [f"    {name}: {comment}" for name, comment in fields.items() if comment and not name.startswith("_")]
        if cls.docstring is not None and told:
            cls.docstring.value += "\n\nAttributes:\n" + "\n".join(told)
