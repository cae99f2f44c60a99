"""`drl.board`: the pages of the runs in a folder over HTTP. The server answers GET and HEAD and writes no files."""

import datetime
import hashlib
import json
import os
import re
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from drl.core.errors import BadInput, DrlError, Interrupted
from drl.core.processes import RunningServer, is_loopback, is_own_host, url_of
from drl.core.safe_files import MOST_SETTINGS, is_inside, parse_yaml, read_inside
from drl.core.setting_rules import check_size, check_whole
from drl.core.specs import PlainDict, PlainValue
from drl.report.report_page import found_runs, points_for, render_page
from drl.report.run_content import MOST_VIDEO, find_video, in_training, plain_value, read_run, short_text
from drl.runs.folder.run_folder import read_record

HTML, JSON, TEXT, VIDEO = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8", "video/mp4"
MOST_RUNS = 100  # per page
SAFE = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest of the policy is in the page
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
FRESH_SECONDS = 1.0  # for which a list of the folders is reused
TAIL = 1 << 18  # bytes at the end of metrics.jsonl that are searched first for its last row
LONGEST_ROW = 1 << 26
Stamp = tuple[tuple[int, int] | None, ...]


class BoardResponse(NamedTuple):
    """HTTP response."""

    content: bytes
    kind: str = TEXT
    status: HTTPStatus = HTTPStatus.OK


def board(
    folder: str | Path = "results",
    *,
    port: int = 8321,
    host: str = "127.0.0.1",
    wait: bool = False,
    console: bool = False,
) -> RunningServer:
    """Show the runs in a folder live in a browser. The server runs in a thread until it is closed; with `wait`, this
    call blocks until Ctrl-C.

    New runs appear automatically. `port` 0 is any free port. `host` is the address to listen on; unless it is a
    loopback address, other machines can read the runs.
    """
    root = Path(folder)
    check_whole("port", port, 0, 65535)
    check_size("host", host)
    check_size("folder", str(folder))
    if not str(folder) or not root.is_dir():
        raise BadInput(f"{str(folder)!r} is not a folder; expected a folder of runs: drl board results/")
    server = board_server(root, host, port)
    url = f"{url_of(host, server.server_address[1])}/"
    about = f"board of {root}: {url} (Ctrl-C ends it)"
    if not is_loopback(host):
        about = f"warning: everyone who can reach {host} can read the runs in {root}\n{about}"
    if console:
        print(about, flush=True)
    thread = threading.Thread(target=server.serve_forever, name="drl board", daemon=True)

    def stop() -> None:
        server.shutdown()
        server.server_close()

    running = RunningServer(f"board of {root}", url, about, thread, stop)
    if not wait:
        thread.start()
        return running
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt as interrupt:
            if isinstance(interrupt, Interrupted):  # SIGTERM, SIGHUP
                raise
    return running


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
        when, runs = self._found
        if time.monotonic() - when >= FRESH_SECONDS:
            folders = found_runs(self.root) if self.root.is_dir() else []
            runs = {_name(self.root, folder): folder for folder in folders}
            self._pages = {name: page for name, page in self._pages.items() if name in runs}
            self._entries = {name: entry for name, entry in self._entries.items() if name in runs}
            self._found = (time.monotonic(), runs)
        return runs

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
            query = urlencode({"run": name, "changed": video.lstat().st_mtime_ns})
            page = page | {"video": f"/video.mp4?{query}"}
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
    except (DrlError, ValueError, OSError) as error:
        return {"problem": short_text(str(error)), "changed": when}
    entry = {
        "status": record.get("status"),
        "seed": record.get("seed"),
        "algorithm": settings.get("algorithm"),
        "environment": settings.get("env"),
        "steps": row.get("env_steps"),
        "return": row.get("recent/mean_ep_return"),
    }
    return {key: plain_value(value) for key, value in entry.items()} | {"changed": when}


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
    stamps: list[tuple[int, int] | None] = []
    for file in files:
        try:
            status = os.stat(folder / file)
            stamps.append((status.st_mtime_ns, status.st_size))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


