"""`drl.report`, `write_report`: a self-contained HTML file about one or more runs."""

import base64
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drl.core.errors import BadInput, DrlError, html_table, plural
from drl.core.safe_files import write_atomically
from drl.core.specs import PlainDict
from drl.report.found_runs import found_runs
from drl.report.page_html import is_our_page, render_page
from drl.report.run_content import find_video, read_run, read_video, unreadable
from drl.runs.folder.finished import RunLike, folders_of
from drl.tracking.run_curves import distinct_names

MOST_SHOWN = 20  # runs listed in a notebook
POINTS, FEWEST_POINTS = 1000, 10  # per curve
POINTS_OF_ALL = 3000  # per metric over all runs, so that the page does not grow with the number of runs
MOST_BYTES = 5_000_000  # without videos
MOST_VIDEOS = 64 << 20  # bytes of all videos together


@dataclass(frozen=True)
class ReportPage:
    """A page that `report` wrote."""

    path: Path  # open it in a browser
    runs: tuple[Path, ...] = field(repr=False)  # runs on the page

    def __str__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        more = [f"… and {len(self.runs) - MOST_SHOWN} more"] if len(self.runs) > MOST_SHOWN else []
        return html_table([f"{self.path}: open it in a browser"], [[run] for run in (*self.runs[:MOST_SHOWN], *more)])


def report(
    runs: RunLike | Iterable[RunLike], *, out: str | Path | None = None, video: bool = True, console: bool = False
) -> ReportPage:
    """Write one page with curves, video, evaluations, settings and versions of one or more runs.

    `runs` are runs or folders of runs. `out` is an .html file, by default report.html in the run or in the runs' common
    folder. A file that is not a report is never replaced.
    """
    given = folders_of(runs)
    if not given:
        raise BadInput("give at least one run, or a folder of runs: drl report results/<experiment>")
    if out is not None and Path(out).suffix not in (".html", ".htm"):
        raise BadInput(f"--out is {str(out)!r}; expected an HTML file such as report.html")
    found = {folder: found_runs(folder) for folder in given}
    for folder, inside in found.items():
        if not inside:
            raise BadInput(f"{folder} holds no run: expected {folder}/run.json, or folders with one; see `ls results/`")
    shown = list({run.resolve(): run for inside in found.values() for run in inside}.values())
    page = ReportPage(write_report(shown, None if out is None else Path(out), video), tuple(shown))
    if console:
        print(page)
    return page


def write_report(runs: Sequence[Path], out: Path | None = None, video: bool = True) -> Path:
    """Write a page about runs and return its path: `out`, or `report.html` in the run or in the runs' common folder. A
    file that is not a report is never replaced."""
    runs = list({run.resolve(): run for run in runs}.values())
    if not runs:
        raise BadInput("got no runs to report on; give a run, or a folder of runs such as results/")
    path = out or _common_folder(runs) / "report.html"
    if os.path.lexists(path) and not is_our_page(path):
        raise BadInput(f"{path} exists and is not a report that drl wrote; choose another file with --out")
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent} is not a folder; create it, or choose another --out")
    names = _names([run.resolve() for run in runs])
    title = names[0] if len(runs) == 1 else f"{len(runs)} runs"
    content = _fitting(runs, names, title)
    if video:
        _add_videos(content, runs)
    page = render_page("report", title, {"runs": content}).encode(errors="replace")
    try:
        write_atomically(path, page)
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({error.strerror}); choose another file with --out") from None
    return path


def points_for(runs: int) -> int:
    """Return the number of points per curve for a page with this many runs.

    >>> points_for(1), points_for(10), points_for(1000)
    (1000, 300, 10)
    """
    return max(min(POINTS, POINTS_OF_ALL // runs), FEWEST_POINTS)


def _names(runs: list[Path]) -> list[str]:
    """Return experiment and run, with as many more folders as needed to make the names distinct."""
    names = [f"{run.parent.name}/{run.name}" for run in runs]
    return names if len(set(names)) == len(runs) else list(distinct_names(runs).values())


def _fitting(runs: Sequence[Path], names: Sequence[str], title: str) -> list[PlainDict]:
    """Read the runs, with as many points as fit into a page."""
    points = points_for(len(runs))
    while True:
        content = [read_run(run, name, points) for run, name in zip(runs, names, strict=True)]
        errors = [error for error in map(unreadable, content) if error is not None]
        if len(errors) == len(content):
            raise errors[0]
        size = len(render_page("report", title, {"runs": content}).encode(errors="replace"))
        if size <= MOST_BYTES:
            break
        if points <= FEWEST_POINTS:
            raise BadInput(f"a report on {plural(len(runs), 'run')} is too large ({size:,} bytes); give fewer runs")
        points = max(points // 2, FEWEST_POINTS)
    for error in errors:
        warnings.warn(f"left out: {error}", stacklevel=2)
    return content


def _add_videos(shown: list[PlainDict], runs: Sequence[Path]) -> None:
    room = MOST_VIDEOS
    for run, folder in zip(shown, runs, strict=True):
        video = None if "problem" in run else find_video(folder)
        if video is None:
            continue
        room -= video.lstat().st_size
        why = None if room >= 0 else "the page would become too large"
        try:
            content = b"" if why else read_video(folder, video)
        except DrlError as error:
            if len(runs) == 1:
                raise
            why = str(error)  # the other videos are still included
        if why:
            run["notes"] = [*run["notes"], f"the video {video} is not on this page: {why}"]
        else:
            run["video"] = "data:video/mp4;base64," + base64.b64encode(content).decode()


def _common_folder(runs: Sequence[Path]) -> Path:
    """Return the run, or the common folder of all runs, spelled as given if possible."""
    if len(runs) == 1:
        return runs[0]
    common = Path(os.path.commonpath([run.resolve() for run in runs]))
    return next((parent for parent in runs[0].parents if parent.resolve() == common), common)
