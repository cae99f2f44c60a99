"""Several seeds, each in a process of its own: on this machine, or on the nodes of a cluster."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
from collections.abc import Generator, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from drl.core.child_processes import start_child
from drl.core.errors import DrlError, Interrupted
from drl.experiment.config import Experiment
from drl.experiment.extras import Extras
from drl.experiment.finished import Finished
from drl.experiment.load_agent import load_agent
from drl.experiment.packed_run import Answer, PackedRun, pack
from drl.tracking.job_bar import JobBar
from drl.tracking.job_table import JobTable


class SeedFailed(DrlError):
    """The run of a seed failed; the exit code is that of its error."""


def train_in_processes(experiment: Experiment, extras: Extras, console: bool) -> list[Finished]:
    """Train every seed, `workers` at a time; the runs in the order of their seeds. A signal is passed on: every run is
    saved, and no other is started. If runs fail the others go on, and the first error is raised at the end."""
    config, answers, quiet = experiment.run, dict[int, Answer](), experiment.run.quiet or not console
    seeds = config.all_seeds
    if config.wandb_project is not None or config.mlflow_experiment is not None:
        together = config.group or f"{experiment.algorithm}_{config.env}_seeds_{'_'.join(map(str, seeds))}"[:100]
        experiment = replace(experiment, run=replace(config, group=together))
    train = _here if experiment.scaling.cluster is None else _on_cluster
    bar = JobBar(quiet) if experiment.scaling.cluster is None else JobTable(quiet)
    with bar, contextlib.closing(train(experiment, extras, bar)) as ended:
        bar.begin(f"{len(seeds)} seeds" if len(seeds) > 1 else "1 run", len(seeds), 0)
        for seed, answer in ended:
            answers[seed] = answer
            score = f", mean return {answer.evaluation['mean_return']:.2f}" if answer.evaluation else ""
            bar.advance(f"seed {seed}: {answer.error or answer.status}{score}")
    failed = {seed: answers[seed] for seed in seeds if seed in answers and answers[seed].folder is None}
    for seed, answer in failed.items():
        error = SeedFailed(f"seed {seed}: {answer.error}")
        error.exit_code = answer.exit_code
        raise error
    told = [answers[seed] for seed in seeds if seed in answers]
    runs = [(answer, answer.folder) for answer in told if answer.folder is not None]
    model = extras.model if hasattr(extras.model, "parameters") else None
    return [
        Finished(folder, load_agent(folder, model), None, answer.status, answer.evaluation) for answer, folder in runs
    ]


def _here(experiment: Experiment, extras: Extras, bar: JobBar) -> Generator[tuple[int, Answer]]:
    with Processes(experiment, extras) as processes:
        yield from processes.train(experiment.run.all_seeds, experiment.run.workers or os.cpu_count() or 1)


def _on_cluster(experiment: Experiment, extras: Extras, bar: JobBar) -> Generator[tuple[int, Answer]]:
    from drl.experiment.cluster_runs import RunJob, alone, train_on_cluster

    assert isinstance(bar, JobTable)
    config = experiment.run
    each = {seed: replace(alone(experiment), run=config.with_seed(seed)) for seed in config.all_seeds}
    jobs = [RunJob(f"seed {seed}", one, extras) for seed, one in each.items()]
    for job, answer in train_on_cluster(jobs, experiment.scaling, bar, config.workers):
        yield job.experiment.run.seed, answer


class Processes:
    """The processes of the runs in progress."""

    def __init__(self, experiment: Experiment, extras: Extras):
        self.experiment, self.extras = experiment, extras
        self.running: dict[Connection, tuple[int, BaseProcess]] = {}  # by our end of the pipe

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.running.values():  # only after an error of our own
            each[1].kill()
            each[1].join()

    def train(self, seeds: list[int], workers: int) -> Iterator[tuple[int, Answer]]:
        """Seeds and answers, as runs end."""
        waiting = list(reversed(seeds))
        while waiting or self.running:
            try:
                while waiting and len(self.running) < workers:
                    self._start(waiting.pop())
                ended = multiprocessing.connection.wait(list(self.running))
            except KeyboardInterrupt as stop:
                waiting.clear()
                self._pass_on(stop)
                continue
            for pipe in [each for each in self.running if each in ended]:
                seed, process = self.running.pop(pipe)
                yield seed, _answer(pipe, process)

    def _start(self, seed: int) -> None:
        one = replace(self.experiment, run=self.experiment.run.with_seed(seed))
        # Our threads would not survive a fork.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = start_child(context, work, theirs, pack(one, self.extras))
        theirs.close()
        self.running[ours] = (seed, process)

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
    """Body of a process: train one seed."""
    from drl.experiment.launch import train

    try:
        finished = train(*packed.unpack(), console=False)
        pipe.send(Answer(finished.folder, finished.status, finished.evaluation))
    except (Exception, Interrupted) as error:
        pipe.send(Answer.of(error))
