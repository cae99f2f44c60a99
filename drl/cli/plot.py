"""`drl plot RUN…`: plot one run again, or several runs together."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from drl.cli.flags import parse_flags
from drl.core.errors import BadInput, DrlError, UnusableFile, one_line
from drl.core.safe_files import check_out
from drl.experiment.run_folder import find_run, runs_in


@dataclass(frozen=True)
class Flags:
    """Flags of `drl plot`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]  # run folders, or experiment folders with all their runs
    labels: tuple[str, ...] = ()  # a name for each of RUNS, or for each line of the plot
    metric: tuple[str, ...] = ()  # columns of metrics.jsonl, a panel each; default: return, of each episode
    statistic: str | None = None  # of the lines over seeds: mean (the default), median or iqm
    smooth: int | None = None  # episodes or rows that a trailing mean is over; 1: none; default: by the runs' length
    out: str | None = None  # .png, .pdf or .svg; default: comparison.png beside the first run
    overwrite: bool = False  # replace an existing --out
    report: bool = False  # also write report.html into each run folder, as `drl report` does


def main(arguments: list[str]) -> int:
    """Run `drl plot`."""
    flags = parse_flags(Flags, arguments, prog="drl plot", description="Draw one run, or several together.")
    from drl.report.one_file import write_report
    from drl.tracking.figures import picture_format
    from drl.tracking.plots import plot_compare, plot_run

    found = [(given, folder) for given in flags.runs for folder in _runs_of(given)]
    folders = [folder for _, folder in found]
    if not folders:
        raise BadInput("give at least one run folder: drl plot results/<experiment>/<run>")
    out = Path(flags.out or folders[0].parent / "comparison.png")
    picture_format(out)
    check_out(out, overwrite=flags.overwrite or not flags.out)
    changes = {"metrics": flags.metric, "statistic": flags.statistic, "smooth": flags.smooth}
    options: dict[str, Any] = {name: value for name, value in changes.items() if value not in (None, ())}
    try:
        if flags.labels:
            options["labels"] = _label_of_each(flags.labels, found)
        if len(folders) == 1 and flags.out is None and not options:
            written = plot_run(folders[0])
        else:
            written = [plot_compare(folders, out, **options)]
        if flags.report:
            written += [write_report([folder]) for folder in folders]
    except DrlError:
        raise
    except Exception as error:  # a run's files may come from anyone and contain anything
        message = one_line(error, 300)
        raise UnusableFile(f"{', '.join(map(str, folders))} cannot be drawn ({message})") from error
    if not written:
        raise BadInput(f"{folders[0]} has nothing to draw yet: no finished episode in metrics.jsonl")
    for path in written:
        print(path)
    return 0


def _label_of_each(labels: Sequence[str], found: Sequence[tuple[str, Path]]) -> list[str]:
    """The label of each run: that of its path, or else that of its line."""
    from drl.tracking.run_groups import grouped_runs

    paths = list(dict.fromkeys(given for given, _ in found))
    if len(labels) == len(paths):
        return [labels[paths.index(given)] for given, _ in found]
    lines = grouped_runs([folder for _, folder in found])
    if len(labels) != len(lines):
        raise BadInput(
            f"--labels has {len(labels)} names; expected one for each path ({len(paths)}), "
            f"or one for each line of the plot ({len(lines)}: {'; '.join(lines)})"
        )
    of_run = {run.resolve(): label for label, runs in zip(labels, lines.values(), strict=True) for run in runs}
    return [of_run[folder.resolve()] for _, folder in found]


def _runs_of(given: str) -> list[Path]:
    """One run, or every run of an experiment folder; one that was stopped before its first row is left out."""
    folder = Path(given)
    if os.path.lexists(folder / "run.json") or not (runs := runs_in(folder)):
        return [find_run(folder)]
    logged = [run for run in runs if os.path.lexists(run / "metrics.jsonl")]
    for run in runs if logged else ():
        if run not in logged:
            warnings.warn(f"left out: {run} has logged nothing yet", stacklevel=2)
    return logged or runs
