"""Many runs, each in a process of its own: on this machine, or on the nodes of a cluster."""

import contextlib
import copy
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]

from drl.agents.load_agent import load_agent
from drl.algorithms import ALGORITHMS, find_algorithm
from drl.core.agent_files import open_agent
from drl.core.errors import DrlError, Interrupted, advice_of
from drl.core.log import Log
from drl.core.network_parts import ACTIVATIONS, INITIALIZATIONS, OPTIMIZERS, give_objects, given_objects, import_plugins
from drl.core.processes import LocalProcesses
from drl.core.schedules import FUNCTIONS
from drl.core.specs import PlainDict
from drl.envs.env_names import find_object, split_wrapper
from drl.runs.extras import NOTHING, Extras, Stage
from drl.runs.folder.finished import Finished
from drl.runs.folder.run_folder import is_in_use
from drl.runs.job_pool import JobPool, Slot, Transport
from drl.runs.stop_signals import StopSignals
from drl.settings.experiment import Experiment, RunConfig
from drl.settings.scaling import ScalingConfig
from drl.tracking.jobs import JobBar, JobTable

# Tables of names that may hold functions of the user.
TABLES: tuple[dict[str, Any], ...] = (ACTIVATIONS, INITIALIZATIONS, FUNCTIONS, OPTIMIZERS)
WORK = ("drl.runs.many_runs", "work")
PROGRESS_SECONDS = 1.0  # between two messages
LOCK_SECONDS = 60.0  # limit of the wait for the end of a process on a lost node
After = Callable[[Finished], PlainDict]  # called in the process of a run when it is over, such as an evaluation


class RunAnswer(NamedTuple):
    """Result of a run in another process: its folder and how it ended, or why there is none."""

    folder: Path | None = None
    status: str = "failed"
    evaluation: dict[str, float] | None = None
    error: str = ""
    exit_code: int = 1
    result: PlainDict | None = None  # of `after`

    @classmethod
    def of(cls, error: BaseException) -> "RunAnswer":
        """The answer of a run that ended with an error."""
        if isinstance(error, Interrupted):
            return cls(error="stopped before it began", exit_code=130)
        code = error.exit_code if isinstance(error, DrlError) else 1
        lines = [f"{type(error).__name__}: {error}", *advice_of(error).splitlines()]
        return cls(error="; ".join(lines), exit_code=code)


class PackedRun(NamedTuple):
    """A run that can be sent to another process."""

    plugins: tuple[str, ...]  # modules to import before reading the content
    content: bytes

    def unpack(self) -> tuple[Experiment, Extras]:
        """Read the run in the other process."""
        import_plugins(self.plugins)
        record, content = cloudpickle.loads(self.content)
        ALGORITHMS.setdefault(record.name, record)
        experiment, extras, objects, functions = cloudpickle.loads(content)
        give_objects(objects)
        for table, own in zip(TABLES, functions, strict=True):
            table.update(own)
        return experiment, extras


def pack(experiment: Experiment, extras: Extras) -> PackedRun:
    """A run with the user's functions and classes, as bytes."""
    run, settings = experiment.run, repr(experiment)
    # Others may be of modules that the other process cannot import.
    objects: dict[str, Any] = {name: each for name, each in given_objects().items() if name in settings}
    functions = [{name: part for name, part in table.items() if name in objects} for table in TABLES]
    # The files of the environment and the wrappers may not be on the other machine.
    names = [run.env, *(split_wrapper(wrapper)[0] for wrapper in run.wrappers)]
    objects |= {name: find_object(name) for name in names if name.rpartition(":")[0].endswith(".py")}
    content = cloudpickle.dumps((experiment, extras, objects, functions))
    record = find_algorithm(experiment.algorithm)  # may be the user's own
    return PackedRun(run.plugins, cloudpickle.dumps((record, content)))


class RunOrder(NamedTuple):
    """The first message to the process."""

    packed: PackedRun
    place: str | None  # where the run's folder is made; None: on this machine, as its settings say
    folder: str | None  # of a run that goes on
    after: bytes  # an `After`, or None, packed
    command: list[str]  # of the driver, for `run.json`


