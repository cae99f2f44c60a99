"""Trials of a search: train an agent, evaluate it at intervals, return its score. In workers, or in this process.

Only the parent accesses the study. A worker receives a job through its pipe, sends each intermediate score and receives
whether to stop; in between it sends signs of life. A worker that dies or falls silent is replaced. When the parent
exits, the worker ends, even if it hangs.
"""

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from drl.agents.agent_env import JAX_ONLY
from drl.core.contracts import Agent
from drl.core.errors import BadInput, EnvFailed
from drl.core.network_parts import import_plugins
from drl.core.specs import PlainDict
from drl.envs.env_config import find_spec
from drl.envs.env_names import find_wrapper
from drl.runs import stages
from drl.runs.building import build_trainer, open_envs, start_engine
from drl.runs.job_pool import POLL_SECONDS, JobPool, Slot, Transport
from drl.runs.launch import remote_boards
from drl.runs.session import evaluate_in_run
from drl.settings.experiment import Experiment, RunConfig
from drl.tracking.guarded import Ending, Guarded, guard
from drl.tracking.jobs import JobTable

WORK = ("drl.search.search_worker", "work")
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
        experiment, outcome = Experiment.from_flat(job.settings, f"trial {job.number}"), Outcome("failed")
        folder = Path(experiment.run.results_dir)
        boards = [guard(board) for board in remote_boards(experiment, folder, f"trial {job.number}")]
        try:
            outcome = _trained(job, experiment, boards, report, stop)
        finally:
            score = None if outcome.score is None else {"mean_return": outcome.score}
            for board in boards:
                board.finish(Ending(folder, "finished" if outcome.state == "complete" else outcome.state, score))
        return outcome
    except (Exception, SystemExit) as error:
        return Outcome("failed", error=f"{type(error).__name__}: {error}")


