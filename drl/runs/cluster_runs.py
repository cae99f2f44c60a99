"""Many runs on a cluster, one process on a node for each; the driver's side. See `node_run.py` for the other.

A node that sees the results folder writes into it. From any other the folder of a run comes here, with every checkpoint
when it is written. A run that is lost with its node goes on elsewhere, from its last checkpoint.
"""

import contextlib
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import cloudpickle  # type: ignore[import-untyped]

from drl.cluster.folder_copy import Complete, Incoming, Piece, UrlCopy, check_url, parts_of
from drl.cluster.node_process import FolderSaved, Needs, NodeProcess, Probe, close, wait
from drl.cluster.ray_cluster import check_needs, open_cluster
from drl.core.errors import BadInput, DrlError, Interrupted, plural
from drl.runs.extras import NOTHING, Extras
from drl.runs.folder.checkpoints import Checkpoints
from drl.runs.folder.run_folder import adopt_run, lock_run, new_folder, unlock_run
from drl.runs.launch import check_server
from drl.runs.node_run import After, Order, Progress
from drl.runs.packed_run import Answer, pack
from drl.runs.stop_signals import StopSignals
from drl.settings.experiment import Experiment
from drl.settings.scaling import ScalingConfig
from drl.tracking.jobs import JobTable

if TYPE_CHECKING:
    from types import ModuleType

WORK = ("drl.runs.node_run", "work")
POLL_SECONDS = 0.5  # how often signals are looked for
MOST_LOSSES = 10  # of a run in a row, without a checkpoint in between


class RunJob(NamedTuple):
    """A run to be done somewhere."""

    name: str  # in the table of all
    experiment: Experiment
    extras: Extras = NOTHING
    after: After | None = None  # done on the node when the run is over


def train_on_cluster(
    jobs: list[RunJob], scaling: ScalingConfig, table: JobTable, at_a_time: int | None = None
) -> Iterator[tuple[RunJob, Answer]]:
    """Jobs and answers, as runs end. A signal is passed on: every run is saved where it is, and no other begins."""
    assert scaling.cluster is not None
    if not scaling.runs_elsewhere:
        raise BadInput("several runs on a cluster have one process each; leave num_collectors and num_learners out")
    for job in jobs:
        check_server(job.experiment.run.mlflow_experiment)
    if scaling.results_url is not None:
        check_url(scaling.results_url)
    needs = Needs(scaling.cpus_per_run, scaling.gpus_per_run)
    with (
        StopSignals() as signals,
        open_cluster(scaling.cluster) as ray,
        contextlib.ExitStack() as stack,
    ):
        check_needs(ray, scaling.cluster, needs)
        runs = ClusterRuns(ray, needs, scaling.results_url, signals, table)
        stack.callback(runs.close)
        yield from runs.train(jobs, at_a_time or len(jobs))
        if signals.seen is not None and not runs.ended:
            raise Interrupted(signals.seen)


@dataclass
class _Run:
    """A run in progress."""

    job: RunJob
    process: NodeProcess
    folder: Path | None = None  # here, as soon as there is one
    incoming: Incoming | None = None  # from a node that does not see the folder
    lock: int | None = None  # nobody else may continue the run
    copy: UrlCopy | None = None
    begun: bool = False  # whether this process has its order
    newest: int | None = None  # step of the newest checkpoint here
    losses: int = 0  # in a row, without a newer one
    answer: Answer | None = None

    def note_checkpoint(self) -> None:
        assert self.folder is not None
        newest = max(Checkpoints(self.folder / "checkpoints").steps(), default=None)
        if newest != self.newest:
            self.newest, self.losses = newest, 0

    def unlock(self) -> None:
        if self.lock is not None:
            unlock_run(self.lock)
            self.lock = None


