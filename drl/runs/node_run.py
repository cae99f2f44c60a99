"""One run in a process on a node of a cluster. The driver's side is `cluster_runs.py`."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import cloudpickle  # type: ignore[import-untyped]

from drl.cluster.node_process import FolderSaved
from drl.core.errors import DrlError, Interrupted
from drl.core.log import Log
from drl.core.specs import PlainDict
from drl.runs.extras import Stage
from drl.runs.folder.finished import Finished
from drl.runs.folder.run_folder import is_in_use
from drl.runs.packed_run import Answer, PackedRun
from drl.settings.experiment import RunConfig

PROGRESS_SECONDS = 1.0  # between two messages
LOCK_SECONDS = 60.0  # how long the end of a process on a lost node is waited for

After = Callable[[Finished], PlainDict]  # what a node does when a run is over: an evaluation


class Order(NamedTuple):
    """The first message to the process."""

    packed: PackedRun
    place: str  # where the run's folder is made
    folder: str | None  # of a run that goes on
    after: bytes  # an `After`, or None, packed
    command: list[str]  # of the driver, for `run.json`


class Progress(NamedTuple):
    """How far a run on a node is."""

    env_steps: int
    share: float  # of the budget
    score: float | None  # mean return of the last episodes


def work(pipe: Connection) -> None:
    """Train one run, or continue it."""
    import drl.runs.launch  # noqa: F401 (slow, while the driver sends the order)

    order: Order = pipe.recv()
    sys.argv, folders = order.command, list[Path]()

    def saved(folder: Path) -> None:
        folders.append(folder)
        pipe.send(FolderSaved(str(folder)))
        pipe.recv()  # until what is new in it has been noted

    try:
        finished = _trained(order, pipe, saved)
        after: After | None = cloudpickle.loads(order.after)
        result = None if after is None or finished.status != "finished" else after(finished)
        answer = Answer(finished.folder, finished.status, finished.evaluation, result=result)
    except (Exception, Interrupted) as error:
        answer = Answer.of(error)
    if folders:
        saved(answer.folder or folders[-1])
    pipe.send(answer)


def _trained(order: Order, pipe: Connection, saved: Callable[[Path], None]) -> Finished:
    from drl.runs.launch import continue_run, experiment_of, train

    experiment, extras = order.packed.unpack()
    stages = (*extras.stages, _told(pipe, experiment.run))
    extras = replace(extras, stages=stages, place=Path(order.place), saved=saved)
    if order.folder is None:
        return train(experiment, extras, console=False)
    folder = Path(order.folder)
    _wait_for_lock(folder)
    return continue_run(folder, experiment_of(folder, trust=True), extras, console=False)


def _wait_for_lock(folder: Path) -> None:
    """On a shared disk, the process on a lost node may live a moment longer than its node."""
    until = time.monotonic() + LOCK_SECONDS
    while is_in_use(folder):
        if time.monotonic() > until:
            raise DrlError(f"{folder} is still in use by a process on a node that was lost; end it, then drl resume")
        time.sleep(0.2)


def _told(pipe: Connection, config: RunConfig) -> Stage:
    """A stage that tells the driver how far the run is."""

    def tell(logs: Iterator[Log]) -> Iterator[Log]:
        told = 0.0
        for log in logs:
            yield log
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                used = log.episodes if config.num_episodes else log.env_steps
                score = log.recent.get("mean_ep_return")
                pipe.send(Progress(log.env_steps, used / config.budget, None if score is None else float(score)))

    return tell
