"""`drl report RUN…`: one HTML file with curves, video, evaluations, settings and versions of one run or many."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags
from drl.core.errors import BadInput


@dataclass(frozen=True)
class Flags:
    """Flags of `drl report`."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]  # runs, or folders of runs
    out: str | None = None  # an .html file; default: report.html in the run, or in the folder that holds all of them
    video: bool = True  # put the video of each run into the page


def main(arguments: list[str]) -> int:
    """Run `drl report`."""
    flags = parse_flags(Flags, arguments, prog="drl report", description="Write one page about one run or many.")
    if not flags.runs:
        raise BadInput("give at least one run, or a folder of runs: drl report results/<experiment>")
    if flags.out is not None and Path(flags.out).suffix not in (".html", ".htm"):
        raise BadInput(f"--out is {flags.out!r}; expected an HTML file such as report.html")
    from drl.report.found_runs import found_runs
    from drl.report.one_file import write_report

    found = {given: found_runs(given) for given in flags.runs}
    for given, runs in found.items():
        if not runs:
            raise BadInput(f"{given} holds no run: expected {given}/run.json, or folders with one; see `ls results/`")
    out = None if flags.out is None else Path(flags.out)
    print(write_report([run for runs in found.values() for run in runs], out, flags.video))
    return 0