class RunFailed(DrlError):
    """A run in another process failed; the exit code is that of its error."""

    def __init__(self, message: str, answer: RunAnswer):
        super().__init__(message)
        self.exit_code: int = answer.exit_code


def progress_of(scaling: ScalingConfig, quiet: bool) -> JobBar:
    """The progress display of many runs."""
    return JobBar(quiet) if scaling.cluster is None else JobTable(quiet)


class RunJob(NamedTuple):
    """A run for another process."""

    name: str  # in the table of all
    experiment: Experiment
    extras: Extras = NOTHING
    after: After | None = None


def train_many(
    runs: Mapping[str, Experiment],
    scaling: ScalingConfig,
    bar: JobBar,
    workers: int | None = None,
    extras: Extras = NOTHING,
) -> Generator[tuple[str, RunAnswer]]:
    """Names and answers, as runs end; `workers` at a time. A signal is passed on: every run is saved, and no other is
    started. Raises `Interrupted` if it came before any had ended."""
    if scaling.cluster is None:
        jobs = [RunJob(name, run, extras) for name, run in runs.items()]
        size = workers or os.cpu_count() or 1
        with StopSignals() as signals, contextlib.closing(RunPool(LocalProcesses(WORK), size, signals)) as pool:
            for job, answer in pool.train(jobs):
                yield job.name, answer
        return
    from drl.runs.cluster_runs import train_on_cluster

    assert isinstance(bar, JobTable)
    # As if they were started without a cluster, so that they can be resumed without one.
    jobs = [RunJob(name, replace(run, scaling=ScalingConfig()), extras) for name, run in runs.items()]
    for job, answer in train_on_cluster(jobs, scaling, bar, workers):
        yield job.name, answer


class RunPool(JobPool[RunJob, RunAnswer]):
    """Runs on this machine, each in a process of its own."""

    def __init__(self, transport: Transport, size: int, signals: StopSignals):
        super().__init__(transport, size)
        self.signals: StopSignals = signals
        self.passed_on: int = 0  # signals

    def train(self, jobs: Sequence[RunJob]) -> Iterator[tuple[RunJob, RunAnswer]]:
        """Jobs and answers, as runs end."""
        waiting, ended = list(reversed(jobs)), 0
        with self.signals.held():
            for job, answer in self.answers(lambda: waiting.pop() if waiting and not self.passed_on else None):
                ended += 1
                yield job, answer
        if self.signals.seen is not None and not ended:
            raise Interrupted(self.signals.seen)

    def look(self) -> None:
        """Pass signals on. A run saves itself after the first; a second one interrupts everything else."""
        if self.signals.count > self.passed_on and self.signals.seen is not None:
            self.passed_on = self.signals.count
            self.pass_on(self.signals.seen)

    def begin(self, slot: Slot[RunJob]) -> None:
        self.send(slot)

    def send(self, slot: Slot[RunJob], place: str | None = None, folder: str | None = None) -> None:
        """Send the run to its process. `place` and `folder`: see `RunOrder`."""
        _, experiment, extras, after = slot.job
        slot.process.send(RunOrder(pack(experiment, extras), place, folder, cloudpickle.dumps(after), sys.argv))

    def hear(self, slot: Slot[RunJob], message: object) -> RunAnswer | None:
        return message if isinstance(message, RunAnswer) else None

    def lose(self, slot: Slot[RunJob]) -> RunAnswer | None:
        code = None if slot.process.over is None else slot.process.over.exit_code
        hint = "; a script that starts processes needs `if __name__ == '__main__':`" if code == 1 else ""
        return RunAnswer(error=f"its process ended with exit code {code}{hint}")

    def close(self) -> None:
        for slot in self.busy:  # only after an error of our own
            slot.process.kill()
        super().close()


