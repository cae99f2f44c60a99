"""`drl reproduce PRESET`: train a preset with fresh seeds and compare with its stored result. `--all`: many of them."""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags
from drl.core.errors import BadInput
from drl.core.size_limits import check_size
from drl.experiment.preset_records import FAIL, PASS, RECORDS, UNDECIDED, keep_record

EXIT_CODES = {PASS: 0, FAIL: 1, UNDECIDED: 7}
SEVERITY = [0, 7, 1]  # the last one of several answers counts


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
    _check(flags)
    from drl.analysis.reproduction import find_preset, reproduce
    from drl.analysis.reproduction_queue import reproduce_all
    from drl.experiment.session import say

    results_dir, verdicts = Path(flags.results_dir), dict[str, str]()  # by preset, the last one
    if flags.all:
        assert flags.minutes is not None
        answers = reproduce_all(flags.seeds, flags.minutes, results_dir, engine=flags.engine, say=say)
    else:
        deadline = None if flags.minutes is None else time.monotonic() + 60 * flags.minutes
        preset = find_preset(str(flags.preset))
        one = reproduce(preset, flags.seeds, results_dir, engine=flags.engine, deadline=deadline, say=say)
        if one is None:
            say(f"{UNDECIDED}: {preset.name}: the time is over; the same command goes on here")
        answers = iter([] if one is None else [one])
    for answer in answers:
        say(answer.sentence())
        verdicts[answer.preset.name] = answer.verdict
        if flags.record and answer.record is not None:
            keep_record(answer.record)
    if flags.all:
        counts = Counter(verdicts.values())
        say(f"presets: {', '.join(f'{counts[each]} {each}' for each in EXIT_CODES)}")
    return max((EXIT_CODES[each] for each in verdicts.values()), key=SEVERITY.index, default=EXIT_CODES[UNDECIDED])


def _check(flags: Flags) -> None:
    """Refuse what cannot be done before anything is trained."""
    if flags.all == (flags.preset is not None):
        raise BadInput("give one preset, such as ppo/CartPole-v1 (see `drl list presets`), or --all --minutes M")
    if flags.all and flags.minutes is None:
        raise BadInput("--all needs the time that it may take: --all --minutes 60")
    if flags.minutes is not None and not 0 < flags.minutes < float("inf"):
        raise BadInput(f"--minutes is {flags.minutes:g}; expected a number above 0")
    if flags.seeds < 1:
        raise BadInput(f"--seeds is {flags.seeds}; expected a whole number of at least 1")
    check_size("num_seeds", flags.seeds)
    if flags.engine not in (None, "torch", "jax"):
        raise BadInput(f"--engine is {flags.engine!r:.80}; expected torch or jax")
    if flags.record and not (RECORDS.parents[3] / ".git").exists():
        raise BadInput(f"--record writes {RECORDS}, which is for a clone of the repository; this is none: leave it out")
