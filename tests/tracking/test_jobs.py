"""A bar on a terminal, lines elsewhere, both with the time left."""

import io
import re

import pytest

from drl.tracking import jobs
from drl.tracking.jobs import JobBar, JobTable


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def run(clock, stream, **options):
    with JobBar(stream=stream, **options) as bar:
        bar.begin("ablation", 14, done=10)
        clock[0] += 30.0
        bar.advance("plain [3]")
        clock[0] += 30.0
        bar.advance("lost", title="again", show=True, step=0)
        bar.advance("full")


def test_a_file_gets_a_line_per_job_with_the_time_left(clock):
    stream = io.StringIO()
    run(clock, stream)
    assert stream.getvalue().splitlines() == [
        "  11 of 14  plain [3]  (0:01:30 left)",  # ten were there before and tell nothing about the speed
        "  11 of 14  lost  (0:03:00 left)",
        "  12 of 14  full  (0:01:00 left)",
    ]


def test_quiet_is_quiet(clock):
    stream = io.StringIO()
    run(clock, stream, quiet=True)
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar(clock, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.StringIO()
    run(clock, stream)
    screen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert re.search(r"ablation [━╸╺]+\s+10/14", screen)
    assert re.search(r"again [━╸╺]+\s+12/14 0:01:00 left", screen)
    assert "plain" not in screen
    assert "lost" in screen  # what went wrong is shown


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "13")
    monkeypatch.setattr(jobs, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "LINE_SECONDS", 0.0)


def filled(stream):
    table = JobTable(stream=stream)
    with table:
        table.begin("9 seeds", 9)
        for seed in range(8):
            table.note(f"seed {seed}")
        table.note("seed 7", node="node-b", status="running", steps=500, score=21.5, share=0.25)
        table.note("seed 7", steps=1000, share=0.5)
        table.remove("seed 0")
        table.advance("seed 0: finished, mean return 20.00")
        table.tick()
    return stream.getvalue()


def test_a_terminal_shows_what_runs_first_and_as_much_as_fits():
    shown = filled(Terminal())
    last = shown[shown.rindex("run ") :]
    for word in ("node", "status", "steps", "return", "time left", "node-b", "running", "1,000", "21.50", "1/9"):
        assert word in last
    assert last.index("seed 7") < last.index("seed 1")
    assert "and 2 more: 1 running on 1 node, 6 waiting, 1,000 steps" in last
    assert "seed 0" not in last.split("and 2 more")[0]


def test_a_file_gets_lines():
    lines = filled(io.StringIO()).splitlines()
    assert lines[0].startswith("   1 of 9  seed 0: finished, mean return 20.00")
    assert lines[1] == "   1 of 9  1 running on 1 node, 6 waiting, 1,000 steps"
    assert len(lines) == 2


def test_a_run_that_goes_on_elsewhere_has_no_time_left_until_that_is_known():
    table = JobTable(quiet=True)
    table.note("seed 0", status="running", share=0.5)
    table.note("seed 0", share=0.75)
    assert table.rows["seed 0"].left is not None
    table.note("seed 0", status="waiting", node="")
    assert table.rows["seed 0"].left is None
    table.note("seed 0", status="running", share=0.5)
    assert table.rows["seed 0"].left is None
