"""Finds the runs in a folder, including nested ones of experiments, ablations and searches."""

import os
from collections.abc import Iterator
from pathlib import Path

from drl.core.errors import BadInput

DEPTH = 4  # folders below the given one


def found_runs(given: str | Path) -> list[Path]:
    """Return the run itself, or every run below. Links are not followed, because they may lead anywhere."""
    folder = Path(given)
    if not str(given) or not folder.is_dir():
        raise BadInput(f"{str(given)!r} is not a folder; expected a run, or a folder of runs such as results/")
    return list(_below(folder, DEPTH))


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if os.path.lexists(folder / "run.json"):
        yield folder
    elif depth:
        try:
            with os.scandir(folder) as entries:
                inside = sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
        except OSError:  # deleted, or without permission to read
            return
        for name in inside:
            yield from _below(folder / name, depth - 1)