class ClusterRuns:
    """The runs in progress."""

    def __init__(self, ray: "ModuleType", needs: Needs, url: str | None, signals: StopSignals, table: JobTable):
        self.ray: ModuleType = ray
        self.needs: Needs = needs
        self.url: str | None = url
        self.signals: StopSignals = signals
        self.table: JobTable = table
        self.running: list[_Run] = []
        self.ended: int = 0
        self._probes: dict[Path, Probe] = {}  # by results folder
        self._files = contextlib.ExitStack()  # those of the probes
        self._passed_on = 0  # signals

    def close(self) -> None:
        close([run.process for run in self.running])  # only after an error or a second signal
        for run in self.running:
            run.unlock()
        self._files.close()

    def train(self, jobs: list[RunJob], at_a_time: int) -> Iterator[tuple[RunJob, Answer]]:
        """Run jobs on the cluster; gives each with its answer when it is over."""
        waiting = list(reversed(jobs))
        for job in jobs:
            self.table.note(job.name)
        with self.signals.held():
            yield from self._train(waiting, at_a_time)

    def _train(self, waiting: list[RunJob], at_a_time: int) -> Iterator[tuple[RunJob, Answer]]:
        while waiting or self.running:
            if self.signals.count > self._passed_on:
                waiting.clear()
                self._stop()
            while waiting and len(self.running) < at_a_time:
                job = waiting.pop()
                self.running.append(_Run(job, self._start(job)))
            processes = {run.process: run for run in self.running}
            for process in wait(list(processes), POLL_SECONDS):
                self._hear(processes[process])
            for run in list(self.running):
                if run.process.ready is not None and not run.begun and not run.process.ended:
                    self._begin(run)
                if run.answer is not None:
                    self._end(run)
                    yield run.job, run.answer
            self.table.tick()

    def _start(self, job: RunJob) -> NodeProcess:
        results = Path(job.experiment.run.results_dir).absolute()
        if self.url is None and results not in self._probes:
            self._probes[results] = self._files.enter_context(_probe(results))
        return NodeProcess(self.ray, WORK, self.needs, self._probes.get(results))

    def _begin(self, run: _Run) -> None:
        """The node is found: send it the run."""
        ready, job = run.process.ready, run.job
        assert ready is not None
        run.begun = True
        self.table.note(job.name, node=ready.node, status="running")
        place, folder = ready.folder, None
        if ready.shared:
            place = str(Path(job.experiment.run.results_dir).absolute())
            folder = None if run.folder is None else str(run.folder)
            run.unlock()
            run.incoming = None
        elif run.folder is not None:
            folder = str(Path(place, run.folder.parent.name, run.folder.name))
            run.process.send_folder(folder, parts_of(run.folder))
        packed = pack(job.experiment, job.extras)
        run.process.send(Order(packed, place, folder, cloudpickle.dumps(job.after), sys.argv))

    def _hear(self, run: _Run) -> None:
        while run.process.inbox:
            message = run.process.recv()
            if isinstance(message, FolderSaved):
                self._note_folder(run, Path(message.folder))
            elif isinstance(message, Piece | Complete):
                self._store(run, message)
            elif isinstance(message, Progress):
                steps, share, score = message
                self.table.note(run.job.name, steps=steps, share=share, score=score)
            elif isinstance(message, Answer):
                run.answer = message if message.folder is None else message._replace(folder=run.folder)
        if run.answer is None and run.process.ended:
            self._lose(run)

    def _note_folder(self, run: _Run, folder: Path) -> None:
        """The run has a folder, and perhaps a new checkpoint."""
        assert run.process.ready is not None
        if run.process.ready.shared:
            run.folder = folder
            run.note_checkpoint()
            return
        if run.folder is None:
            results = Path(run.job.experiment.run.results_dir)
            run.folder = new_folder(results / folder.parent.name, folder.name)
        if run.incoming is None:
            run.lock, run.incoming = lock_run(run.folder), Incoming(run.folder)
        if self.url is not None and run.copy is None:
            run.copy = UrlCopy(self.url, run.folder)

    def _store(self, run: _Run, part: Piece | Complete) -> None:
        assert run.incoming is not None
        changed = run.incoming.add(part)
        if isinstance(part, Complete):
            run.note_checkpoint()
        if run.copy is not None:
            run.copy.update(changed)

    def _lose(self, run: _Run) -> None:
        """Its process ended without an answer."""
        process, name = run.process, run.job.name
        if process.over is not None:
            said = f": {process.over.said}" if process.over.said else ""
            run.answer = Answer(error=f"its process ended with exit code {process.over.exit_code}{said}")
            return
        run.losses += 1
        if self._passed_on or run.losses > MOST_LOSSES:
            times = f", {run.losses} times without a checkpoint in between" if run.losses > 1 else ""
            run.answer = Answer(error=process.lost + times, exit_code=5)
            return
        process.kill()
        goes_on = "begins again" if run.folder is None else "goes on from its last checkpoint"
        self.table.say(f"{name}: {process.lost}; it {goes_on}")
        self.table.note(name, node="", status="waiting")
        if run.folder is not None and run.incoming is not None:
            run.incoming = Incoming(run.folder)  # what has not arrived as a whole is dropped
        run.process, run.begun = self._start(run.job), False

    def _stop(self) -> None:
        """Every run that has begun saves itself. A second signal breaks off what else it does."""
        self._passed_on, number = self.signals.count, self.signals.seen
        assert number is not None
        for run in list(self.running):
            if run.begun:
                run.process.signal(number)
            else:
                self._end(run)

    def _end(self, run: _Run) -> None:
        self.running.remove(run)
        self.ended += run.answer is not None
        if run.copy is not None and (missing := run.copy.update(())):
            self.table.say(
                f"{run.job.name}: {plural(len(missing), 'file')} could not be copied to {self.url}: {run.copy.error}"
            )
        close([run.process])
        if run.folder is not None:
            with contextlib.suppress(DrlError, OSError):
                adopt_run(run.folder, run.job.experiment.to_flat())
        run.unlock()
        self.table.remove(run.job.name)


@contextlib.contextmanager
def _probe(folder: Path) -> Iterator[Probe]:
    """A file in a folder, by which a node knows that it sees the same folder."""
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f".drl-{secrets.token_hex(8)}"
        probe = Probe(str(file), secrets.token_hex(16))
        file.write_text(probe.content)
    except OSError as error:
        raise BadInput(f"cannot write into {folder}: {error.strerror}; choose another --results-dir") from None
    try:
        yield probe
    finally:
        file.unlink(missing_ok=True)
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()  # if it is empty


def alone(experiment: Experiment) -> Experiment:
    """The settings of a run as if it were started without a cluster, so that it can be resumed without one."""
    return replace(experiment, scaling=ScalingConfig())
