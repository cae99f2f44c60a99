"""A process on a node of the cluster, and our end of its pipe.

While the driver waits it has one `poll` under way with the host of each process (`Host`), so a message arrives
when it is sent, and a host that died with its node is noticed.
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
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import drl
from drl.cluster.folder_copy import PIECE, Complete, Incoming, Outgoing, Piece, UnsentPiece
from drl.cluster.ray_cluster import check_needs, open_cluster
from drl.core.errors import BadInput
from drl.core.processes import ProcessEnd, start_program

if TYPE_CHECKING:
    from types import ModuleType

POLL_SECONDS = 1.0  # how long a host waits for a message of its process
STOP_SECONDS = 10.0  # how long the driver waits for a host to clean up
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # Ray decides them unless the driver has
PREFIX = "drl-run-"  # of folders on nodes
SENT_ALONG = ("WANDB_", "MLFLOW_")  # variables of the driver that its processes get


class Probe(NamedTuple):
    """A file of the driver. A node that sees it writes into the folder of the driver."""

    file: str
    content: str


class HostReady(NamedTuple):
    """The first message of a host."""

    node: str
    version: str  # of drl
    shared: bool  # whether the node sees the driver's folder
    folder: str  # where its process may write otherwise


class FolderSaved(NamedTuple):
    """Sent by a process when its folder can be copied. It waits for an answer."""

    folder: str


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
        self.shared: bool = False  # whether this node sees the folder of the driver
        with contextlib.suppress(OSError, UnicodeDecodeError):
            self.shared = probe is not None and Path(probe.file).read_text() == probe.content
        self.temporary: Path = _temporary_folder()
        self.messages: BinaryIO = (self.temporary / "messages.txt").open("w+b")
        self.process, self.pipe = start_program(run_target, self.messages, {})
        self.pipe.send(target)
        self.incoming: Incoming | None = None  # a run that goes on here
        self.outgoing: Outgoing | None = None
        self.over: bool = False
        ready = HostReady(socket.gethostname(), drl.__version__, self.shared, str(self.temporary / "results"))
        self.outbox: collections.deque[object] = collections.deque([ready])

    def poll(self, answers: Sequence[object] = ()) -> list[object]:
        """Pass messages of the driver on, then return those of the process; none after a second."""
        for answer in answers:
            self.send(answer)
        if not self.outbox and not self.over:
            self._listen()
        messages, size = list[object](), 0
        while self.outbox and size < PIECE:
            message = self.outbox.popleft()
            if isinstance(message, UnsentPiece):
                message = message.read()
                size += len(message.content)
            messages.append(message)
        return messages

    def _listen(self) -> None:
        wait = POLL_SECONDS
        try:
            while self.pipe.poll(wait) and not any(isinstance(each, UnsentPiece) for each in self.outbox):
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
            self.outbox.append(ProcessEnd(code, lines[-1][:300] if lines else ""))

    def _take(self, message: object) -> None:
        self.outbox.append(message)
        if isinstance(message, FolderSaved):
            if not self.shared:
                folder = Path(message.folder)
                if self.outgoing is None or self.outgoing.folder != folder:
                    if self.outgoing is not None:
                        self.outgoing.close()
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
            self.outgoing.changes()  # the driver has all of these files

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.outgoing is not None:
            self.outgoing.close()
        shutil.rmtree(self.temporary, ignore_errors=True)


def run_target(pipe: Connection) -> None:
    """Body of the process: call what the first message names."""
    # Ray blocks Ctrl-C in its processes. We get it through our host only, not a second time from the terminal.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    os.setpgid(0, 0)
    module, name = pipe.recv()
    getattr(importlib.import_module(module), name)(pipe)


def _temporary_folder() -> Path:
    """Make a folder, locked until this process ends. Folders of hosts that were killed are removed."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (old / ".host").open("r+b") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    held = os.open(folder / ".host.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.lockf(held, fcntl.LOCK_EX)
    (folder / ".host.new").rename(folder / ".host")  # others see it only when it is locked
    return folder


class Needs(NamedTuple):
    """Free resources that a process needs on its node."""

    cpus: float = 1.0
    gpus: float = 0.0


