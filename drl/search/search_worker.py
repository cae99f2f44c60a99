"""Jobs of a search: train an agent, evaluate it at intervals, return its score. In workers, or in this process.

Only the parent accesses the study. A worker receives a job through its pipe, sends each intermediate score and receives
whether to stop; in between it sends signs of life. A worker that dies or falls silent is replaced. When the parent
exits, the worker ends, even if it hangs.
"""

import contextlib
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from drl.agents.agent_env import JAX_ONLY, open_vec_env
from drl.agents.evaluation import evaluate
from drl.core.errors import BadInput, EnvFailed
from drl.core.log import Log
from drl.core.network_parts import import_plugins
from drl.core.processes import start_child
from drl.core.specs import PlainDict
from drl.envs.env_names import find_wrapper
from drl.envs.env_specs import find_spec
from drl.runs import stages
from drl.runs.building import build_trainer, start_engine
from drl.runs.launch import remote_boards
from drl.settings.experiment import Experiment
from drl.tracking.guarded import Ending, Guarded, guard

POLL_SECONDS = 0.5  # the parent checks for signals this often
SIGN_SECONDS = 1.0  # between two signs of life of a worker, if its learning steps are not longer
START_SECONDS = 120.0  # limit for the start of the first worker


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
        return _tracked(job, Experiment.from_flat(job.settings, f"trial {job.number}"), report, stop)
    except (Exception, SystemExit) as error:
        return Outcome("failed", error=f"{type(error).__name__}: {error}")


def _tracked(job: Job, experiment: Experiment, report: Report, stop: Callable[[], bool]) -> Outcome:
    """Train with the boards that the settings name."""
    folder, outcome = Path(experiment.run.results_dir), Outcome("failed")
    boards = [guard(board) for board in remote_boards(experiment, folder, f"trial {job.number}")]
    try:
        outcome = _trained(job, experiment, boards, report, stop)
        return outcome
    finally:
        score = None if outcome.score is None else {"mean_return": outcome.score}
        for board in boards:
            board.finish(Ending(folder, "finished" if outcome.state == "complete" else outcome.state, score))


def _trained(
    job: Job, experiment: Experiment, boards: list[Guarded], report: Report, stop: Callable[[], bool]
) -> Outcome:
    run, score = experiment.run, None
    start_engine(experiment)
    with open_vec_env(
        run.env_config, run.num_envs, run.seed, vectorization=run.vectorization, timeout=run.worker_timeout
    ) as envs:
        _set_threads(run.threads or 1)
        trainer = build_trainer(experiment, envs)

        def measure() -> dict[str, float]:
            with np.errstate(invalid="ignore"):  # infinite returns fail the trial below
                return evaluate(
                    trainer.agent,
                    run.env_config,
                    run.evaluation_episodes,
                    run.seed,
                    vectorization="envpool" if run.vectorization == "envpool" else "sync",
                    max_steps=run.eval_max_steps,
                ).summary()

        logs = measured(trainer(), run.budget, job.reports, bool(run.num_episodes), measure)
        logs = stages.stop_at(logs, minutes=run.max_minutes, mean_return=run.stop_at_return, window=run.window)
        for log in stages.track(logs, boards):
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
    """Runs jobs in worker processes, `size` at a time; size 0: one after another in this process. Workers find
    environments only by their ids (`module:Id` for your own)."""

    def __init__(self, size: int, silence: float = math.inf):
        self.size: int = size
        self.silence = silence  # seconds without a message after which a worker counts as hanging
        self.idle: list[Worker] = []
        self.busy: dict[object, tuple[Worker, Job]] = {}  # by the parent's end of the pipe
        self.deaths: int = 0  # of workers in a row, without a finished job in between

    def check(self, settings: PlainDict) -> str:
        """Start the first worker and ask it whether it finds what these settings name. If it does not, a crew of one
        works in this process, and the answer says why; a larger one raises."""
        if self.size == 0:
            return ""
        worker = LocalWorker()
        why = "it did not start"
        with contextlib.suppress(EOFError, OSError):
            worker.pipe.send(settings)
            if worker.pipe.poll(START_SECONDS):
                why = worker.pipe.recv()
        if not why:
            self.idle.append(worker)
            return ""
        worker.kill()
        if self.size > 1:
            raise BadInput(
                f"worker processes cannot run this: {why}; give your environment as module:Id, or --n-jobs 0"
            )
        self.size = 0
        return str(why)

    def run(
        self, next_job: Callable[[], Job | None], report: Report, stop: Callable[[], bool]
    ) -> Iterator[tuple[Job, Outcome]]:
        """Yield jobs and their outcomes as they end, until `next_job` returns None or `stop` returns True."""
        if self.size == 0:
            while not stop() and (job := next_job()) is not None:
                yield job, run_job(job, report, stop)
            return
        while not stop():
            if not self._hand_out(next_job):
                return
            for pipe in self._wait():
                ended = self._receive(pipe, report)
                if ended is not None:
                    yield ended
            yield from self._give_up_silent()

    def _hand_out(self, next_job: Callable[[], Job | None]) -> bool:
        """Start as many jobs as there may be; False if nothing is left to wait for."""
        while len(self.busy) < self.size and (job := next_job()) is not None:
            self._start(job)
        return bool(self.busy)

    def _wait(self) -> Sequence[object]:
        """The pipes of those who say something."""
        pipes: list[Any] = [worker.pipe for worker, _ in self.busy.values()]
        return multiprocessing.connection.wait(pipes, POLL_SECONDS)

    def _start(self, job: Job) -> None:
        worker = self.idle.pop() if self.idle else LocalWorker()
        worker.heard = time.monotonic()
        self.busy[worker.pipe] = (worker, job)
        with contextlib.suppress(OSError):  # it died while idle: `_receive` finds the closed pipe
            worker.pipe.send(job)

    def _receive(self, pipe: object, report: Report) -> tuple[Job, Outcome] | None:
        worker, job = self.busy[pipe]
        worker.heard = time.monotonic()
        try:
            message = worker.pipe.recv()
            if isinstance(message, Outcome):
                del self.busy[pipe]
                self.idle.append(worker)
                self.deaths = 0
                return job, message
            if message is not None:  # None: a sign of life
                worker.pipe.send(report(job, *message))
        except (EOFError, OSError):
            del self.busy[pipe]
            code = worker.close()
            self.deaths += 1
            if self.deaths > self.size + 3:
                raise EnvFailed(f"{self.deaths} workers died in a row, the last with exit code {code}") from None
            return job, Outcome("lost", error=f"its process died with exit code {code}")
        return None

    def _give_up_silent(self) -> Iterator[tuple[Job, Outcome]]:
        now = time.monotonic()
        for worker, job in [each for each in self.busy.values() if now - each[0].heard > self.silence]:
            del self.busy[worker.pipe]
            worker.kill()
            silence = f"no sign of life for {self.silence / 60:g} minutes (--trial-timeout)"
            yield job, Outcome("failed", error=silence)

    def close(self) -> None:
        workers = [*self.idle, *(worker for worker, _ in self.busy.values())]
        for worker in workers:
            worker.pipe.close()  # close all first, so that they end in parallel
        for worker in workers:
            worker.close()
        self.idle, self.busy = [], {}


