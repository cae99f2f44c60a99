"""One pool of jobs: jobs in, answers out as they end, so many processes at a time.

A transport starts the processes: on this machine (`core/processes.py`) or on the nodes of a cluster
(`cluster/node_process.py`). A subclass defines the jobs: runs (`many_runs.py`, `cluster_runs.py`) or
trials of a search (`search/search_worker.py`).
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from drl.core.processes import ProcessEnd

POLL_SECONDS = 0.5  # between two looks at signals
JobT = TypeVar("JobT")
AnswerT = TypeVar("AnswerT")


class JobProcess(Protocol):
    """A process that does jobs, and our end of its pipe."""

    inbox: deque[object]  # messages that arrived

    @property
    def ready(self) -> Any:
        """Not None: it can take a job; None: it waits for a node."""

    @property
    def over(self) -> ProcessEnd | None:
        """Not None: the process has ended."""

    @property
    def lost(self) -> str:
        """Not "": its machine was lost; the reason."""

    @property
    def ended(self) -> bool:
        """Whether it is over or lost."""

    def send(self, message: object) -> None:
        """Send it a message."""

    def signal(self, number: int) -> None:
        """Send it a signal."""

    def kill(self) -> object:
        """End it at once."""


class Transport(Protocol):
    """Starts processes and waits for them."""

    def start(self, place: Any = None) -> JobProcess:
        """Start a `JobProcess`. `place` is for a process on another machine."""

    def wait(self, processes: Sequence[Any], timeout: float) -> Sequence[JobProcess]:
        """Those that have a message or have ended; none if that takes longer."""

    def close(self, processes: Sequence[Any]) -> None:
        """End processes."""


@dataclass(eq=False)
class Slot(Generic[JobT]):
    """A job and its process."""

    job: JobT
    process: JobProcess
    begun: bool = False  # whether the process has the job
    heard: float = 0.0  # time of its last message


class JobPool(Generic[JobT, AnswerT]):
    """Jobs in processes, `size` at a time. `late`: a job is taken when a process is ready, not before one is started.
    `silence`: seconds without a message after which a process counts as hanging."""

    keeps_processes: bool = False  # whether a process gets another job after its first

    def __init__(self, transport: Transport, size: int, late: bool = False, silence: float = math.inf):
        self.transport: Transport = transport
        self.size: int = size
        self.late: bool = late
        self.silence: float = silence
        self.busy: list[Slot[JobT]] = []
        self.idle: list[JobProcess] = []
        self.starting: list[JobProcess] = []  # without a job yet
        self.again: list[JobT] = []  # jobs whose process was lost

    def answers(
        self, next_job: Callable[[], JobT | None], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[JobT, AnswerT]]:
        """Yield jobs and their answers as they end, until `next_job` returns None or `stop` returns True."""
        while not stop():
            self.look()
            if not self._hand_out(next_job):
                return
            slots = {slot.process: slot for slot in self.busy}
            for process in self.transport.wait([*slots, *self.starting], POLL_SECONDS):
                if (slot := slots.get(process)) is not None and (answer := self._answer(slot)) is not None:
                    self._end(slot)
                    yield slot.job, answer
            now = time.monotonic()
            for slot in list(self.busy):
                if not slot.begun and slot.process.ready is not None:
                    self._begin(slot)
                elif slot.begun and now - slot.heard > self.silence:
                    self.busy.remove(slot)
                    slot.process.kill()
                    yield slot.job, self.hang(slot)

    def _hand_out(self, next_job: Callable[[], JobT | None]) -> bool:
        """Start as many jobs as there may be; False if nothing is left to wait for."""
        self.idle += [each for each in self.starting if each.ready is not None and not each.ended]
        self.starting = [each for each in self.starting if each.ready is None and not each.ended]
        while len(self.busy) < self.size and (self.idle or not self.late):
            job = self.again.pop() if self.again else next_job()
            if job is None:
                self.transport.close(self.starting)  # there is nothing for them to do
                self.starting = []
                return bool(self.busy)
            self.busy.append(slot := Slot(job, self.idle.pop() if self.idle else self.start(job)))
            if slot.process.ready is not None:
                self._begin(slot)
        while self.late and len(self.busy) + len(self.starting) < self.size:
            self.starting.append(self.start(None))
        return True

    def _begin(self, slot: Slot[JobT]) -> None:
        if not slot.process.ended:
            slot.begun, slot.heard = True, time.monotonic()
            self.begin(slot)

    def _answer(self, slot: Slot[JobT]) -> AnswerT | None:
        """Read the messages of a process. A job whose process was lost without an answer begins again."""
        slot.heard, inbox = time.monotonic(), slot.process.inbox
        while inbox:
            if (answer := self.hear(slot, inbox.popleft())) is not None:
                return answer
        if not slot.process.ended:
            return None
        if (answer := self.lose(slot)) is not None:
            return answer
        self.busy.remove(slot)
        slot.process.kill()
        self.again.append(slot.job)
        return None

    def _end(self, slot: Slot[JobT]) -> None:
        self.busy.remove(slot)
        self.ended(slot)
        if self.keeps_processes and not slot.process.ended:
            self.idle.append(slot.process)
        else:
            self.transport.close([slot.process])

    def pass_on(self, number: int) -> None:
        """Send a signal to the processes that have begun, and drop all other jobs."""
        for slot in list(self.busy):
            if slot.begun:
                slot.process.signal(number)
            else:
                self._end(slot)
        self.again = []

    def close(self) -> None:
        """End all processes."""
        self.transport.close([*self.starting, *self.idle, *(slot.process for slot in self.busy)])
        self.starting, self.idle, self.busy = [], [], []

    def start(self, job: JobT | None) -> JobProcess:
        """Start a process, for this job if it is known."""
        return self.transport.start()

    def begin(self, slot: Slot[JobT]) -> None:
        """Send the job to its process."""
        slot.process.send(slot.job)

    def hear(self, slot: Slot[JobT], message: Any) -> AnswerT | None:
        """Handle a message; return the answer if the job is over."""
        raise NotImplementedError

    def lose(self, slot: Slot[JobT]) -> AnswerT | None:
        """A process ended without an answer. Return the answer, or None if the job begins again."""
        raise NotImplementedError

    def hang(self, slot: Slot[JobT]) -> AnswerT:
        """A process was silent for too long and was killed. Return the answer."""
        raise NotImplementedError

    def ended(self, slot: Slot[JobT]) -> None:
        """A job is over or dropped."""

    def look(self) -> None:
        """Called often."""
