"""Imports point one way; `import drl` is light."""

import ast
import subprocess
import sys
from pathlib import Path

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


def test_imports_point_one_way():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = room_of(".".join(("drl", *path.relative_to(PACKAGE).with_suffix("").parts)))
        if room not in ("__init__", "engines.__init__"):
            names = {name for name in imported_by(path) if name not in ("__version__", room)}
            found += [f"{path.relative_to(PACKAGE)} must not import {name}" for name in names - ALLOWED[room]]
    assert found == []


def test_import_drl_loads_no_framework():
    code = "import drl, drl.cli.entry, sys; assert not {'torch', 'jax', 'pygame', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
