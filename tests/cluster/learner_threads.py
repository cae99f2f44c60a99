"""Learners in threads of one process, so that their numbers can be compared without a cluster."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait

from drl.core.contracts import Learned
from drl.engines.torch.models import load_parameters


class Meeting:
    """Where the learners of a test add up their numbers."""

    def __init__(self, size):
        self.messages = [None] * size
        self.barrier = threading.Barrier(size, timeout=60)


class ThreadGroup:
    """What `LearnerGroup` is among processes."""

    broken = None

    def __init__(self, meeting, rank):
        self.meeting, self.rank, self.size = meeting, rank, len(meeting.messages)

    def sum(self, numbers):
        self.meeting.messages[self.rank] = numbers.clone()
        self.meeting.barrier.wait()
        numbers.copy_(sum(self.meeting.messages[1:], self.meeting.messages[0]))
        self.meeting.barrier.wait()


class InThreads:
    """An algorithm whose updates are shared with other learners, built by `make`."""

    def __init__(self, agent, algorithm, make, size):
        self.algorithms = [algorithm]
        for _ in range(size - 1):
            other_agent, other = make()
            other.load_state_dict(algorithm.state_dict())
            load_parameters(other_agent.model, agent.state_dict()["model"], "test")
            self.algorithms.append(other)
        meeting = Meeting(size)
        for rank, each in enumerate(self.algorithms):
            each.share(ThreadGroup(meeting, rank))
        self.needs, self.pool = algorithm.needs, ThreadPoolExecutor(size)

    def learn(self, batch, progress=0.0) -> Learned:
        calls = [self.pool.submit(each.learn, batch, progress) for each in self.algorithms]
        wait(calls)
        return calls[0].result()

    def state_dict(self):
        return self.algorithms[0].state_dict()
