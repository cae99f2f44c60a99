"""`drl plot RUN…`: plot one run again, or several runs together."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags
from drl.core.errors import BadInput, DrlError, UnusableFile
from drl.experiment.run_folder import find_run, runs_in


@dataclass(frozen=True)
class Flags:
    runs: Annotated[tuple[str, ...], tyro.conf.Positional]  # run folders, or experiment folders with all their runs
    out: str | None = None  # plot of several runs; default: comparison.png beside the first
    overwrite: bool = False  # replace an existing --out
    report: bool = False  # also write report.html into each run folder


def main(arguments: list[str]) -> int:
    flags = parse_flags(Flags, arguments, prog="drl plot", description="Draw runs.")
    from drl.tracking.plots import plot_compare, plot_run
    from drl.tracking.report import write_report

    folders = [folder for given in flags.runs for folder in _runs_of(given)]
    if not folders:
        raise BadInput("give at least one run folder: drl plot results/<experiment>/<run>")
    out = Path(flags.out or folders[0].parent / "comparison.png")
    if out.exists() and flags.out and not flags.overwrite:
        raise BadInput(f"{out} exists; choose another --out, or add --overwrite")
    try:
        written = plot_run(folders[0]) if len(folders) == 1 and flags.out is None else [plot_compare(folders, out)]
        if flags.report:
            written += [write_report(folder) for folder in folders]
    except DrlError:
        raise
    except Exception as error:  # a run's files may come from anyone and contain anything
        message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UnusableFile(f"{', '.join(map(str, folders))} cannot be drawn ({message})") from error
    if not written:
        raise BadInput(f"{folders[0]} has nothing to draw yet: no finished episode in metrics.jsonl")
    for path in written:
        print(path)
    return 0


def _runs_of(given: str) -> list[Path]:
    """One run, or every run of an experiment folder."""
    folder = Path(given)
    if not os.path.lexists(folder / "run.json") and (runs := runs_in(folder)):
        return runs
    return [find_run(folder)]
