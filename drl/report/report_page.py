"""`drl.report`, `write_report`: a self-contained HTML file about one or more runs.

A page is one HTML text with inline styles and scripts. Its Content-Security-Policy forbids loading anything else.
"""

import base64
import hashlib
import html
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drl.core.errors import BadInput, DrlError, UnusableFile, html_table, plural
from drl.core.safe_files import read_inside, write_atomically
from drl.core.specs import PlainDict, PlainValue
from drl.report.run_content import MOST_VIDEO, find_video, read_run
from drl.runs.folder.finished import RunLike, folders_of
from drl.tracking.curves import distinct_names

MOST_SHOWN = 20  # runs listed in a notebook
POINTS, FEWEST_POINTS = 1000, 10  # per curve
POINTS_OF_ALL = 3000  # per metric over all runs, so that the page does not grow with the number of runs
MOST_BYTES = 5_000_000  # without videos
MOST_VIDEOS = 64 << 20  # bytes of all videos together
DEPTH = 4  # folders below the given one
PARTS = Path(__file__).parent / "page"
SCRIPTS: dict[str, tuple[str, ...]] = {
    "report": ("uPlot.iife.min.js", "elements.js", "charts.js", "tables.js", "report.js"),
    "board": ("elements.js", "board.js"),
}
MARK = '<meta name="generator" content="drl report">'  # distinguishes our pages from other files


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
    folders = folders_of(runs)
    if not folders:
        raise BadInput("give at least one run, or a folder of runs: drl report results/<experiment>")
    if out is not None and Path(out).suffix not in (".html", ".htm"):
        raise BadInput(f"--out is {str(out)!r}; expected an HTML file such as report.html")
    runs_in = {folder: found_runs(folder) for folder in folders}
    for folder, inside in runs_in.items():
        if not inside:
            raise BadInput(f"{folder} holds no run: expected {folder}/run.json, or folders with one; see `ls results/`")
    shown = list({run.resolve(): run for inside in runs_in.values() for run in inside}.values())
    page = ReportPage(write_report(shown, None if out is None else Path(out), video), tuple(shown))
    if console:
        print(page)
    return page


def found_runs(given: str | Path) -> list[Path]:
    """Return the run itself, or every run below. Links are not followed, because they may lead anywhere."""
    folder = Path(given)
    if not str(given) or not folder.is_dir():
        raise BadInput(f"{str(given)!r} is not a folder; expected a run, or a folder of runs such as results/")
    return list(_below(folder, DEPTH))


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if os.path.lexists(folder / "run.json"):
        yield folder
    elif depth:
        try:
            with os.scandir(folder) as entries:
                inside = sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
        except OSError:  # deleted, or without permission to read
            return
        for name in inside:
            yield from _below(folder / name, depth - 1)


def write_report(runs: Sequence[Path], out: Path | None = None, video: bool = True) -> Path:
    """Write a page about runs and return its path: `out`, or `report.html` in the run or in the runs' common folder. A
    file that is not a report is never replaced."""
    runs = list({run.resolve(): run for run in runs}.values())
    if not runs:
        raise BadInput("got no runs to report on; give a run, or a folder of runs such as results/")
    path = out or _common_folder(runs) / "report.html"
    if os.path.lexists(path) and not _is_our_page(path):
        raise BadInput(f"{path} exists and is not a report that drl wrote; choose another file with --out")
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent} is not a folder; create it, or choose another --out")
    names = [f"{run.resolve().parent.name}/{run.resolve().name}" for run in runs]
    if len(set(names)) < len(runs):
        names = list(distinct_names([run.resolve() for run in runs]).values())
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


def _fitting(runs: Sequence[Path], names: Sequence[str], title: str) -> list[PlainDict]:
    """Read the runs, with as many points as fit into a page."""
    points = points_for(len(runs))
    while True:
        content = [read_run(run, name, points) for run, name in zip(runs, names, strict=True)]
        errors = [UnusableFile(run["problem"]) for run in content if "problem" in run]
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
            content = b"" if why else read_inside(folder, video, MOST_VIDEO)
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


def render_page(skeleton: str, title: str, data: PlainValue, live: bool = False) -> str:
    """Fill `page/<skeleton>.html` (`report` or `board`) with the `data` that its scripts draw. Only a `live` page,
    which a board serves, may request more from its server."""

    def part(name: str) -> str:
        return (PARTS / name).read_text(encoding="utf-8")

    def digest(text: str) -> str:  # by which the policy allows a script or a style
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    style, scripts = part("uPlot.min.css") + part("report.css"), [part(name) for name in SCRIPTS[skeleton]]
    sources = " ".join(map(digest, scripts))
    own = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src {sources}; style-src {digest(style)}; connect-src {own}; "
        f"media-src {own if live else 'data:'}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy),
        "mark": MARK,
        "title": html.escape(title),
        "style": style,
        "data": json_in_html(data),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], part(f"{skeleton}.html"))


def json_in_html(data: PlainValue) -> str:
    """Return JSON that cannot close the HTML element around it.

    >>> json_in_html("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _is_our_page(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return MARK.encode() in file.read(4096)
