"""The driver of many runs, with nodes that are played by the test."""

import signal
from collections import deque
from pathlib import Path

import pytest

from drl.cluster.node_process import FolderSaved, HostReady
from drl.core.errors import BadInput
from drl.core.processes import ProcessEnd
from drl.runs.cluster_runs import MOST_LOSSES, ClusterRunPool, train_on_cluster
from drl.runs.many_runs import Progress, RunAnswer, RunJob
from drl.runs.stop_signals import StopSignals
from drl.settings.experiment import Experiment
from drl.settings.scaling import ScalingConfig
from drl.tracking.jobs import JobTable


class Node:
    """A process on a node that says what its script has, then ends as that says."""

    def __init__(self, script):
        self.ready, self.over, self.lost, self.inbox = None, None, "", deque()
        self.script, self.sent, self.signals, self.killed = iter(script), [], [], False

    @property
    def ended(self):
        return self.over is not None or bool(self.lost)

    def send(self, message):
        self.sent.append(message)

    def signal(self, number):
        self.signals.append(number)
        self.inbox.append(RunAnswer(Path("there"), "terminated"))

    def recv(self):
        return self.inbox.popleft()

    def begin_to_close(self):
        return []

    def kill(self):
        self.killed = True

    def step(self):
        said = next(self.script, None)
        if isinstance(said, HostReady):
            self.ready = said
        elif isinstance(said, ProcessEnd):
            self.over = said
        elif callable(said):
            said()
        elif said == "lost":
            self.lost = "its node was lost"
        elif said is not None:
            self.inbox.append(said)


class Nodes:
    """Nodes that follow scripts, one after the other."""

    def __init__(self, scripts):
        self.scripts, self.started = iter(scripts), []

    def start(self, place=None):
        self.started.append(Node(next(self.scripts)))
        return self.started[-1]

    def wait(self, processes, timeout):
        for each in processes:
            each.step()
        return [each for each in processes if each.inbox or each.ended]

    def close(self, processes):
        for each in processes:
            each.kill()


@pytest.fixture
def cluster():
    """Runs on nodes that follow scripts; `size` at a time."""

    def begin(*scripts, size=1, signals=None):
        nodes = Nodes(scripts)
        return ClusterRunPool(nodes, size, signals or StopSignals(), None, JobTable(quiet=True)), nodes.started

    return begin


def job(tmp_path, name="one"):
    return RunJob(name, Experiment.from_flat({"results_dir": str(tmp_path)}, "test"))


READY = HostReady("node", "0.1.0", True, "elsewhere")


def test_a_run_goes_on_where_its_folder_is(cluster, tmp_path):
    folder = tmp_path / "x" / "run"
    (folder / "checkpoints").mkdir(parents=True)
    saved, answer = FolderSaved(str(folder)), RunAnswer(folder, "finished")
    runs, nodes = cluster([READY, saved, Progress(10, 0.5, 1.0), "lost"], ["lost"], [READY, saved, answer])
    assert [each.status for _, each in runs.train([job(tmp_path)])] == ["finished"]
    assert [node.sent and node.sent[0].folder for node in nodes] == [None, [], str(folder)]
    assert nodes[0].killed


def test_a_run_that_loses_every_node_is_given_up(cluster, tmp_path):
    folder = tmp_path / "x" / "run"
    (folder / "checkpoints").mkdir(parents=True)
    script = [READY, FolderSaved(str(folder)), "lost"]
    runs, nodes = cluster(*[script] * 20)
    ((_, answer),) = runs.train([job(tmp_path)])
    assert answer.folder is None
    assert answer.exit_code == 5
    assert f"{MOST_LOSSES + 1} times without a checkpoint in between" in answer.error
    assert len(nodes) == MOST_LOSSES + 1


def test_a_run_that_makes_checkpoints_is_not_given_up(cluster, tmp_path):
    folder = tmp_path / "x" / "run"

    def script(step):
        checkpoint = folder / "checkpoints" / f"step_{step:012d}"
        return [READY, lambda: checkpoint.mkdir(parents=True), FolderSaved(str(folder)), "lost"]

    runs, nodes = cluster(*map(script, range(3 * MOST_LOSSES)), [READY, RunAnswer(folder, "finished")])
    assert [answer.status for _, answer in runs.train([job(tmp_path)])] == ["finished"]
    assert len(nodes) == 3 * MOST_LOSSES + 1


def test_a_process_that_ends_is_not_repeated(cluster, tmp_path):
    runs, nodes = cluster([READY, ProcessEnd(7, "Killed")], [READY, RunAnswer(tmp_path, "finished")], size=2)
    answers = {each.name: answer for each, answer in runs.train([job(tmp_path), job(tmp_path, "two")])}
    assert answers["one"].error == "its process ended with exit code 7: Killed"
    assert answers["two"].status == "finished"
    assert len(nodes) == 2


def test_a_signal_reaches_what_has_begun(cluster, tmp_path):
    """What waits for a node is dropped."""
    signals = StopSignals()
    runs, nodes = cluster([READY, None, lambda: signals._note(signal.SIGTERM, None)], [None], size=2, signals=signals)
    with signals:
        ended = list(runs.train([job(tmp_path, name) for name in ("one", "two", "three")]))
    assert [(each.name, answer.status) for each, answer in ended] == [("one", "terminated")]
    assert nodes[0].signals == [signal.SIGTERM]
    assert nodes[1].killed
    assert len(nodes) == 2


def test_collectors_are_refused(tmp_path):
    scaling = ScalingConfig(cluster="local", num_collectors=2)
    with pytest.raises(BadInput, match="one process each"):
        next(train_on_cluster([job(tmp_path)], scaling, JobTable(quiet=True)))
