"""`drl plot`, `drl report` and `drl board`: pictures and pages about runs."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


@dataclass(frozen=True)
class PlotFlags:
    """Flags of `drl plot`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]  # run folders, or experiment folders with all their runs
    labels: tuple[str, ...] = ()  # a name for each of RUNS, or for each line of the plot
    metric: tuple[str, ...] = ()  # columns of metrics.jsonl, one panel each; default: return (per episode)
    statistic: str | None = None  # over seeds: mean (the default), median or iqm
    smooth: int | None = None  # window of the trailing mean, in episodes or rows; 1: none; default: by run length
    out: str | None = None  # .png, .pdf or .svg; default: comparison.png beside the first run
    overwrite: bool = False  # replace an existing --out
    report: bool = False  # also write report.html into each run folder, as `drl report` does


def run_plot(arguments: list[str]) -> int:
    """Run `drl plot`."""
    flags = parse_flags(PlotFlags, arguments, prog="drl plot", description="Plot one run, or several in one figure.")
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


@dataclass(frozen=True)
class ReportFlags:
    """Flags of `drl report`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]  # runs, or folders of runs
    out: str | None = None  # an .html file; default: report.html in the run, or in the runs' common folder
    video: bool = True  # put the video of each run into the page


def run_report(arguments: list[str]) -> int:
    """Run `drl report`."""
    flags = parse_flags(
        ReportFlags, arguments, prog="drl report", description="Write an HTML page about one or more runs."
    )
    from drl.report.report_page import report

    print(report(flags.runs, out=flags.out, video=flags.video))
    return 0


@dataclass(frozen=True)
class BoardFlags:
    """Flags of `drl board`."""

    folder: Annotated[str, tyro.conf.Positional] = "results"  # a folder of runs; new runs appear automatically
    port: int = 8321  # 0: any free port
    host: str = "127.0.0.1"  # address to listen on; with another address, other machines can read the runs


def run_board(arguments: list[str]) -> int:
    """Run `drl board`."""
    flags = parse_flags(BoardFlags, arguments, prog="drl board", description="Watch runs live in a browser.")
    from drl.report.board import board

    board(flags.folder, port=flags.port, host=flags.host, wait=True, console=True)
    return 0
