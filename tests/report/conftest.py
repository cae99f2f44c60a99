"""A written run, a board that serves it, and a Chromium, if one is installed."""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from written_runs import write_run

from drl.report.board import board_server

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def run(tmp_path) -> Path:
    return write_run(tmp_path / "results" / "first" / "run-1")


@pytest.fixture
def board(run) -> Iterator[int]:
    """The port of a board of the folder `results`, which holds one run."""
    server = board_server(run.parents[1], "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Callable[..., object]]:
    """Opens pages; a message on the console, or an error, is collected in the page's `complaints`."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no Chromium: none of {', '.join(BROWSERS)} is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        unsafe = ["--no-sandbox"] if os.geteuid() == 0 else []  # as root it does not start otherwise
        browser = playwright.chromium.launch(executable_path=program, args=unsafe)

        def open_page(address: str, width: int = 1280, scheme: str = "light"):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.complaints = []
            page.on("console", lambda message: page.complaints.append(message.text))
            page.on("pageerror", lambda error: page.complaints.append(str(error)))
            page.on(
                "request",
                lambda request: page.complaints.append(request.url) if not is_own(request.url, address) else None,
            )
            page.goto(address)
            return page

        yield open_page
        browser.close()


def is_own(url: str, address: str) -> bool:
    """Whether a page may ask for this: itself, what is inside it, and its own server."""
    return url == address or url.startswith("data:") or (address.startswith("http") and url.startswith(address[:17]))