def train_in_processes(experiment: Experiment, extras: Extras, console: bool) -> list[Finished]:
    """Train every seed, `workers` at a time; the runs in the order of their seeds. A signal is passed on: every run is
    saved, and no other is started. If runs fail the others go on, and the first error is raised at the end."""
    config, answers, quiet = experiment.run, dict[str, RunAnswer](), experiment.run.quiet or not console
    seeds = config.all_seeds
    if config.wandb_project is not None or config.mlflow_experiment is not None:
        group = f"{experiment.algorithm}_{config.env}_seeds_{'_'.join(map(str, seeds))}"[:100]
        config = replace(config, group=config.group or group)
    runs = {f"seed {seed}": replace(experiment, run=config.with_seed(seed)) for seed in seeds}
    with (
        progress_of(experiment.scaling, quiet) as bar,
        contextlib.closing(train_many(runs, experiment.scaling, bar, config.workers, extras)) as ended,
    ):
        bar.begin(f"{len(seeds)} seeds" if len(seeds) > 1 else "1 run", len(seeds), 0)
        for name, answer in ended:
            answers[name] = answer
            score = f", mean return {answer.evaluation['mean_return']:.2f}" if answer.evaluation else ""
            bar.advance(f"{name}: {answer.error or answer.status}{score}")
    finished = []
    for name, answer in ((name, answers[name]) for name in runs if name in answers):
        if answer.folder is None:
            raise RunFailed(f"{name}: {answer.error}", answer)
        agent = _agent_of(answer.folder, extras.model)
        finished.append(Finished(answer.folder, agent, None, answer.status, answer.evaluation))
    return finished


def _agent_of(folder: Path, model: Any) -> Any:
    """The agent of a run. A user's own module is filled with the weights, so every agent gets its own."""
    is_model = any(hasattr(model, method) for method in ("parameters", "apply")) and not isinstance(model, type)
    if model is not None and not is_model:  # it makes models
        stored = open_agent(folder)
        model = model(stored.obs_spec, stored.action_spec)
    return load_agent(folder, copy.deepcopy(model))


class Progress(NamedTuple):
    """Progress of a run on a node."""

    env_steps: int
    share: float  # of the budget
    score: float | None  # mean return of the last episodes


def work(pipe: Connection) -> None:
    """Body of a process: train one run, or continue it."""
    import drl.runs.launch  # noqa: F401 (slow, while the driver sends the order)

    order: RunOrder = pipe.recv()
    sys.argv, folders = order.command, list[Path]()

    def saved(folder: Path) -> None:
        from drl.cluster.node_process import FolderSaved

        folders.append(folder)
        pipe.send(FolderSaved(str(folder)))
        pipe.recv()  # until the changes in it have been listed

    try:
        finished = _trained(order, pipe, saved)
        after: After | None = cloudpickle.loads(order.after)
        result = None if after is None or finished.status != "finished" else after(finished)
        answer = RunAnswer(finished.folder, finished.status, finished.evaluation, result=result)
    except (Exception, Interrupted) as error:
        answer = RunAnswer.of(error)
    if folders:
        saved(answer.folder or folders[-1])
    pipe.send(answer)


def _trained(order: RunOrder, pipe: Connection, saved: Callable[[Path], None]) -> Finished:
    from drl.runs.launch import continue_run, experiment_of, train

    experiment, extras = order.packed.unpack()
    if order.place is not None:
        stages = (*extras.stages, _progress_sender(pipe, experiment.run))
        extras = replace(extras, stages=stages, place=Path(order.place), saved=saved)
    if order.folder is None:
        return train(experiment, extras, console=False)
    folder, until = Path(order.folder), time.monotonic() + LOCK_SECONDS
    while is_in_use(folder):  # on a shared disk, the process on a lost node may live a moment longer than its node
        if time.monotonic() > until:
            raise DrlError(f"{folder} is still in use by a process on a node that was lost; end it, then drl resume")
        time.sleep(0.2)
    return continue_run(folder, experiment_of(folder, trust=True), extras, console=False)


def _progress_sender(pipe: Connection, config: RunConfig) -> Stage:
    """A stage that sends the driver the progress of the run."""

    def send_progress(logs: Iterator[Log]) -> Iterator[Log]:
        last = 0.0
        for log in logs:
            yield log
            if time.monotonic() - last > PROGRESS_SECONDS:
                last = time.monotonic()
                used = log.episodes if config.num_episodes else log.env_steps
                score = log.recent.get("mean_ep_return")
                pipe.send(Progress(log.env_steps, used / config.budget, None if score is None else float(score)))

    return send_progress
