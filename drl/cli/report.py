"""`drl report RUN…`: one HTML file with curves, video, evaluations, settings and versions of one run or many."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


@dataclass(frozen=True)
class Flags:
    """Flags of `drl report`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]  # runs, or folders of runs
    out: str | None = None  # an .html file; default: report.html in the run, or in the folder that holds all of them
    video: bool = True  # put the video of each run into the page


def main(arguments: list[str]) -> int:
    """Run `drl report`."""
    flags = parse_flags(Flags, arguments, prog="drl report", description="Write one page about one run or many.")
    from drl.report.one_file import report

    print(report(flags.runs, out=flags.out, video=flags.video))
    return 0
