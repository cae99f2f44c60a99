"""`drl reproduce PRESET`: train a preset with fresh seeds and compare with its stored result. `--all`: many of them."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags
from drl.experiment.preset_records import FAIL, PASS, UNDECIDED

EXIT_CODES = {PASS: 0, FAIL: 1, UNDECIDED: 7}


@dataclass(frozen=True)
class Flags:
    """Flags of `drl reproduce`."""

    preset: Annotated[str | None, tyro.conf.Positional] = None  # ALGORITHM/ENVIRONMENT: drl list presets
    seeds: int = 5  # fresh seeds to train; those of an undecided answer before count as well
    all: bool = False  # every preset, as far as --minutes reach
    minutes: float | None = None  # wall time; a run that it stops goes on in the next call
    engine: str | None = None  # torch · jax; default: that of the stored result
    results_dir: str = "results"  # runs go to reproduce/ in it, answers to reproductions.yaml
    record: bool = False  # also keep the result with the presets, for `make zoo`; only in a clone of the repository


DESCRIPTION = (
    "Train a preset as its stored result was measured, with fresh seeds, and answer PASS (exit code 0), FAIL (1) or "
    "UNDECIDED (7). See docs/comparing.md for the test."
)


def main(arguments: list[str]) -> int:
    """Run `drl reproduce`."""
    flags = parse_flags(Flags, arguments, prog="drl reproduce", description=DESCRIPTION)
    from drl.analysis.reproduction_queue import reproduce

    return EXIT_CODES[reproduce(**vars(flags), console=True).verdict]
