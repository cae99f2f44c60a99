"""`drl board`: what it answers, and whom."""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from written_runs import append_rows, metric_row, write_run

from drl.core.errors import BadInput
from drl.report.board import BoardContent, board_server, last_row
from drl.report.report_page import found_runs


def ask(port, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    for name, value in ({"Host": f"127.0.0.1:{port}"} | {k.replace("_", "-"): v for k, v in headers.items()}).items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_it_lists_runs_and_has_a_page_for_each(board, run):
    answer, body = ask(board, "/runs.json")
    (entry,) = json.loads(body)["runs"]
    assert entry["name"] == "first/run-1"
    assert (entry["steps"], entry["return"], entry["training"]) == (4000, 400.0, False)
    for path in ("/", "/report?run=first/run-1"):
        answer, body = ask(board, path)
        assert answer.status == 200
        assert b"connect-src &#x27;self&#x27;" in body
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    _, body = ask(board, "/data.json?run=first/run-1")
    assert len(json.loads(body)["runs"][0]["curves"]["return"]["x"]) == 80


def test_new_rows_and_new_runs_appear(board, run, monkeypatch):
    monkeypatch.setattr("drl.report.board.FRESH_SECONDS", 0.0)
    path = "/data.json?run=first/run-1"
    tag = ask(board, path)[0].headers["ETag"]
    assert ask(board, path, If_None_Match=tag)[0].status == 304
    append_rows(run, [metric_row(41)])
    answer, body = ask(board, path, If_None_Match=tag)
    assert answer.status == 200
    assert json.loads(body)["runs"][0]["facts"]["environment steps"] == 4100
    write_run(run.parents[1] / "second" / "run-2")
    names = [entry["name"] for entry in json.loads(ask(board, "/runs.json")[1])["runs"]]
    assert sorted(names) == ["first/run-1", "second/run-2"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_it_is_only_for_reading(board, method):
    answer, _ = ask(board, "/", method)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD"


def test_head_has_no_content(board):
    answer, body = ask(board, "/", "HEAD")
    assert (answer.status, body) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 10_000


@pytest.mark.parametrize(
    "path",
    [
        "/../precious.txt",
        "/..%2fprecious.txt",
        "/first/run-1/config.yaml",
        "/report?run=../results/first/run-1",
        "/report?run=..",
        "/report?run=/etc",
        "/data.json?run=first%2F..%2Ffirst/run-1",
        "/data.json?run=first/run-1/../run-1",
        "/data.json?run=first",
        "/data.json",
        "/video.mp4?run=first/run-1",  # it has none
        "/report?" + "&".join(f"run={number}" for number in range(500)),
    ],
)
def test_there_is_no_way_to_other_files(board, run, path):
    (run.parents[2] / "precious.txt").write_text("mine")
    answer, body = ask(board, path)
    assert answer.status == 404
    assert b"mine" not in body


def test_a_deleted_run_does_not_take_the_others_along(board, run):
    answer, body = ask(board, "/data.json?run=first/run-1&run=other")
    assert answer.status == 200
    first, other = json.loads(body)["runs"]
    assert "problem" not in first
    assert other == {"name": "other", "problem": "it was deleted or moved"}


def test_links_are_not_followed(board, run):
    outside = write_run(run.parents[2] / "outside" / "run")
    (run.parents[1] / "linked").symlink_to(outside.parent)
    assert found_runs(run.parents[1]) == [run]
    (run / "videos").mkdir()
    (run / "videos" / "final_agent.mp4").symlink_to(outside / "run.json")
    answer, body = ask(board, "/video.mp4?run=first/run-1")
    assert answer.status == 404
    assert b"leads out of" in body


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil.example"]
)
def test_another_name_for_this_machine_is_refused(board, host):
    """A site that lets its own name point to 127.0.0.1 could read everything otherwise."""
    for path in ("/", "/runs.json", "/data.json?run=first/run-1"):
        answer, body = ask(board, path, Host=host)
        assert answer.status == 403
        assert b"run-1" not in body
    assert ask(board, "/", Host=f"localhost:{board}")[0].status == 200


def test_a_video_comes_whole_or_in_parts(board, run):
    (run / "videos").mkdir()
    (run / "videos" / "final_agent.mp4").write_bytes(bytes(range(100)))
    answer, body = ask(board, "/video.mp4?run=first/run-1")
    assert (answer.status, len(body), answer.headers["Accept-Ranges"]) == (200, 100, "bytes")
    answer, body = ask(board, "/video.mp4?run=first/run-1", Range="bytes=90-")
    assert (answer.status, body, answer.headers["Content-Range"]) == (206, bytes(range(90, 100)), "bytes 90-99/100")


def test_a_broken_run_is_shown_as_broken_beside_the_others(board, run):
    (run / "run.json").write_text("{}{")
    (entry,) = json.loads(ask(board, "/runs.json")[1])["runs"]
    assert "run.json" in entry["problem"]
    (shown,) = json.loads(ask(board, "/data.json?run=first/run-1")[1])["runs"]
    assert "run.json" in shown["problem"]


def test_a_run_that_another_process_trains_is_in_progress(board, run):
    other = write_run(run.parents[1] / "second" / "run-2", status="unfinished")
    (other / ".lock").touch()
    code = "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX); print(); input()"
    command = [sys.executable, "-uc", code, str(other / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        training = {each["name"]: each["training"] for each in json.loads(ask(board, "/runs.json")[1])["runs"]}
        shown = json.loads(ask(board, "/data.json?run=second/run-2")[1])["runs"][0]["training"]
        process.communicate(b"\n")
    assert training == {"first/run-1": False, "second/run-2": True}
    assert shown
    assert not json.loads(ask(board, "/data.json?run=second/run-2")[1])["runs"][0]["training"]  # its process has ended


def test_a_port_in_use_is_one_line(board, tmp_path):
    with pytest.raises(BadInput, match=f"cannot listen on 127.0.0.1 port {board}: .*choose another --port"):
        board_server(tmp_path, "127.0.0.1", board)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_command_serves_until_it_is_stopped(run, number, code):
    host = ["--host", "0.0.0.0"] if number == signal.SIGTERM else []
    command = [sys.executable, "-m", "drl.cli.entry", "board", str(run.parents[1]), "--port", "0", *host]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(2 if host else 1)]
        port = int(re.search(r"http://[\d.]+:(\d+)/ \(Ctrl-C ends it\)", lines[-1])[1])
        assert ask(port, "/")[0].status == 200
        os.kill(process.pid, number)
        _, error = process.communicate(timeout=20)
    assert (process.returncode, error) == (code, "")
    if host:
        assert lines[0].startswith("warning: everyone who can reach 0.0.0.0 can read the runs in ")


def test_a_board_forgets_runs_that_are_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("drl.report.board.FRESH_SECONDS", 0.0)
    content = BoardContent(tmp_path)
    runs = [write_run(tmp_path / "a" / f"r{number}") for number in range(3)]
    content.listing()
    for count in (1, 2, 3):
        content.page_data(dict(list(content.runs().items())[:count]))
    assert len(content._pages) == 3
    shutil.rmtree(runs[0])
    content.listing()
    assert len(content._pages) == len(content._entries) == 2


def test_the_last_row_may_be_long(run, monkeypatch):
    monkeypatch.setattr("drl.report.board.TAIL", 64)
    append_rows(run, [metric_row(77) | {"episodes": [1.0] * 500}])
    assert last_row(run)["env_steps"] == metric_row(77)["env_steps"]
    (run / "metrics.jsonl").write_text(json.dumps(metric_row(5)) + "\n")  # the only row
    assert last_row(run)["env_steps"] == metric_row(5)["env_steps"]
    (run / "metrics.jsonl").write_text("")
    assert last_row(run) == {}
