"""`drl plot RUN…`: plot one run, or several runs in one figure."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


@dataclass(frozen=True)
class Flags:
    """Flags of `drl plot`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]  # run folders, or experiment folders with all their runs
    labels: tuple[str, ...] = ()  # a name for each of RUNS, or for each line of the plot
    metric: tuple[str, ...] = ()  # columns of metrics.jsonl, one panel each; default: return (per episode)
    statistic: str | None = None  # over seeds: mean (the default), median or iqm
    smooth: int | None = None  # window of the trailing mean, in episodes or rows; 1: none; default: by run length
    out: str | None = None  # .png, .pdf or .svg; default: comparison.png beside the first run
    overwrite: bool = False  # replace an existing --out
    report: bool = False  # also write report.html into each run folder, as `drl report` does


def main(arguments: list[str]) -> int:
    """Run `drl plot`."""
    flags = parse_flags(Flags, arguments, prog="drl plot", description="Plot one run, or several in one figure.")
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
