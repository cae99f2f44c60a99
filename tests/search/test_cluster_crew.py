"""Workers of a search on nodes that are played by the test."""

from collections import deque

import pytest

from drl.cluster.node_process import HostReady, NodeProcess
from drl.core.errors import EnvFailed
from drl.search.search_worker import Job, Outcome, TrialPool
from drl.tracking.jobs import JobTable

READY = HostReady("node", "0.1.0", False, "")


class Node(NodeProcess):
    """A worker whose node is found or not, and that answers jobs as its script says."""

    def __init__(self, script, found=True):
        self.ready, self.over, self.lost, self.inbox = None, None, "", deque()
        self.script, self.found, self.busy, self.closed, self.answers = list(script), found, False, False, []

    def send(self, message):
        if isinstance(message, Job):
            self.busy = True
        else:
            self.answers.append(message)

    def kill(self):
        self.closed = True

    def step(self):
        self.ready = READY if self.found else None
        if self.busy:
            said = self.script.pop(0) if self.script else Outcome("complete", 1.0)
            if said == "lost":
                self.lost = "its node was lost"
            else:
                self.inbox.append(said)
                self.busy = not isinstance(said, Outcome)


class Nodes:
    """These nodes, in this order, then nodes that are never found."""

    def __init__(self, nodes):
        self.left, self.hired = list(nodes), []

    def start(self, place=None):
        self.hired.append(self.left.pop(0) if self.left else Node([], found=False))
        return self.hired[-1]

    def wait(self, processes, timeout):
        for each in processes:
            each.step()
        return [each for each in processes if each.inbox or each.ended]

    def close(self, processes):
        for each in processes:
            each.kill()


@pytest.fixture
def crew():
    """A pool whose workers are these nodes."""

    def make(size, *nodes):
        transport = Nodes(nodes)
        return TrialPool(transport, size, float("inf"), JobTable(quiet=True)), transport.hired

    return make


def jobs(count):
    queue = [Job(number, {"seed": number}, 4) for number in reversed(range(count))]
    return lambda: queue.pop() if queue else None


def never():
    return False


def test_more_workers_than_nodes_is_no_deadlock(crew):
    """Nobody holds a job while waiting for a node, and nobody waits for one when there are no more jobs."""
    workers, hired = crew(4, Node([]), Node([]))
    ended = [(job.number, outcome.state) for job, outcome in workers.run(jobs(5), lambda *_: False, never)]
    assert sorted(ended) == [(number, "complete") for number in range(5)]
    assert len(hired) == 4
    assert [node.closed for node in hired] == [False, False, True, True]
    workers.close()
    assert all(node.closed for node in hired)


def test_a_job_that_is_lost_begins_again_and_reports_once(crew):
    first = Node([(1, 0.5), (2, 0.6), "lost"])
    second = Node([(1, 0.5), (2, 0.6), (3, 0.7), Outcome("complete", 0.9)])
    workers, _ = crew(1, first, second)
    told = []
    ended = list(workers.run(jobs(1), lambda job, *each: told.append(each) or False, never))
    assert [(job.number, outcome.score) for job, outcome in ended] == [(0, 0.9)]
    assert told == [(1, 0.5), (2, 0.6), (3, 0.7)]
    assert second.answers == [False, False, False], "the worker waits for an answer each time"


def test_a_trial_is_pruned(crew):
    node = Node([(1, 0.5), Outcome("pruned", 0.5)])
    workers, _ = crew(1, node)
    ((_, outcome),) = workers.run(jobs(1), lambda *_: True, never)
    assert (outcome.state, node.answers) == ("pruned", [True])


def test_a_search_that_loses_every_worker_ends(crew):
    workers, hired = crew(1, *(Node(["lost"]) for _ in range(20)))
    with pytest.raises(EnvFailed, match="5 workers were lost in a row"):
        list(workers.run(jobs(1), lambda *_: False, never))
    assert len(hired) == 5
