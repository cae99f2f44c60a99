"""The actor beside a process on a node. It starts the process, passes messages on, and sends the folder of a run.

The process ends with its actor, and the actor with the driver.
"""

import collections
import contextlib
import fcntl
import importlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO, NamedTuple

import drl
from drl.cluster.folder_copy import PIECE, Complete, Incoming, Outgoing, Piece, Waiting
from drl.core.child_processes import start_program

POLL_SECONDS = 1.0  # how long a host waits for a message of its process
STOP_SECONDS = 10.0  # how long the driver waits for a host to clean up
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # Ray decides them unless the driver has
PREFIX = "drl-run-"  # of folders on nodes


class Probe(NamedTuple):
    """A file of the driver. A node that sees it writes into the folder of the driver."""

    file: str
    content: str


class Ready(NamedTuple):
    """The first message of a host."""

    node: str
    version: str  # of drl
    shared: bool  # whether the node sees the driver's folder
    folder: str  # where its process may write otherwise


class FolderSaved(NamedTuple):
    """A process says that this folder can be copied, and waits for an answer."""

    folder: str


class Over(NamedTuple):
    """The process ended without another message."""

    exit_code: int
    said: str  # the last line of its messages


class Host:
    """The actor beside a process on a node."""

    process: subprocess.Popen[bytes]
    pipe: Connection

    def __init__(self, target: tuple[str, str], variables: dict[str, str], place: str, probe: Probe | None):
        for name in THREADS:
            os.environ.pop(name, None)
        os.environ.update(variables)
        with contextlib.suppress(OSError):
            os.chdir(place)  # relative paths mean the same as in the driver, where they exist
        self.shared: bool = probe is not None and _reads(probe)
        self.temporary: Path = _temporary_folder()
        self.messages: BinaryIO = (self.temporary / "messages.txt").open("w+b")
        self.process, self.pipe = start_program(run_target, self.messages, {})
        self.pipe.send(target)
        self.incoming: Incoming | None = None  # a run that goes on here
        self.outgoing: Outgoing | None = None
        self.over: bool = False
        ready = Ready(socket.gethostname(), drl.__version__, self.shared, str(self.temporary / "results"))
        self.outbox: collections.deque[object] = collections.deque([ready])

    def poll(self, answers: Sequence[object] = ()) -> list[object]:
        """Pass on what the driver says, then messages as soon as there are any; none after a second."""
        for answer in answers:
            self.send(answer)
        if not self.outbox and not self.over:
            self._listen()
        messages, size = list[object](), 0
        while self.outbox and size < PIECE:
            message = self.outbox.popleft()
            if isinstance(message, Waiting):
                message = message.read()
                size += len(message.content)
            messages.append(message)
        return messages

    def _listen(self) -> None:
        wait = POLL_SECONDS
        try:
            while self.pipe.poll(wait) and not any(isinstance(each, Waiting) for each in self.outbox):
                self._take(self.pipe.recv())
                wait = 0.0
        except (EOFError, OSError):
            self.over = True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
            self.process.kill()
            code = self.process.wait()
            if self.outgoing is not None:
                self.outbox.extend(self.outgoing.changes())
            self.messages.seek(0)
            lines = self.messages.read().decode(errors="replace").strip().splitlines()
            self.outbox.append(Over(code, lines[-1][:300] if lines else ""))

    def _take(self, message: object) -> None:
        self.outbox.append(message)
        if isinstance(message, FolderSaved):
            if not self.shared:
                folder = Path(message.folder)
                if self.outgoing is None or self.outgoing.folder != folder:
                    self._forget_links()
                    self.outgoing = Outgoing(folder)
                self.outbox.extend(self.outgoing.changes())
            self.pipe.send(None)

    def send(self, message: object) -> None:
        """Pass a message on to the process."""
        with contextlib.suppress(OSError):  # `poll` finds the closed pipe
            self.pipe.send(message)

    def receive(self, folder: str, part: Piece | Complete) -> None:
        """A part of the folder of a run that goes on here."""
        if self.incoming is None:
            Path(folder).mkdir(parents=True)
            self.incoming = Incoming(Path(folder))
        self.incoming.add(part)
        if isinstance(part, Complete):
            self.outgoing = Outgoing(Path(folder))
            self.outgoing.changes()  # the driver has all that is there

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._forget_links()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _forget_links(self) -> None:
        if self.outgoing is not None:
            self.outgoing.close()


def run_target(pipe: Connection) -> None:
    """Body of the process: call what the first message names."""
    # Ray blocks Ctrl-C in its processes. We get it through our host only, not a second time from the terminal.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    os.setpgid(0, 0)
    module, name = pipe.recv()
    getattr(importlib.import_module(module), name)(pipe)


def _reads(probe: Probe) -> bool:
    try:
        return Path(probe.file).read_text() == probe.content
    except (OSError, UnicodeDecodeError):
        return False


def _temporary_folder() -> Path:
    """A new folder of this node, locked as long as this process lives. Those of hosts that were killed are removed."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (old / ".host").open("r+b") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    held = os.open(folder / ".host.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.lockf(held, fcntl.LOCK_EX)
    (folder / ".host.new").rename(folder / ".host")  # others see it only when it is locked
    return folder
