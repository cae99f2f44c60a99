"""Settings as YAML: plain values only, of a sensible size. Nothing is executed, nothing expands."""

from pathlib import Path
from typing import Any

import yaml

from drl.core.safe_files import read_plain

MOST_SETTINGS = 1 << 20  # bytes of a file


class _PlainLoader(yaml.SafeLoader):
    """Without aliases: a few hundred bytes of them can stand for billions of values."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not taken")
        return super().compose_node(parent, index)


def parse_yaml(text: str | bytes) -> Any:
    """The value that a text stands for; any text that is not plain YAML is a `ValueError`.

    >>> parse_yaml("gravity: -5")
    {'gravity': -5}
    """
    try:
        return yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())[:300] or type(error).__name__) from None


def read_yaml_file(path: str | Path) -> Any:
    """The same of a plain file."""
    return parse_yaml(read_plain(Path(path), MOST_SETTINGS))
