"""A process on a node of the cluster, and our end of its pipe.

While the driver waits it has one `poll` under way with the host of each process (`node_host.py`), so a message arrives
when it is sent, and a host that died with its node is noticed.
"""

import collections
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import drl
from drl.cluster.folder_copy import Complete, Piece
from drl.cluster.node_host import POLL_SECONDS, STOP_SECONDS, THREADS, Host, Over, Probe, Ready
from drl.core.errors import BadInput

if TYPE_CHECKING:
    from types import ModuleType

SENT_ALONG = ("WANDB_", "MLFLOW_")  # variables of the driver that its processes get


class Needs(NamedTuple):
    """What a node must have free for a process."""

    cpus: float = 1.0
    gpus: float = 0.0


class NodeProcess:
    """What the driver has of a process: a pipe with messages that are plain data, and how the process is."""

    def __init__(self, ray: "ModuleType", target: tuple[str, str], needs: Needs, probe: Probe | None = None):
        variables = {name: value for name, value in os.environ.items() if name.startswith(SENT_ALONG)}
        variables |= {name: os.environ[name] for name in THREADS if name in os.environ}
        options: dict[str, Any] = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_restarts": 0}
        actor = ray.remote(Host).options(scheduling_strategy="SPREAD", **options)
        self.ray = ray
        self.ready: Ready | None = None  # None: it waits for a node
        self.over: Over | None = None  # not None: the process has ended
        self.lost: str = ""  # not "": its node has, or its host
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
        if self._poll is None:  # it goes along with the next one, or else it would have to wait until that has ended
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

    def poll(self, timeout: float = 0.0) -> bool:
        """Whether `recv` has something to say."""
        until = time.monotonic() + timeout
        while not wait([self], max(min(until - time.monotonic(), POLL_SECONDS), 0.0)):
            if time.monotonic() >= until:
                return False
        return True

    def recv(self) -> object:
        """The next message. Raises `EOFError` if there will be none."""
        if self.inbox:
            return self.inbox.popleft()
        raise EOFError(self.lost or f"its process ended with exit code {self.over and self.over.exit_code}")

    def begin_to_close(self) -> list[Any]:
        """What to wait for before `kill`."""
        return [] if self.lost or self.ready is None else [self._host.close.remote()]

    def close(self) -> None:
        close([self])

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
                raise BadInput(f"a node cannot run drl: {_last_line(error)}; install the same drl there") from None
            self.lost = f"its node was lost ({type(error).__name__})"
            return
        for message in messages:
            if isinstance(message, Ready):
                self.ready = message
                if message.version != drl.__version__:
                    raise BadInput(
                        f"node {message.node} has drl {message.version} and this is drl {drl.__version__}; install the "
                        f"same there: pip install drl-workshop=={drl.__version__}"
                    )
            elif isinstance(message, Over):
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


def wait(processes: Sequence[NodeProcess], timeout: float) -> list[NodeProcess]:
    """Those that have a message or have ended; none if that takes longer."""
    if not processes or (there := [each for each in processes if each.inbox or each.ended]):
        return there if processes else []
    ray, polls = processes[0].ray, {each.under_way(): each for each in processes}
    if ray.wait(list(polls), num_returns=1, timeout=timeout)[0]:
        for poll in ray.wait(list(polls), num_returns=len(polls), timeout=0)[0]:
            polls[poll].take()
    return [each for each in processes if each.inbox or each.ended]


def close(processes: Sequence[NodeProcess]) -> None:
    """End processes, and remove what they have on their nodes."""
    closing = [each for process in processes for each in process.begin_to_close()]
    if closing:
        processes[0].ray.wait(closing, num_returns=len(closing), timeout=STOP_SECONDS)
    for process in processes:
        process.kill()


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
