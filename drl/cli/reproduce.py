"""`drl reproduce PRESET|--all`: train presets with fresh seeds and compare with their stored results."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags
from drl.settings.preset_records import FAIL, PASS, UNDECIDED

EXIT_CODES = {PASS: 0, FAIL: 1, UNDECIDED: 7}


@dataclass(frozen=True)
class Flags:
    """Flags of `drl reproduce`."""

    preset: Annotated[str | None, tyro.conf.Positional] = None  # ALGORITHM/ENVIRONMENT: drl list presets
    seeds: int = 5  # fresh seeds to train; seeds of an earlier undecided answer count as well
    all: bool = False  # every preset, as many as fit into --minutes
    minutes: float | None = None  # limit of wall time; the next call continues a run that was stopped by it
    engine: str | None = None  # torch · jax; default: the engine of the stored result
    results_dir: str = "results"  # runs go to its folder reproduce/, answers to reproductions.yaml
    record: bool = False  # also store the result with the presets, for `make zoo`; only in a clone of the repository


DESCRIPTION = (
    "Train a preset as its stored result was measured, with fresh seeds, and answer PASS (exit code 0), FAIL (1) or "
    "UNDECIDED (7). See docs/comparing.md for the test."
)


def main(arguments: list[str]) -> int:
    """Run `drl reproduce`."""
    flags = parse_flags(Flags, arguments, prog="drl reproduce", description=DESCRIPTION)
    from drl.analysis.reproduction_queue import reproduce

    return EXIT_CODES[reproduce(**vars(flags), console=True).verdict]
