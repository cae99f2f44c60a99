"""Many runs on a cluster, one process on a node for each: the driver. The body of a process is `work` of `many_runs`.

A node that sees the results folder writes into it. From any other the folder of a run comes here, with every checkpoint
when it is written. A run that is lost with its node goes on elsewhere, from its last checkpoint.
"""

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from drl.cluster.folder_copy import Complete, Incoming, Piece, UrlCopy, check_url, parts_of
from drl.cluster.node_process import FolderSaved, Needs, Probe, open_nodes
from drl.core.errors import BadInput, DrlError, plural
from drl.runs.folder.checkpoints import Checkpoints
from drl.runs.folder.run_folder import adopt_run, lock_run, new_folder, unlock_run
from drl.runs.job_pool import JobProcess, Slot, Transport
from drl.runs.launch import check_server
from drl.runs.many_runs import WORK, Progress, RunAnswer, RunJob, RunPool
from drl.runs.stop_signals import StopSignals
from drl.settings.scaling import ScalingConfig
from drl.tracking.jobs import JobTable

MOST_LOSSES = 10  # of a run in a row, without a checkpoint in between


def train_on_cluster(
    jobs: list[RunJob], scaling: ScalingConfig, table: JobTable, at_a_time: int | None = None
) -> Iterator[tuple[RunJob, RunAnswer]]:
    """Jobs and answers, as runs end. A signal is passed on: every run is saved where it is, and no other begins."""
    assert scaling.cluster is not None
    if not scaling.runs_elsewhere:
        raise BadInput("several runs on a cluster have one process each; leave num_collectors and num_learners out")
    for job in jobs:
        check_server(job.experiment.run.mlflow_experiment)
    if scaling.results_url is not None:
        check_url(scaling.results_url)
    needs = Needs(scaling.cpus_per_run, scaling.gpus_per_run)
    with StopSignals() as signals, open_nodes(scaling.cluster, WORK, needs) as nodes:
        pool = ClusterRunPool(nodes, at_a_time or len(jobs), signals, scaling.results_url, table)
        with contextlib.closing(pool):
            yield from pool.train(jobs)


@dataclass
class _Copy:
    """The copy here of a run on a node."""

    folder: Path | None = None  # None: the run has none yet
    incoming: Incoming | None = None  # from a node that does not see the folder
    lock: int | None = None  # nobody else may continue the run
    second: UrlCopy | None = None  # at a URL
    newest: int | None = None  # step of the newest checkpoint here
    losses: int = 0  # in a row, without a newer one

    def note_checkpoint(self) -> None:
        assert self.folder is not None
        newest = max(Checkpoints(self.folder / "checkpoints").steps(), default=None)
        if newest != self.newest:
            self.newest, self.losses = newest, 0

    def unlock(self) -> None:
        if self.lock is not None:
            unlock_run(self.lock)
            self.lock = None


