"""Processes and servers on this machine.

A child process never outlives its parent, even if SIGKILL kills the parent while the child hangs. `LocalProcesses`
starts processes with a pipe each, for jobs (`drl/runs/job_pool.py`). A `RunningServer` runs in a thread; on a loopback
address it answers only requests for this machine's own names.
"""

import collections
import contextlib
import ctypes
import html
import ipaddress
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import IO, NamedTuple

from drl.core.network_parts import resolve

PR_SET_PDEATHSIG = 1  # option of Linux's prctl: signal that a process receives when its parent dies
PROGRAM = "import sys; sys.path = {path!r}; from {here} import run_program; run_program{arguments!r}"


def start_child(context: BaseContext, target: Callable[..., None], *args: object, daemon: bool = False) -> BaseProcess:
    """Start a process that runs `target(*args)` and ends when this process ends, however that happens."""
    # For Linux the parent is the thread that starts a process; only the main thread lives as long as this process.
    from_main = threading.current_thread() is threading.main_thread()
    process: BaseProcess = context.Process(  # type: ignore[attr-defined]
        target=_body, args=(from_main, target, *args), daemon=daemon
    )
    process.start()
    return process


def start_program(
    target: Callable[[Connection], None], messages: IO[bytes], variables: Mapping[str, str]
) -> tuple["subprocess.Popen[bytes]", Connection]:
    """Start a new Python that runs `target(pipe)`, a function of a module, and ends when this process ends. Return it
    with our end of the pipe. Its stderr goes to `messages`; `variables` are added to its environment.

    It inherits only `sys.path`: no threads or locks as in a fork, and the user's script does not run again as in a
    spawned process.
    """
    from_main = threading.current_thread() is threading.main_thread()
    ours, theirs = multiprocessing.Pipe()
    try:
        arguments = (target.__module__, target.__qualname__, theirs.fileno(), os.getpid(), from_main)
        code = PROGRAM.format(path=[str(folder) for folder in sys.path], here=__name__, arguments=arguments)
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=messages,
            env=os.environ | variables,
            pass_fds=[theirs.fileno()],
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def run_program(module: str, name: str, pipe: int, parent: int, from_main: bool) -> None:
    """Body of a process of `start_program`."""

    def wait() -> None:  # a process whose parent dies gets another parent
        while os.getppid() == parent:
            time.sleep(1.0)

    _end_with_parent(from_main, wait)
    resolve(f"{module}:{name}")(Connection(pipe))


def _body(from_main: bool, target: Callable[..., None], *args: object) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a child process
    _end_with_parent(from_main, lambda: multiprocessing.connection.wait([parent.sentinel]))
    target(*args)


def _end_with_parent(from_main: bool, wait: Callable[[], object]) -> None:
    """End this process when its parent ends, which `wait` waits for."""
    if from_main and sys.platform == "linux":  # works even if the child hangs and lets no other thread run
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def end() -> None:  # on other systems and in other threads, and if the parent died before the call above
        wait()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


@dataclass(frozen=True)
class RunningServer:
    """A server in a thread of this process. It runs until `close`, the end of a `with` block, or the process ends."""

    subject: str  # title of the content
    url: str
    about: str  # text that the command prints
    thread: Thread
    stop: Callable[[], object]

    def close(self) -> None:
        """Stop the server after finishing open requests."""
        if self.thread.is_alive():
            self.stop()
            self.thread.join()

    def __enter__(self) -> "RunningServer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __str__(self) -> str:
        return self.about

    def __repr__(self) -> str:
        return f"RunningServer({self.url!r}, {self.subject!r}, {'runs' if self.thread.is_alive() else 'closed'})"

    def _repr_html_(self) -> str:
        url = html.escape(self.url)
        state = f'<a href="{url}" target="_blank">{url}</a>' if self.thread.is_alive() else f"{url}, closed"
        return f"{html.escape(self.subject)}: {state}"


def url_of(host: str, port: int) -> str:
    """Return the URL of a server.

    >>> url_of("127.0.0.1", 80), url_of("::1", 80)
    ('http://127.0.0.1:80', 'http://[::1]:80')
    """
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_own_host(header: str, own_name: str) -> bool:
    """Whether a Host header names this machine: an IP address, localhost, or the configured host. This blocks DNS
    rebinding, where another site points its own name here.

    >>> [is_own_host(host, "127.0.0.1") for host in ("127.0.0.1:80", "localhost", "[::1]:80", "evil.example", "")]
    [True, True, True, False, False]
    """
    name = re.sub(r":\d*$", "", header.strip().lower())
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name in ("localhost", own_name)
    return True


class ProcessEnd(NamedTuple):
    """The end of a process, which sends no more messages."""

    exit_code: int | None
    said: str = ""  # the last line of its messages


class LocalProcess:
    """A process that calls a function with its end of a pipe. It is spawned, since threads do not survive a fork."""

    ready: object = True  # whether it can take a job
    lost: str = ""  # only a process on another machine can be lost

    def __init__(self, target: tuple[str, str], patience: float | None):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = start_child(context, _call, theirs, target)
        theirs.close()
        self.patience = patience
        self.over: ProcessEnd | None = None
        self.inbox: collections.deque[object] = collections.deque()

    @property
    def ended(self) -> bool:
        """Whether it sends no more messages."""
        return self.over is not None

    def send(self, message: object) -> None:
        """Send it a message."""
        with contextlib.suppress(OSError):  # it died: `take` will find the closed pipe
            self.pipe.send(message)

    def take(self) -> None:
        """Receive a message into the inbox."""
        try:
            self.inbox.append(self.pipe.recv())
        except (EOFError, OSError):
            self.over = ProcessEnd(self.finish())

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process.pid is not None  # it was started
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def finish(self) -> int | None:
        """Close the pipe and wait for the end of the process, at most `patience` seconds. Returns its exit code."""
        self.pipe.close()
        self.process.join(self.patience)
        return self.kill()

    def kill(self) -> int | None:
        """End it at once. Returns its exit code."""
        self.pipe.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        return self.process.exitcode


class LocalProcesses:
    """Starts processes on this machine that call the function `target`, (module, name). `patience`: seconds that a
    process has to end by itself; None: no limit."""

    def __init__(self, target: tuple[str, str], patience: float | None = None):
        self.target = target
        self.patience = patience

    def start(self, place: object = None) -> LocalProcess:
        """Start a process."""
        return LocalProcess(self.target, self.patience)

    def wait(self, processes: Sequence[LocalProcess], timeout: float) -> list[LocalProcess]:
        """Return the processes that have a message or have ended; none after `timeout` seconds."""
        if not any(each.inbox or each.ended for each in processes):
            pipes = multiprocessing.connection.wait([each.pipe for each in processes], timeout)
            for process in processes:
                if process.pipe in pipes:
                    process.take()
        return [each for each in processes if each.inbox or each.ended]

    def close(self, processes: Sequence[LocalProcess]) -> None:
        """End processes."""
        for process in processes:
            process.pipe.close()  # close all first, so that they end in parallel
        for process in processes:
            process.finish()


def _call(pipe: Connection, target: tuple[str, str]) -> None:
    """Body of a `LocalProcess`."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # a terminal's Ctrl-C reaches it once, from the process that started it
    resolve(":".join(target))(pipe)
