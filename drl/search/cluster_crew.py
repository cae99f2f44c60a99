"""Workers of a search on the nodes of a cluster. Only the driver accesses the study.

A worker gets a job when its node is found, so that no trial is asked for that nobody can run. The job of a worker that
is lost with its node begins again elsewhere: the same settings, the same seed.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from drl.cluster.node_process import Needs, NodeProcess, close, wait
from drl.cluster.ray_cluster import check_needs, open_cluster
from drl.core.errors import BadInput, EnvFailed
from drl.core.specs import PlainDict
from drl.search.search_worker import POLL_SECONDS, START_SECONDS, Crew, Job, Outcome, Report, Worker
from drl.tracking.jobs import JobBar, JobTable

if TYPE_CHECKING:
    from types import ModuleType

    from drl.search.search_plan import SearchConfig

WORK = ("drl.search.search_worker", "work")


class NodeWorker:
    """A worker on a node. The pipe is the process."""

    def __init__(self, ray: "ModuleType", needs: Needs):
        self.pipe: NodeProcess = NodeProcess(ray, WORK, needs)
        self.heard: float = time.monotonic()

    def close(self) -> int | None:
        close([self.pipe])
        return None if self.pipe.over is None else self.pipe.over.exit_code

    kill = close


class ClusterCrew(Crew):
    """Workers of a search on a cluster."""

    def __init__(self, ray: "ModuleType", needs: Needs, size: int, silence: float, table: JobBar):
        super().__init__(size, silence)
        assert isinstance(table, JobTable)
        self.ray: ModuleType = ray
        self.needs: Needs = needs
        self.table: JobTable = table
        self.applicants: list[NodeWorker] = []  # they wait for a node
        self.again: list[Job] = []  # whose worker was lost
        self.told: dict[str, int] = {}  # job → the last fraction that was reported

    def check(self, settings: PlainDict) -> str:
        """Raise unless a node is found that knows what these settings name."""
        worker = NodeWorker(self.ray, self.needs)
        self.applicants.append(worker)
        worker.pipe.send(settings)
        wanted = f"{self.needs.cpus:g} CPU and {self.needs.gpus:g} GPU"
        why = f"no node had {wanted} free for {START_SECONDS:g} seconds"
        with contextlib.suppress(EOFError):
            if worker.pipe.poll(START_SECONDS):
                why = str(worker.pipe.recv())
        if why:
            raise BadInput(f"the nodes cannot run this: {why}; your environment must be installed there (module:Id)")
        return ""

    def _hand_out(self, next_job: Callable[[], Job | None]) -> bool:
        self.idle += [each for each in self.applicants if each.pipe.ready is not None]
        self.applicants = [each for each in self.applicants if each.pipe.ready is None and not each.pipe.ended]
        while self.idle:
            if (job := self._next(next_job)) is None:
                close([worker.pipe for worker in self.applicants])  # there is nothing for them to do
                self.applicants = []
                return bool(self.busy)
            self._start(job)
        while len(self.busy) + len(self.applicants) < self.size:
            self.applicants.append(NodeWorker(self.ray, self.needs))
        return True

    def _next(self, next_job: Callable[[], Job | None]) -> Job | None:
        return self.again.pop() if self.again else next_job()

    def _start(self, job: Job) -> None:
        super()._start(job)
        worker, _ = next(reversed(self.busy.values()))
        assert isinstance(worker, NodeWorker)
        assert worker.pipe.ready is not None
        self.table.note(_name(job), node=worker.pipe.ready.node, status="running")

    def _wait(self) -> Sequence[object]:
        self.table.tick()
        processes = [each.pipe for each in self.applicants]
        processes += [pipe for pipe in self.busy if isinstance(pipe, NodeProcess)]
        return [process for process in wait(processes, POLL_SECONDS) if process in self.busy]

    def _receive(self, pipe: object, report: Report) -> tuple[Job, Outcome] | None:
        assert isinstance(pipe, NodeProcess)
        _, job = self.busy[pipe]
        if pipe.lost and not pipe.inbox:
            del self.busy[pipe]
            pipe.kill()
            self.deaths += 1
            if self.deaths > self.size + 3:
                raise EnvFailed(f"{self.deaths} workers were lost in a row; the last one: {pipe.lost}")
            self.table.say(f"{_name(job)}: {pipe.lost}; it begins again")
            self.table.remove(_name(job))
            self.again.append(job)
            return None
        ended = super()._receive(pipe, lambda *told: self._report(report, *told))
        if ended is not None:
            self.table.remove(_name(job))
        return ended

    def _report(self, report: Report, job: Job, fraction: int, score: float) -> bool:
        """What a job that began again repeats is not reported twice."""
        self.table.note(_name(job), score=score, share=fraction / job.reports)
        if fraction <= self.told.get(_name(job), 0):
            return False
        self.told[_name(job)] = fraction
        return report(job, fraction, score)

    def close(self) -> None:
        workers = [*self.applicants, *self.idle, *(worker for worker, _ in self.busy.values())]
        close([worker.pipe for worker in workers if isinstance(worker, NodeWorker)])
        self.applicants = []
        self.idle: list[Worker] = []
        self.busy: dict[object, tuple[Worker, Job]] = {}


def _name(job: Job) -> str:
    return f"trial {job.number}, seed {job.settings['seed']}"


@contextlib.contextmanager
def open_cluster_crew(config: "SearchConfig", bar: JobBar) -> Iterator[Crew]:
    """The workers of a search on its cluster."""
    assert config.cluster is not None
    needs = Needs(config.cpus_per_run, config.gpus_per_run)
    with open_cluster(config.cluster) as ray:
        check_needs(ray, config.cluster, needs)
        size = min(config.n_jobs, config.n_trials)
        with contextlib.closing(ClusterCrew(ray, needs, size, 60 * config.trial_timeout, bar)) as crew:
            yield crew
