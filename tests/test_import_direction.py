"""Imports point one way; `import drl` is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "drl"
BASE = {
    "core": set(),
    "algorithms": {"core"},
    "envs": {"core"},
    "tracking": {"core"},
    "games": {"core", "tracking"},  # its pictures have the style of all plots
    "buffers": {"core"},
    "engines.numpy": {"core"},
}
ENGINES = {"engines.torch", "engines.jax"}
FOLDER = {*BASE, "settings", "trainer", "runs.folder"}
AGENTS = {*FOLDER, *ENGINES, "agents"}
RUNS = {*AGENTS, "cluster", "runs"}
ALLOWED = BASE | {
    "engines.torch": {"core", "algorithms", "engines.numpy"},
    "trainer": set(BASE),
    "engines.jax": {*BASE, "trainer"},  # the trainer of fused programs lives with them
    "settings": {"core", "algorithms", "envs"},
    "cluster": {*BASE, "trainer"},
    "runs.folder": {*BASE, "settings", "trainer"},
    "agents": {*FOLDER, *ENGINES},
    "runs": {*AGENTS, "cluster"},
    "deploy": RUNS,
    "search": RUNS - ENGINES,
    "report": {"core", "algorithms", "settings", "tracking", "runs.folder"},
    "analysis": RUNS - ENGINES,
    "doctor": RUNS - ENGINES,
    "testing": {"core", "envs", "games", "buffers", "trainer"},
    "torch": {"core", "engines.torch"},
    "jax": {"core", "engines.jax"},
    "cli": {*RUNS, "search", "analysis", "deploy", "doctor", "report"} - ENGINES,
}


def room_of(module: str) -> str:
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if parts[:1] == ["engines"] or parts[:2] == ["runs", "folder"] else (parts or [""])[0]


def imported_by(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {room_of(name) for name in found if name.startswith("drl.")}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    module = ".".join(("drl", *path.relative_to(PACKAGE).with_suffix("").parts))
    room = room_of(module)
    if room in ("__init__", "engines.__init__"):
        return
    names = {name for name in imported_by(path) if name not in ("__version__", room)}
    assert names <= ALLOWED[room], f"{room} must not import {names - ALLOWED[room]}"


def test_import_drl_loads_no_framework():
    code = "import drl, drl.cli.entry, sys; assert not {'torch', 'jax', 'pygame', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
