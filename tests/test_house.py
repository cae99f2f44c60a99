"""The house rules: unique file names, nobody asks for an algorithm's name, few untyped things."""

import dataclasses
import inspect
import itertools
import re
from collections import defaultdict
from pathlib import Path

from drl.algorithms import ALGORITHMS
from drl.search.search_plan import SearchConfig
from drl.settings.experiment import RunConfig

PACKAGE = Path(__file__).parents[1] / "drl"
FILES = sorted(PACKAGE.rglob("*.py"))
TWINS = {"algorithms", *(f"engines/{e}{sub}" for e in ("numpy", "torch", "jax") for sub in ("", "/algorithms"))}


def test_file_names_are_unique_except_for_engine_twins():
    places = defaultdict(list)
    for path in FILES:
        if path.name != "__init__.py":
            room = str(path.parent.relative_to(PACKAGE))
            places[path.name].append("twin" if room in TWINS else room)
    doubled = {name: rooms for name, rooms in places.items() if len(rooms) > 1}
    assert {name: rooms for name, rooms in doubled.items() if {*rooms} != {"twin"}} == {}


def test_class_names_are_unique_except_for_engine_twins():
    places = defaultdict(list)
    for path in FILES:
        folder = str(path.parent.relative_to(PACKAGE))
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
            places[name].append("twin" if folder in TWINS else f"{folder}/{path.name}")
    doubled = {name: files for name, files in places.items() if len(files) > 1}
    assert {name: files for name, files in doubled.items() if {*files} != {"twin"}} == {}


def test_no_code_asks_for_the_name_of_an_algorithm():
    """Only their records do, and the flat command line, which is that of DQN."""
    name = f"""["']({"|".join(ALGORITHMS)})["']"""
    names = re.compile(rf"[=!]=\s*{name}|{name}\s*:")
    allowed = {"algorithms/", "cli/flat.py"}
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in FILES
        for line in path.read_text().splitlines()
        if names.search(line) and not any(str(path.relative_to(PACKAGE)).startswith(place) for place in allowed)
    ]
    assert found == []


def test_contracts_are_typed():
    counts = {path: len(re.findall(r"\bAny\b", path.read_text())) for path in FILES}
    assert counts[PACKAGE / "core" / "contracts.py"] == 0
    assert sum(counts.values()) < 250


def test_every_setting_has_a_help_text():
    """A comment on its line or above it, which `--help` shows."""
    kinds = {RunConfig, SearchConfig}.union(*(record.parts.values() for record in ALGORITHMS.values()))
    missing = []
    for kind in kinds:
        told = set()
        for each in filter(dataclasses.is_dataclass, kind.__mro__):
            lines = inspect.getsource(each).splitlines()
            for above, line in itertools.pairwise(lines):
                if (field := re.match(r"    (\w+): ", line)) and ("#" in line or above.strip().startswith("#")):
                    told.add(field[1])
        missing += [f"{kind.__name__}.{field.name}" for field in dataclasses.fields(kind) if field.name not in told]
    assert missing == []
