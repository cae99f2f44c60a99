"""Size of the package and length of its paths, at most: `python .ci/measures.py` prints them."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "measures.py"
STATIC = {
    "files in drl/": 240,
    "lines in drl/": 46_600,
    "files with one importer, in their own package": 30,
    "files in one folder, at most": 18,
    "imports, % of lines": 7.6,
}
TRACED = {
    "`drl train ppo`: files": 82,
    "`drl train ppo`: stack": 19,
    "calls before the first environment step": 320,
    "one iteration of ppo: files": 14,
    "one iteration of ppo: stack": 6,
    "one iteration of dqn: files": 16,
    "one iteration of dqn: stack": 6,
    "one iteration of sac: files": 16,
    "one iteration of sac: stack": 7,
}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("measures", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_files_and_imports(script):
    found = script.static_measures(script.TREE)
    assert found.keys() == STATIC.keys()
    assert {name: value for name, value in found.items() if value > STATIC[name]} == {}


@pytest.mark.full
def test_a_run_and_an_iteration(script):
    found = script.measures()
    assert {*found} == {*STATIC, *TRACED}
    assert {name: found[name] for name, most in TRACED.items() if found[name] > most} == {}
