"""Jobs of a search: train one agent, measure it now and then, give its score. In this process or in several.

Only the parent talks to the study. A worker gets a job through its pipe, sends each intermediate score and hears
whether to go on; when the parent is gone the pipe ends and so does the worker.
"""

import contextlib
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from drl.core.errors import EnvFailed
from drl.core.log import Log
from drl.envs.make_vec_env import make_vec_env
from drl.experiment import stages
from drl.experiment.building import build_trainer
from drl.experiment.config import Experiment
from drl.experiment.evaluation import evaluate

POLL_SECONDS = 0.5  # how often the parent looks up from waiting, to heed a signal


@dataclass(frozen=True)
class Job:
    """One agent to train."""

    number: int  # of the trial
    settings: dict[str, Any]  # flat: all of an Experiment
    reports: int  # evaluations, at equal fractions of the budget


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    state: str  # complete · pruned · failed · lost (its process died) · stopped (by a signal)
    score: float | None = None  # mean return of the final agent
    error: str = ""


Report = Callable[[Job, int, float], bool]  # (job, fraction, score) → whether to give the job up


def run_job(job: Job, report: Report, stop: Callable[[], bool]) -> Outcome:
    """Train and measure. Whatever goes wrong becomes a failed outcome: the search goes on."""
    try:
        return _trained(job, Experiment.from_flat(job.settings, f"trial {job.number}"), report, stop)
    except Exception as error:
        return Outcome("failed", error=f"{type(error).__name__}: {error}")


def _trained(job: Job, experiment: Experiment, report: Report, stop: Callable[[], bool]) -> Outcome:
    run, score = experiment.run, None
    env_options: dict[str, Any] = {"frame_stack": run.frame_stack, "env_kwargs": run.env_arguments}
    with make_vec_env(run.env, run.num_envs, run.seed, vectorization=run.vectorization, **env_options) as envs:
        _set_threads(run.threads or 1)
        trainer = build_trainer(experiment, envs)
        if run.vectorization == "envpool":
            env_options["vectorization"] = "envpool"

        def measure() -> dict[str, float]:
            with np.errstate(invalid="ignore"):  # of infinite returns; they fail the trial below
                return evaluate(trainer.agent, run.env, run.evaluation_episodes, run.seed, **env_options).summary()

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
        if score is None:  # ended early, by the clock or by a good return
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
    """Does jobs, `size` at a time. One at a time runs in this process; more run in processes of their own, which see
    environments only by their ids (`module:Id` for your own)."""

    def __init__(self, size: int):
        self.size = size
        self.idle: list[_Worker] = []
        self.busy: dict[Any, tuple[_Worker, Job]] = {}  # by the parent's end of the pipe
        self.deaths = 0  # in a row, without any job coming to its end

    def run(
        self, next_job: Callable[[], Job | None], report: Report, stop: Callable[[], bool]
    ) -> Iterator[tuple[Job, Outcome]]:
        """Jobs and their outcomes as they end, until `next_job` gives None or `stop` says so."""
        if self.size == 1:
            while not stop() and (job := next_job()) is not None:
                yield job, run_job(job, report, stop)
            return
        while not stop():
            while len(self.busy) < self.size and (job := next_job()) is not None:
                self._start(job)
            if not self.busy:
                return
            for pipe in multiprocessing.connection.wait(list(self.busy), POLL_SECONDS):
                ended = self._hear(pipe, report)
                if ended is not None:
                    yield ended

    def _start(self, job: Job) -> None:
        worker = self.idle.pop() if self.idle else _Worker()
        self.busy[worker.pipe] = (worker, job)
        with contextlib.suppress(OSError):  # it died while idle: `_hear` will find the pipe's end
            worker.pipe.send(job)

    def _hear(self, pipe: Any, report: Report) -> tuple[Job, Outcome] | None:
        worker, job = self.busy[pipe]
        try:
            message = pipe.recv()
            if isinstance(message, Outcome):
                del self.busy[pipe]
                self.idle.append(worker)
                self.deaths = 0
                return job, message
            pipe.send(report(job, *message))
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
            worker.pipe.close()  # all at once, so that they end at the same time
        for worker in workers:
            worker.close()
        self.idle, self.busy = [], {}


class _Worker:
    """One process and our end of its pipe. Spawned, not forked: threads of ours would not survive a fork."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs,))
        self.process.start()
        theirs.close()

    def close(self) -> int | None:
        """End it and give its exit code."""
        self.pipe.close()
        self.process.join(1.0)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        return self.process.exitcode


def work(pipe: Any) -> None:
    """A worker's life: jobs in, scores out, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    def report(_: Job, fraction: int, score: float) -> bool:
        pipe.send((fraction, score))
        return bool(pipe.recv())

    with contextlib.suppress(EOFError, OSError):
        while True:
            job = pipe.recv()
            pipe.send(
                run_job(job, report, pipe.poll)
            )  # nothing is sent unasked: readable means that the parent is gone