class ClusterRunPool(RunPool):
    """Runs on the nodes of a cluster, with copies of their folders here."""

    def __init__(self, transport: Transport, size: int, signals: StopSignals, url: str | None, table: JobTable):
        super().__init__(transport, size, signals)
        self.url: str | None = url
        self.table: JobTable = table
        self.copies: dict[str, _Copy] = {}  # by name
        self._probes: dict[Path, Probe] = {}  # by results folder
        self._files = contextlib.ExitStack()  # those of the probes

    def train(self, jobs: Sequence[RunJob]) -> Iterator[tuple[RunJob, RunAnswer]]:
        for job in jobs:
            self.table.note(job.name)
            self.copies[job.name] = _Copy()
        yield from super().train(jobs)

    def close(self) -> None:
        self.transport.close([slot.process for slot in self.busy])  # only after an error or a second signal
        self.busy = []
        for copy in self.copies.values():
            copy.unlock()
        self._files.close()

    def look(self) -> None:
        super().look()
        self.table.tick()

    def start(self, job: RunJob | None) -> JobProcess:
        assert job is not None
        results = Path(job.experiment.run.results_dir).absolute()
        if self.url is None and results not in self._probes:
            self._probes[results] = self._files.enter_context(_probe(results))
        return self.transport.start(self._probes.get(results))

    def begin(self, slot: Slot[RunJob]) -> None:
        """A node has been assigned: send it the run."""
        process, job, copy = slot.process, slot.job, self.copies[slot.job.name]
        ready = process.ready
        self.table.note(job.name, node=ready.node, status="running")
        place, folder = ready.folder, None
        if ready.shared:
            place = str(Path(job.experiment.run.results_dir).absolute())
            folder = None if copy.folder is None else str(copy.folder)
            copy.unlock()
            copy.incoming = None
        elif copy.folder is not None:
            folder = str(Path(place, copy.folder.parent.name, copy.folder.name))
            process.send_folder(folder, parts_of(copy.folder))  # type: ignore[attr-defined]
        self.send(slot, place, folder)

    def hear(self, slot: Slot[RunJob], message: object) -> RunAnswer | None:
        copy = self.copies[slot.job.name]
        if isinstance(message, FolderSaved):
            self._note_folder(slot, Path(message.folder))
        elif isinstance(message, Piece | Complete):
            assert copy.incoming is not None
            changed = copy.incoming.add(message)
            if isinstance(message, Complete):
                copy.note_checkpoint()
            if copy.second is not None:
                copy.second.update(changed)
        elif isinstance(message, Progress):
            self.table.note(slot.job.name, steps=message.env_steps, share=message.share, score=message.score)
        elif isinstance(message, RunAnswer):
            return message if message.folder is None else message._replace(folder=copy.folder)
        return None

    def _note_folder(self, slot: Slot[RunJob], folder: Path) -> None:
        """The run has a folder, and perhaps a new checkpoint."""
        copy = self.copies[slot.job.name]
        if slot.process.ready.shared:
            copy.folder = folder
            copy.note_checkpoint()
            return
        if copy.folder is None:
            results = Path(slot.job.experiment.run.results_dir)
            copy.folder = new_folder(results / folder.parent.name, folder.name)
        if copy.incoming is None:
            copy.lock, copy.incoming = lock_run(copy.folder), Incoming(copy.folder)
        if self.url is not None and copy.second is None:
            copy.second = UrlCopy(self.url, copy.folder)

    def lose(self, slot: Slot[RunJob]) -> RunAnswer | None:
        """Continue a run elsewhere if its node was lost."""
        process, name, copy = slot.process, slot.job.name, self.copies[slot.job.name]
        if process.over is not None:
            last_line = f": {process.over.said}" if process.over.said else ""
            return RunAnswer(error=f"its process ended with exit code {process.over.exit_code}{last_line}")
        copy.losses += 1
        if self.passed_on or copy.losses > MOST_LOSSES:
            times = f", {copy.losses} times without a checkpoint in between" if copy.losses > 1 else ""
            return RunAnswer(error=process.lost + times, exit_code=5)
        goes_on = "begins again" if copy.folder is None else "goes on from its last checkpoint"
        self.table.say(f"{name}: {process.lost}; it {goes_on}")
        self.table.note(name, node="", status="waiting")
        if copy.folder is not None and copy.incoming is not None:
            copy.incoming = Incoming(copy.folder)  # what has not arrived as a whole is dropped
        return None

    def ended(self, slot: Slot[RunJob]) -> None:
        copy, job = self.copies[slot.job.name], slot.job
        if copy.second is not None and (missing := copy.second.update(())):
            files = plural(len(missing), "file")
            self.table.say(f"{job.name}: {files} could not be copied to {self.url}: {copy.second.error}")
        if copy.folder is not None:
            with contextlib.suppress(DrlError, OSError):
                adopt_run(copy.folder, job.experiment.to_flat())
        copy.unlock()
        self.table.remove(job.name)


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
