"""`drl plot RUN…`: plot one run again, or several runs together."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


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
    from drl.report.plot_call import plot

    plots = plot(
        flags.runs,
        labels=flags.labels,
        metric=flags.metric,
        statistic=flags.statistic,
        smooth=flags.smooth,
        out=flags.out,
        overwrite=flags.overwrite,
        report=flags.report,
    )
    print(plots)
    return 0
