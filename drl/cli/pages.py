"""`drl plot`, `drl report` and `drl board`: pictures and pages about runs."""

from dataclasses import dataclass

from drl.cli.flags import Positional


@dataclass(frozen=True)
class PlotCommand:
    """Plot one run, or several in one figure."""

    runs: Positional[tuple[str, ...]] = ()  # run folders, or experiment folders with all their runs
    labels: tuple[str, ...] = ()  # a name for each of RUNS, or for each line of the plot
    metric: tuple[str, ...] = ()  # columns of metrics.jsonl, one panel each; default: return (per episode)
    statistic: str | None = None  # over seeds: mean (the default), median or iqm
    smooth: int | None = None  # window of the trailing mean, in episodes or rows; 1: none; default: by run length
    out: str | None = None  # .png, .pdf or .svg; default: comparison.png beside the first run
    overwrite: bool = False  # replace an existing --out
    report: bool = False  # also write report.html into each run folder, as `drl report` does

    def __call__(self) -> None:
        from drl.report.plot_call import plot

        print(plot(**vars(self)))


@dataclass(frozen=True)
class ReportCommand:
    """Write an HTML page about one or more runs."""

    runs: Positional[tuple[str, ...]] = ()  # runs, or folders of runs
    out: str | None = None  # an .html file; default: report.html in the run, or in the runs' common folder
    video: bool = True  # put the video of each run into the page

    def __call__(self) -> None:
        from drl.report.report_page import report

        print(report(**vars(self)))


@dataclass(frozen=True)
class BoardCommand:
    """Watch runs live in a browser."""

    folder: Positional[str] = "results"  # a folder of runs; new runs appear automatically
    port: int = 8321  # 0: any free port
    host: str = "127.0.0.1"  # address to listen on; with another address, other machines can read the runs

    def __call__(self) -> None:
        from drl.report.board import board

        board(**vars(self), wait=True, console=True)
