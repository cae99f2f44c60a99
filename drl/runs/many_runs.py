"""Many runs, each in a process of its own: on this machine, or on the nodes of a cluster."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
from collections.abc import Generator, Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from drl.core.errors import DrlError, Interrupted
from drl.core.processes import start_child
from drl.runs.extras import NOTHING, Extras
from drl.runs.packed_run import Answer, PackedRun, pack
from drl.settings.experiment import Experiment
from drl.settings.scaling import ScalingConfig
from drl.tracking.jobs import JobBar, JobTable


class RunFailed(DrlError):
    """A run in another process failed; the exit code is that of its error."""

    def __init__(self, message: str, answer: Answer):
        super().__init__(message)
        self.exit_code: int = answer.exit_code


def progress_of(scaling: ScalingConfig, quiet: bool) -> JobBar:
    """What shows how far many runs are."""
    return JobBar(quiet) if scaling.cluster is None else JobTable(quiet)


def train_many(
    runs: Mapping[str, Experiment],
    scaling: ScalingConfig,
    bar: JobBar,
    workers: int | None = None,
    extras: Extras = NOTHING,
) -> Generator[tuple[str, Answer]]:
    """Names and answers, as runs end; `workers` at a time. A signal is passed on: every run is saved, and no other is
    started. Raises `Interrupted` if it came before any had begun."""
    if scaling.cluster is None:
        with Processes(extras) as processes:
            yield from processes.train(runs, workers or os.cpu_count() or 1)
        return
    from drl.runs.cluster_runs import RunJob, alone, train_on_cluster

    assert isinstance(bar, JobTable)
    jobs = [RunJob(name, alone(run), extras) for name, run in runs.items()]
    for job, answer in train_on_cluster(jobs, scaling, bar, workers):
        yield job.name, answer


class Processes:
    """The processes of the runs in progress."""

    def __init__(self, extras: Extras):
        self.extras = extras
        self.running: dict[Connection, tuple[str, BaseProcess]] = {}  # by our end of the pipe

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.running.values():  # only after an error of our own
            each[1].kill()
            each[1].join()

    def train(self, runs: Mapping[str, Experiment], workers: int) -> Iterator[tuple[str, Answer]]:
        """Names and answers, as runs end."""
        waiting, stopped, ended = list(runs)[::-1], None, 0
        while waiting or self.running:
            try:
                while waiting and len(self.running) < workers:
                    name = waiting.pop()
                    self._start(name, runs[name])
                over = multiprocessing.connection.wait(list(self.running))
            except KeyboardInterrupt as stop:
                waiting.clear()
                stopped = stop
                self._pass_on(stop)
                continue
            for pipe in [each for each in self.running if each in over]:
                name, process = self.running.pop(pipe)
                ended += 1
                yield name, _answer(pipe, process)
        if stopped is not None and not ended:
            raise stopped

    def _start(self, name: str, experiment: Experiment) -> None:
        # Our threads would not survive a fork.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = start_child(context, work, theirs, pack(experiment, self.extras))
        theirs.close()
        self.running[ours] = (name, process)

    def _pass_on(self, stop: KeyboardInterrupt) -> None:
        number = stop.args[0] if stop.args and isinstance(stop.args[0], int) else signal.SIGINT
        for _, process in self.running.values():
            assert process.pid is not None  # it was started
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)


def _answer(pipe: Connection, process: BaseProcess) -> Answer:
    try:
        answer: Answer = pipe.recv()
    except (EOFError, OSError):
        process.join()
        code = process.exitcode
        hint = "; a script that starts processes needs `if __name__ == '__main__':`" if code == 1 else ""
        return Answer(error=f"its process ended with exit code {code}{hint}")
    process.join()
    return answer


def work(pipe: Connection, packed: PackedRun) -> None:
    """Body of a process: train one run."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # a terminal's Ctrl-C reaches it once, from the process that started it
    from drl.runs.launch import train

    try:
        finished = train(*packed.unpack(), console=False)
        pipe.send(Answer(finished.folder, finished.status, finished.evaluation))
    except (Exception, Interrupted) as error:
        pipe.send(Answer.of(error))