def _trained(
    job: Job, experiment: Experiment, boards: list[Guarded], report: Report, stop: Callable[[], bool]
) -> Outcome:
    run, score, reported = experiment.run, None, 0
    start_engine(experiment)
    import torch

    with open_envs(experiment) as envs:
        torch.set_num_threads(run.threads or 1)
        trainer = build_trainer(experiment, envs)
        for log in stages.stop_at(
            trainer(), minutes=run.max_minutes, mean_return=run.stop_at_return, window=run.window
        ):
            used = log.episodes if run.num_episodes else log.env_steps
            fraction, score = min(used * job.reports // run.budget, job.reports), None
            if fraction > reported:
                log.evaluation = _evaluate(run, trainer.agent)
                reported, score = fraction, log.evaluation["mean_return"]
            for board in boards:
                board.write(log)
            if stop():
                return Outcome("stopped")
            if score is None:
                continue
            if not math.isfinite(score):
                break
            if report(job, fraction, score) and fraction < job.reports:
                return Outcome("pruned", score)
        if score is None:  # ended early, by max_minutes or stop_at_return
            score = _evaluate(run, trainer.agent)["mean_return"]
    if not math.isfinite(score):
        return Outcome("failed", error=f"the mean return is {score}")
    return Outcome("complete", score)


def _evaluate(run: RunConfig, agent: Agent) -> dict[str, float]:
    with np.errstate(invalid="ignore"):  # a trial with infinite returns fails
        return evaluate_in_run(run, agent).summary()


class TrialPool(JobPool[Job, Outcome]):
    """Runs jobs in worker processes, `size` at a time; size 0: one after another in this process. Workers find
    environments only by their ids (`module:Id` for your own). On a cluster, whose jobs `table` shows, a worker gets a
    job when its node is found, and a job that is lost with its node begins again elsewhere: same settings, same seed.
    """

    keeps_processes = True

    def __init__(
        self,
        transport: Transport,
        size: int,
        silence: float = math.inf,
        table: JobTable | None = None,
        needs: str = "",  # what a node must have free for a worker
    ):
        super().__init__(transport, size, late=table is not None, silence=silence)
        self.table: JobTable | None = table
        self.needs: str = needs
        self.deaths: int = 0  # of workers in a row, without a finished job in between
        self.reported: dict[str, int] = {}  # job → the last fraction that was reported
        self.report: Report = lambda *_: False

    def check(self, settings: PlainDict) -> str:
        """Ask the first worker whether it finds what these settings name. If it does not, a pool of one works in this
        process, and the answer says why; a larger one raises, and one on a cluster."""
        if self.size == 0:
            return ""
        why = "it did not start"
        if self.late:
            why = f"no node had {self.needs} free for {START_SECONDS:g} seconds"
        process = self.start(None)
        process.send(settings)
        until = time.monotonic() + START_SECONDS
        while not self.transport.wait([process], POLL_SECONDS) and time.monotonic() < until:
            pass
        if process.inbox:
            why = str(process.inbox.popleft())
        if not why:
            self.idle.append(process)
            return ""
        process.kill()
        if self.late:
            raise BadInput(f"the nodes cannot run this: {why}; your environment must be installed there (module:Id)")
        if self.size > 1:
            raise BadInput(
                f"worker processes cannot run this: {why}; give your environment as module:Id, or --n-jobs 0"
            )
        self.size = 0
        return why

    def run(
        self, next_job: Callable[[], Job | None], report: Report, stop: Callable[[], bool]
    ) -> Iterator[tuple[Job, Outcome]]:
        """Yield jobs and their outcomes as they end, until `next_job` returns None or `stop` returns True."""
        self.report = report
        if self.size > 0:
            yield from self.answers(next_job, stop)
            return
        while not stop() and (job := next_job()) is not None:
            yield job, run_job(job, report, stop)

    def look(self) -> None:
        if self.table is not None:
            self.table.tick()

    def begin(self, slot: Slot[Job]) -> None:
        super().begin(slot)
        if self.table is not None:
            self.table.note(_name(slot.job), node=slot.process.ready.node, status="running")

    def hear(self, slot: Slot[Job], message: "Outcome | tuple[int, float] | None") -> Outcome | None:
        if isinstance(message, Outcome):
            self.deaths = 0
            return message
        if message is not None:  # None: a sign of life
            (fraction, score), name, prune = message, _name(slot.job), False
            if self.table is not None:
                self.table.note(name, score=score, share=fraction / slot.job.reports)
            if fraction > self.reported.get(name, 0):  # not by a job that began again
                self.reported[name], prune = fraction, self.report(slot.job, fraction, score)
            slot.process.send(prune)
        return None

    def lose(self, slot: Slot[Job]) -> Outcome | None:
        self.deaths += 1
        if slot.process.over is None:
            if self.deaths > self.size + 3:
                raise EnvFailed(f"{self.deaths} workers were lost in a row; the last one: {slot.process.lost}")
            if self.table is not None:
                self.table.say(f"{_name(slot.job)}: {slot.process.lost}; it begins again")
                self.table.remove(_name(slot.job))
            return None
        code = slot.process.over.exit_code
        if self.deaths > self.size + 3:
            raise EnvFailed(f"{self.deaths} workers died in a row, the last with exit code {code}")
        return Outcome("lost", error=f"its process died with exit code {code}")

    def ended(self, slot: Slot[Job]) -> None:
        self.reported.pop(_name(slot.job), None)
        if self.table is not None:
            self.table.remove(_name(slot.job))

    def hang(self, slot: Slot[Job]) -> Outcome:
        self.ended(slot)
        return Outcome("failed", error=f"no sign of life for {self.silence / 60:g} minutes (--trial-timeout)")


def _name(job: Job) -> str:
    return f"trial {job.number}, seed {job.settings['seed']}"


def work(pipe: Connection) -> None:
    """Body of a worker process: receive settings to look at, then jobs, and send scores, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    last_sign = time.monotonic()

    def report(_: Job, fraction: int, score: float) -> bool:
        pipe.send((fraction, score))
        return bool(pipe.recv())

    def stop() -> bool:
        nonlocal last_sign
        if time.monotonic() - last_sign >= SIGN_SECONDS:
            pipe.send(None)
            last_sign = time.monotonic()
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
    """Why this process cannot run these settings; "" if it can."""
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
