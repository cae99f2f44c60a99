"""The list of `make mutants` keeps up with the code. Whether the tests kill the mutants is for `make mutants`."""

from pathlib import Path

import pytest
from mutants import TREE, read_mutants

MUTANTS = read_mutants()


def test_there_are_enough_and_each_has_its_own_name():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies(mutant):
    mutated = mutant.applied((TREE / mutant.file).read_text())
    assert mutant.old != mutant.new
    compile(mutated, mutant.file, "exec")
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        source = Path(TREE / file).read_text()
        assert f"def {name.partition('[')[0]}(" in source if name else "def test_" in source, test
