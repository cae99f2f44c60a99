"""What a type checker says about a user's project, and about the settings that it reads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

PROJECT = Path(__file__).parent / "user_project"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reported() -> set[tuple[str, int]]:
    """File and line of each error."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(PROJECT)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    shown = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=PROJECT).stdout
    errors = [each for each in json.loads(shown)["generalDiagnostics"] if each["severity"] == "error"]
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors}


def marked(name: str) -> set[tuple[str, int]]:
    lines = (PROJECT / name).read_text().splitlines()
    return {(name, number) for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def test_wrong_uses_are_reported(reported):
    wrong = marked("wrong_uses.py")
    assert len(wrong) >= 10
    assert {place for place in reported if place[0] == "wrong_uses.py"} == wrong


def test_right_uses_are_not_reported(reported):
    assert {place for place in reported if place[0] == "right_uses.py"} == set()
