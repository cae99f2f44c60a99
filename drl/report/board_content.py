"""Content of a board: the list of runs in a folder, the data of their pages, their videos. Read-only."""

import datetime
import json
import os
import threading
import time
from pathlib import Path
from urllib.parse import urlencode

from drl.core.errors import DrlError
from drl.core.safe_files import MOST_SETTINGS, is_inside, parse_yaml, read_inside
from drl.core.specs import PlainDict
from drl.report.found_runs import found_runs
from drl.report.one_file import points_for
from drl.report.run_content import find_video, in_training, plain_value, read_run, short_text
from drl.runs.folder.run_folder import read_record

FRESH_SECONDS = 1.0  # for which a list of the folders is reused
TAIL = 1 << 18  # bytes at the end of metrics.jsonl that are searched first for its last row
LONGEST_ROW = 1 << 26
Stamp = tuple[tuple[int, int] | None, ...]


class BoardContent:
    """The runs below `root`, named by their relative path. A requested name is looked up among the found runs and is
    never used as a path."""

    def __init__(self, root: Path):
        self.root = root
        self._found: tuple[float, dict[str, Path]] = (-FRESH_SECONDS, {})
        self._pages: dict[str, tuple[Stamp, int, PlainDict]] = {}  # last page of each run and its number of points
        self._entries: dict[str, tuple[Stamp, PlainDict]] = {}
        self._lock = threading.Lock()  # so that two requests do not read a long run twice

    def runs(self) -> dict[str, Path]:
        """Return the runs below the folder by name, cached for a short time."""
        when, found = self._found
        if time.monotonic() - when >= FRESH_SECONDS:
            folders = found_runs(self.root) if self.root.is_dir() else []
            found = {_name(self.root, folder): folder for folder in folders}
            self._pages = {name: page for name, page in self._pages.items() if name in found}
            self._entries = {name: entry for name, entry in self._entries.items() if name in found}
            self._found = (time.monotonic(), found)
        return found

    def listing(self) -> PlainDict:
        """List all runs, most recently changed first."""
        with self._lock:
            entries = [self._entry(name, folder) for name, folder in self.runs().items()]
        return {"runs": sorted(entries, key=lambda entry: str(entry["changed"]), reverse=True)}

    def page_data(self, runs: dict[str, Path | None]) -> PlainDict:
        """Return the data of the page about these runs; None stands for a deleted run."""
        points = points_for(len(runs))
        with self._lock:
            return {"runs": [self._page(name, folder, points) for name, folder in runs.items()]}

    def _page(self, name: str, folder: Path | None, points: int) -> PlainDict:
        if folder is None:
            return {"name": short_text(name), "problem": "it was deleted or moved"}
        video = find_video(folder)
        stamp = _stamp(folder, "metrics.jsonl", "run.json", "config.yaml")
        known = self._pages.get(name)
        if known is None or known[:2] != (stamp, points):
            known = self._pages[name] = (stamp, points, read_run(folder, name, points))
        page = known[2]
        if "problem" not in page:
            status: PlainDict = {"status": page["facts"].get("status")}
            page = page | {"training": in_training(folder, status)}  # its process may have been killed in the meantime
        if video is not None:
            seen = urlencode({"run": name, "changed": video.lstat().st_mtime_ns})
            page = page | {"video": f"/video.mp4?{seen}"}
        return page

    def _entry(self, name: str, folder: Path) -> PlainDict:
        stamp = _stamp(folder, "metrics.jsonl", "run.json")
        known = self._entries.get(name)
        if known is None or known[0] != stamp:
            known = self._entries[name] = (stamp, {"name": name} | _read_entry(folder))
        return known[1] | {"training": in_training(folder, known[1])}


def _read_entry(folder: Path) -> PlainDict:
    changed = max((stamp[0] for stamp in _stamp(folder, "metrics.jsonl", "run.json") if stamp), default=0)
    when = datetime.datetime.fromtimestamp(changed // 10**9).isoformat(sep=" ")
    try:
        record, row = read_record(folder), last_row(folder)
        settings = parse_yaml(read_inside(folder, folder / "config.yaml", MOST_SETTINGS))
        settings = settings if isinstance(settings, dict) else {}
        found = {
            "status": record.get("status"),
            "seed": record.get("seed"),
            "algorithm": settings.get("algorithm"),
            "environment": settings.get("env"),
            "steps": row.get("env_steps"),
            "return": row.get("recent/mean_ep_return"),
        }
    except (DrlError, ValueError, OSError) as error:
        return {"problem": short_text(str(error)), "changed": when}
    return {key: plain_value(value) for key, value in found.items()} | {"changed": when}


def last_row(folder: Path) -> PlainDict:
    """Return the last complete row of `metrics.jsonl`; empty if there is none."""
    path = folder / "metrics.jsonl"
    if not path.is_file() or not is_inside(folder, path):
        return {}
    size, tail = path.stat().st_size, TAIL
    with path.open("rb") as file:
        while True:
            file.seek(max(size - tail, 0))
            lines = file.read(tail).split(b"\n")[:-1]
            if len(lines) > 1 or tail >= min(size, LONGEST_ROW):
                break
            tail *= 2  # until it contains the whole last row
    try:
        row = json.loads(lines[-1]) if lines else {}
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _name(root: Path, run: Path) -> str:
    name = run.relative_to(root).as_posix() if run != root else root.resolve().name
    return name.encode(errors="replace").decode()  # a name that is not valid text cannot be part of a URL


def _stamp(folder: Path, *files: str) -> Stamp:
    """Return a value that changes when one of the files changes."""
    found: list[tuple[int, int] | None] = []
    for file in files:
        try:
            status = os.stat(folder / file)
            found.append((status.st_mtime_ns, status.st_size))
        except OSError:
            found.append(None)
    return tuple(found)
