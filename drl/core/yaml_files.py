"""Settings as YAML: plain values only, with a size limit. No objects are constructed and no aliases are expanded."""

import re
from collections.abc import Hashable
from pathlib import Path

import yaml

from drl.core.safe_files import read_plain
from drl.core.specs import PlainValue

MOST_SETTINGS = 1 << 20  # bytes of a file


class _PlainLoader(yaml.SafeLoader):
    """A safe loader without aliases: a few hundred bytes of them can expand to billions of values."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not taken")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, PlainValue]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(names)) < len(names):
            raise yaml.YAMLError(f"{max(names, key=names.count)} is given twice")
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 1e-3 as a text, because it has no dot.
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+"), list("-+0123456789")
)


def parse_yaml(text: str | bytes) -> PlainValue:
    """Parse a text; raise `ValueError` if it is not plain YAML.

    >>> parse_yaml("{gravity: -5, rate: 1e-3}")
    {'gravity': -5, 'rate': 0.001}
    """
    try:
        return yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())[:300] or type(error).__name__) from None


def read_yaml_file(path: str | Path) -> PlainValue:
    """Parse a plain file."""
    return parse_yaml(read_plain(Path(path), MOST_SETTINGS))