def board_server(root: Path, host: str, port: int) -> ThreadingHTTPServer:
    """Return a listening server; `serve_forever` runs it."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True  # Ctrl-C does not wait for a browser
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    class Handler(BoardHandler):
        board, own_name = BoardContent(root), host.lower()

    try:
        return Server((host, port), Handler)
    except (OSError, OverflowError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise BadInput(f"cannot listen on {host} port {port}: {why}; choose another --port (0: a free one)") from None


class BoardHandler(BaseHTTPRequestHandler):
    """One request."""

    board: BoardContent
    own_name: str  # the given host
    protocol_version = "HTTP/1.1"
    timeout: ClassVar[int] = 30  # seconds without data before a connection is closed

    def do_GET(self) -> None:
        """Send a page, its data or a video."""
        if not is_own_host(self.headers.get("Host", ""), self.own_name):
            text = "the Host header is not this board's address; open it as http://127.0.0.1:PORT/"
            self._send(BoardResponse(text.encode(), status=HTTPStatus.FORBIDDEN))
            return
        try:
            answer = self._answer()
        except Exception as error:  # a run's files are untrusted and may be deleted at any time
            text = f"{type(error).__name__}: {error}"
            answer = BoardResponse(text.encode(errors="replace"), status=HTTPStatus.NOT_FOUND)
        self._send(answer)

    do_HEAD = do_GET  # noqa: N815

    def _refuse(self) -> None:
        self.close_connection: bool = True  # the request's body is not read
        self._send(BoardResponse(b"a board is read-only: use GET or HEAD", status=HTTPStatus.METHOD_NOT_ALLOWED))

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _answer(self) -> BoardResponse:
        parts = urlsplit(self.path)
        names = list(dict.fromkeys(parse_qs(parts.query, max_num_fields=4 * MOST_RUNS).get("run", [])))
        if parts.path == "/":
            return _page("board", f"Runs in {self.board.root}", "/runs.json")
        if parts.path == "/runs.json":
            return _json(self.board.listing())
        if parts.path not in ("/report", "/data.json", "/video.mp4"):
            return BoardResponse(b"there is no such page", status=HTTPStatus.NOT_FOUND)
        runs = self.board.runs()
        folders = {name: runs.get(name) for name in names}  # None: deleted since the page was opened
        if not 0 < len(names) <= MOST_RUNS or not any(folders.values()):
            text = f"expected run=NAME, at most {MOST_RUNS} times, with names from the list at /"
            return BoardResponse(text.encode(), status=HTTPStatus.NOT_FOUND)
        if parts.path == "/data.json":
            return _json(self.board.page_data(folders))
        if parts.path == "/video.mp4":
            folder = folders[names[0]]
            if folder is None or (video := find_video(folder)) is None:
                return BoardResponse(b"the run has no video", status=HTTPStatus.NOT_FOUND)
            return BoardResponse(read_inside(folder, video, MOST_VIDEO), VIDEO)
        title = names[0] if len(names) == 1 else f"{len(names)} runs"
        return _page("report", title, "/data.json?" + urlencode([("run", name) for name in names]))

    def _send(self, answer: BoardResponse) -> None:
        content, status, extra = answer.content, answer.status, {}
        if status is HTTPStatus.OK:
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            extra = {"ETag": tag}
            if answer.kind == VIDEO:
                extra["Accept-Ranges"] = "bytes"
                if span := asked_span(self.headers.get("Range", ""), len(content)):
                    status = HTTPStatus.PARTIAL_CONTENT
                    extra["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{len(content)}"
                    content = content[span.start : span.stop]
            elif self.headers.get("If-None-Match") == tag:
                content, status = b"", HTTPStatus.NOT_MODIFIED
        elif status is HTTPStatus.METHOD_NOT_ALLOWED:
            extra = {"Allow": "GET, HEAD"}
        self.send_response(status)
        for name, value in (SAFE | extra | {"Content-Type": answer.kind, "Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        try:
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)
        except (ConnectionError, TimeoutError):  # the browser closed the connection
            self.close_connection = True

    def version_string(self) -> str:
        """The server's name, without its version."""
        return "drl-board"

    def log_message(self, format: str, *args: object) -> None:
        """Print no access log."""


def asked_span(header: str, size: int) -> range | None:
    """Return the bytes requested by a Range header; None: all of them.

    >>> asked_span("bytes=2-", 10), asked_span("bytes=0-3", 10), asked_span("bytes=-4", 10), asked_span("bytes=12-", 10)
    (range(2, 10), range(0, 4), range(6, 10), None)
    """
    match = re.fullmatch(r"bytes=(\d{0,15})-(\d{0,15})", header.strip())
    if match is None or match[1] == match[2] == "":
        return None
    first = int(match[1]) if match[1] else max(size - int(match[2]), 0)
    last = min(int(match[2]), size - 1) if match[1] and match[2] else size - 1
    return range(first, last + 1) if first <= last else None


def _page(skeleton: str, title: str, source: str) -> BoardResponse:
    return BoardResponse(render_page(skeleton, title, {"source": source}, live=True).encode(), HTML)


def _json(data: PlainValue) -> BoardResponse:
    return BoardResponse(json.dumps(data, allow_nan=False, separators=(",", ":")).encode(), JSON)
