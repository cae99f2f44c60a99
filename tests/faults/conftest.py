"""Faults made on purpose. `make test` tries a few of each kind, `make faults` all of them.

A test takes its cases from `fault_cases.some` and counts them with the fixture `tally`, which `make faults` turns into
the table of benchmarks/RESULTS.md.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def tally(request) -> Iterator[Callable[..., None]]:
    """`tally("kind", tried=3)` at the end of a test: so many cases held. A test that fails does not arrive there; it
    counts as one lost case of its module's KIND."""
    calls = []
    yield lambda kind, tried=1: calls.append((kind, tried))
    record = os.environ.get("DRL_FAULTS_RECORD")
    if record:
        with Path(record).open("a") as file:
            for kind, tried in calls:
                file.write(json.dumps({"kind": kind, "tried": tried, "passed": tried}) + "\n")
            if not calls:
                kind = getattr(request.module, "KIND", request.module.__name__)
                file.write(json.dumps({"kind": kind, "tried": 1, "passed": 0}) + "\n")
