"""Jobs of a search: train an agent, evaluate it at intervals, return its score. In this process or in several.

Only the parent accesses the study. A worker receives a job through its pipe, sends each intermediate score and receives
whether to stop. When the parent exits, the pipe closes and the worker ends; one that hangs then ends too.
"""

import contextlib
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from drl.core.child_processes import start_child
from drl.core.errors import EnvFailed
from drl.core.log import Log
from drl.core.state_files import PlainDict
from drl.envs.make_vec_env import make_vec_env
from drl.experiment import stages
from drl.experiment.building import build_trainer
from drl.experiment.config import Experiment
from drl.experiment.evaluation import evaluate

POLL_SECONDS = 0.5  # the parent checks for signals this often


@dataclass(frozen=True)
class Job:
    """One agent to train."""

    number: int  # of the trial
    settings: PlainDict  # a whole Experiment, as flat names
    reports: int  # evaluations, at equal fractions of the budget


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    state: str  # complete · pruned · failed · lost (its process died) · stopped (by a signal)
    score: float | None = None  # mean return of the final agent
    error: str = ""


Report = Callable[[Job, int, float], bool]  # (job, fraction, score) → whether to prune the job


def run_job(job: Job, report: Report, stop: Callable[[], bool]) -> Outcome:
    """Train and evaluate. An error becomes a failed outcome, and the search continues."""
    try:
        return _trained(job, Experiment.from_flat(job.settings, f"trial {job.number}"), report, stop)
    except Exception as error:
        return Outcome("failed", error=f"{type(error).__name__}: {error}")


def _trained(job: Job, experiment: Experiment, report: Report, stop: Callable[[], bool]) -> Outcome:
    run, score = experiment.run, None
    with make_vec_env(
        run.env,
        run.num_envs,
        run.seed,
        vectorization=run.vectorization,
        frame_stack=run.frame_stack,
        env_kwargs=run.env_arguments,
        timeout=run.worker_timeout,
    ) as envs:
        _set_threads(run.threads or 1)
        trainer = build_trainer(experiment, envs)

        def measure() -> dict[str, float]:
            with np.errstate(invalid="ignore"):  # infinite returns fail the trial below
                return evaluate(
                    trainer.agent,
                    run.env,
                    run.evaluation_episodes,
                    run.seed,
                    vectorization="envpool" if run.vectorization == "envpool" else "sync",
                    frame_stack=run.frame_stack,
                    env_kwargs=run.env_arguments,
                ).summary()

        logs = measured(trainer(), run.budget, job.reports, bool(run.num_episodes), measure)
        logs = stages.stop_at(logs, minutes=run.max_minutes, mean_return=run.stop_at_return, window=run.window)
        for log in logs:
            if stop():
                return Outcome("stopped")
            score = log.evaluation["mean_return"] if log.evaluation else None
            if score is None:
                continue
            fraction = _fraction(log, run.budget, job.reports, bool(run.num_episodes))
            if not math.isfinite(score):
                break
            if report(job, fraction, score) and fraction < job.reports:
                return Outcome("pruned", score)
        if score is None:  # ended early, by max_minutes or stop_at_return
            score = measure()["mean_return"]
    if not math.isfinite(score):
        return Outcome("failed", error=f"the mean return is {score}")
    return Outcome("complete", score)


def measured(
    logs: Iterable[Log], budget: int, parts: int, in_episodes: bool, measure: Callable[[], dict[str, float]]
) -> Iterator[Log]:
    """A stage: add `measure()` to the first log at or after each of `parts` equal fractions of the budget."""
    before = 0
    for log in logs:
        now = _fraction(log, budget, parts, in_episodes)
        if now > before:
            log.evaluation = measure()
            before = now
        yield log


def _fraction(log: Log, budget: int, parts: int, in_episodes: bool) -> int:
    used = log.episodes if in_episodes else log.env_steps
    return min(used * parts // budget, parts)


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


class Crew:
    """Runs jobs, `size` at a time. With size 1 they run in this process, else in worker processes, which find
    environments only by their ids (`module:Id` for your own)."""

    def __init__(self, size: int):
        self.size = size
        self.idle: list[_Worker] = []
        self.busy: dict[object, tuple[_Worker, Job]] = {}  # by the parent's end of the pipe
        self.deaths = 0  # of workers in a row, without a finished job in between

    def run(
        self, next_job: Callable[[], Job | None], report: Report, stop: Callable[[], bool]
    ) -> Iterator[tuple[Job, Outcome]]:
        """Yield jobs and their outcomes as they end, until `next_job` returns None or `stop` returns True."""
        if self.size == 1:
            while not stop() and (job := next_job()) is not None:
                yield job, run_job(job, report, stop)
            return
        while not stop():
            while len(self.busy) < self.size and (job := next_job()) is not None:
                self._start(job)
            if not self.busy:
                return
            pipes = [worker.pipe for worker, _ in self.busy.values()]
            for pipe in multiprocessing.connection.wait(pipes, POLL_SECONDS):
                ended = self._receive(pipe, report)
                if ended is not None:
                    yield ended

    def _start(self, job: Job) -> None:
        worker = self.idle.pop() if self.idle else _Worker()
        self.busy[worker.pipe] = (worker, job)
        with contextlib.suppress(OSError):  # it died while idle: `_receive` finds the closed pipe
            worker.pipe.send(job)

    def _receive(self, pipe: object, report: Report) -> tuple[Job, Outcome] | None:
        worker, job = self.busy[pipe]
        try:
            message = worker.pipe.recv()
            if isinstance(message, Outcome):
                del self.busy[pipe]
                self.idle.append(worker)
                self.deaths = 0
                return job, message
            worker.pipe.send(report(job, *message))
        except (EOFError, OSError):
            del self.busy[pipe]
            code = worker.close()
            self.deaths += 1
            if self.deaths > self.size + 3:
                raise EnvFailed(f"{self.deaths} workers died in a row, the last with exit code {code}") from None
            return job, Outcome("lost", error=f"its process died with exit code {code}")
        return None

    def close(self) -> None:
        workers = [*self.idle, *(worker for worker, _ in self.busy.values())]
        for worker in workers:
            worker.pipe.close()  # close all first, so that they end in parallel
        for worker in workers:
            worker.close()
        self.idle, self.busy = [], {}


class _Worker:
    """One process and our end of its pipe. It is spawned, because our threads would not survive a fork."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = start_child(context, work, theirs)
        theirs.close()

    def close(self) -> int | None:
        """End the process and return its exit code."""
        self.pipe.close()
        self.process.join(1.0)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        return self.process.exitcode


def work(pipe: Connection) -> None:
    """Body of a worker process: receive jobs and send scores, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    def report(_: Job, fraction: int, score: float) -> bool:
        pipe.send((fraction, score))
        return bool(pipe.recv())

    with contextlib.suppress(EOFError, OSError):
        while True:
            job = pipe.recv()
            # The parent sends nothing unasked, so a readable pipe means that it is gone.
            pipe.send(run_job(job, report, pipe.poll))
