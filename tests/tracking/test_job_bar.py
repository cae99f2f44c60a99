"""A bar on a terminal, lines elsewhere, both with the time left."""

import io
import re

import pytest

from drl.tracking.job_bar import JobBar


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
