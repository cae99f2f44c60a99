"""`drl report RUN…`: write one HTML file with curves, video, evaluations, settings and versions of runs."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


@dataclass(frozen=True)
class Flags:
    """Flags of `drl report`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]  # runs, or folders of runs
    out: str | None = None  # an .html file; default: report.html in the run, or in the runs' common folder
    video: bool = True  # put the video of each run into the page


def main(arguments: list[str]) -> int:
    """Run `drl report`."""
    flags = parse_flags(Flags, arguments, prog="drl report", description="Write an HTML page about one or more runs.")
    from drl.report.report_page import report

    print(report(flags.runs, out=flags.out, video=flags.video))
    return 0