class NodeProcess:
    """Driver-side handle of a process: a pipe for messages of plain data, and its status."""

    def __init__(self, ray: "ModuleType", target: tuple[str, str], needs: Needs, probe: Probe | None = None):
        variables = {name: value for name, value in os.environ.items() if name.startswith(SENT_ALONG)}
        variables |= {name: os.environ[name] for name in THREADS if name in os.environ}
        options: dict[str, Any] = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_restarts": 0}
        actor = ray.remote(Host).options(scheduling_strategy="SPREAD", **options)
        self.ray = ray
        self.ready: HostReady | None = None  # None: it waits for a node
        self.over: ProcessEnd | None = None  # not None: the process has ended
        self.lost: str = ""  # not "": the process was lost with its node or its host; the reason
        self.inbox: collections.deque[object] = collections.deque()
        self._host = actor.remote(target, variables, os.getcwd(), probe)
        self._poll: Any = None  # under way
        self._answers: list[object] = []  # for the next poll

    @property
    def ended(self) -> bool:
        """Whether it is over or lost."""
        return self.over is not None or bool(self.lost)

    def send(self, message: object) -> None:
        """Send it a message."""
        if self._poll is None:  # sent with the next poll; a separate call would wait for the end of that poll
            self._answers.append(message)
        else:
            self._host.send.remote(message)

    def send_folder(self, target: str, parts: Iterator[Piece | Complete]) -> None:
        """Send it the files of a folder, piece by piece."""
        for part in parts:
            self._host.receive.remote(target, part)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._host.signal.remote(number)

    def begin_to_close(self) -> list[Any]:
        """Calls to wait for before `kill`."""
        return [] if self.lost or self.ready is None else [self._host.close.remote()]

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(Exception):  # it is gone
            self.ray.kill(self._host, no_restart=True)

    def take(self) -> None:
        """Read the answer of the poll."""
        poll, self._poll = self._poll, None
        try:
            messages: list[object] = self.ray.get(poll)
        except self.ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False):
                lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
                raise BadInput(f"a node cannot run drl: {lines[-1][:200]}; install the same drl there") from None
            self.lost = f"its node was lost ({type(error).__name__})"
            return
        for message in messages:
            if isinstance(message, HostReady):
                self.ready = message
                if message.version != drl.__version__:
                    raise BadInput(
                        f"node {message.node} has drl {message.version} and this is drl {drl.__version__}; install the "
                        f"same there: pip install drl-workshop=={drl.__version__}"
                    )
            elif isinstance(message, ProcessEnd):
                self.over = message
                return
            else:
                self.inbox.append(message)

    def under_way(self) -> Any:
        """The poll, begun if there is none."""
        if self._poll is None:
            self._poll = self._host.poll.remote(self._answers)
            self._answers = []
        return self._poll


class NodeProcesses:
    """Starts processes on nodes of a cluster that call `target`, a function of a module."""

    def __init__(self, ray: "ModuleType", target: tuple[str, str], needs: Needs):
        self.ray = ray
        self.target = target
        self.needs = needs

    def start(self, place: Probe | None = None) -> NodeProcess:
        """Start one as soon as a node has what it needs. `place`: a folder that it may share with the driver."""
        return NodeProcess(self.ray, self.target, self.needs, place)

    def wait(self, processes: Sequence[NodeProcess], timeout: float) -> list[NodeProcess]:
        """Those that have a message or have ended; none if that takes longer."""
        if processes and not any(each.inbox or each.ended for each in processes):
            polls = {each.under_way(): each for each in processes}
            if self.ray.wait(list(polls), num_returns=1, timeout=timeout)[0]:
                for poll in self.ray.wait(list(polls), num_returns=len(polls), timeout=0)[0]:
                    polls[poll].take()
        return [each for each in processes if each.inbox or each.ended]

    def close(self, processes: Sequence[NodeProcess]) -> None:
        """End processes, and remove their files on their nodes."""
        closing = [each for process in processes for each in process.begin_to_close()]
        if closing:
            self.ray.wait(closing, num_returns=len(closing), timeout=STOP_SECONDS)
        for process in processes:
            process.kill()


@contextlib.contextmanager
def open_nodes(cluster: str, target: tuple[str, str], needs: Needs) -> Iterator[NodeProcesses]:
    """The nodes of a cluster, where processes will call `target`. Raises if no node could ever have what they need."""
    with open_cluster(cluster) as ray:
        check_needs(ray, cluster, needs)
        yield NodeProcesses(ray, target, needs)
