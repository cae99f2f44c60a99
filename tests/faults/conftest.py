"""Faults made on purpose. `make test` tries a few of each kind, `make faults` all of them.

A test takes its cases from `some(...)`, and counts them with the fixture `tally`, which `make faults` turns into the
table of benchmarks/RESULTS.md.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

Case = TypeVar("Case")
LONG = os.environ.get("DRL_FAULTS") == "long"


def some(cases: Sequence[Case], few: int) -> list[Case]:
    """All cases in the long form; `few` of them, spread evenly, in the short one."""
    cases = list(cases)
    if LONG or len(cases) <= few:
        return cases
    return [cases[i * len(cases) // few] for i in range(few)]


@pytest.fixture
def tally(request) -> Callable[..., None]:
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