class Pipe(Protocol):
    """Our end of a pipe to a worker, on this machine or on another."""

    def send(self, message: object, /) -> None:
        """Send a message."""

    def recv(self) -> Any:
        """The next message; waits for it."""

    def poll(self, timeout: float, /) -> bool:
        """Whether a message comes within this time."""

    def close(self) -> None: ...


class Worker(Protocol):
    """A process that runs trials."""

    heard: float  # when its last message came

    @property
    def pipe(self) -> Pipe:
        """What connects it."""

    def close(self) -> int | None:
        """End the process and return its exit code."""

    def kill(self) -> int | None:
        """End it at once; returns its exit code."""


class LocalWorker:
    """One process and our end of its pipe. It is spawned, because our threads would not survive a fork."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self.pipe: Pipe = ours
        self.process: BaseProcess = start_child(context, work, theirs)
        self.heard: float = time.monotonic()
        theirs.close()

    def close(self) -> int | None:
        self.pipe.close()
        self.process.join(1.0)
        return self.kill()

    def kill(self) -> int | None:
        self.pipe.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        return self.process.exitcode


def work(pipe: Connection) -> None:
    """Body of a worker process: receive settings to look at, then jobs, and send scores, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    told = time.monotonic()

    def report(_: Job, fraction: int, score: float) -> bool:
        pipe.send((fraction, score))
        return bool(pipe.recv())

    def stop() -> bool:
        nonlocal told
        if time.monotonic() - told >= SIGN_SECONDS:
            pipe.send(None)
            told = time.monotonic()
        return pipe.poll()  # the parent sends nothing unasked, so a readable pipe means that it is gone

    with contextlib.suppress(EOFError, OSError):
        while True:
            job = pipe.recv()
            if not isinstance(job, Job):
                pipe.send(_missing(job))
                continue
            try:
                outcome = run_job(job, report, stop)
            except KeyboardInterrupt:  # raised by the environment: signals are ignored here
                outcome = Outcome("failed", error="KeyboardInterrupt")
            pipe.send(outcome)


def _missing(settings: PlainDict) -> str:
    """What of these settings this process does not find; "" if nothing is missing."""
    try:
        import_plugins(settings.get("plugins") or [])
        run = Experiment.from_flat(settings, "the search").run
        if not run.env.startswith(JAX_ONLY) and run.vectorization != "envpool":
            find_spec(run.env)
        for wrapper in run.env_config.wrappers:
            find_wrapper(wrapper)
    except Exception as error:
        return str(error) or type(error).__name__
    return ""
