"""Stages take logs and yield logs. Chain them around a trainer; the body of your `for` loop is the last stage.

>>> from drl.core.log import Log
>>> logs = (Log(env_steps=100 * i, episodes=i, learning_steps=i) for i in range(1, 100))
>>> [log.env_steps for log in stop_at(logs, env_steps=300)]
[100, 200, 300]
"""

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec

from drl.core.contracts import Agent, Tracker
from drl.core.log import Log
from drl.core.state_files import StateDict

P = ParamSpec("P")
SHARE = 0.1  # default limit of evaluation steps, as a fraction of training steps


def stop_at(
    logs: Iterable[Log],
    *,
    env_steps: int | None = None,
    episodes: int | None = None,
    learning_steps: int | None = None,
    minutes: float | None = None,
    mean_return: float | None = None,
    window: int = 100,
    when: Callable[[], bool] | None = None,
) -> Iterator[Log]:
    """Stop after the first log that reaches any limit. `mean_return` is the mean over `window` episodes. `when` is
    called after every log; True stops training."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    for log in logs:
        yield log
        counts = ((log.env_steps, env_steps), (log.episodes, episodes), (log.learning_steps, learning_steps))
        if any(limit is not None and count >= limit for count, limit in counts):
            return
        if is_past(end) or (when is not None and when()) or has_return(log, mean_return, window):
            return


def is_past(end: float | None) -> bool:
    """Whether this time of `time.monotonic` is over."""
    return end is not None and time.monotonic() >= end


def has_return(log: Log, mean_return: float | None, window: int) -> bool:
    """Whether the mean return over a full window of episodes is at least `mean_return`."""
    full = log.recent.get("window", 0) >= window
    return mean_return is not None and full and log.recent["mean_ep_return"] >= mean_return


def has_passed(log: Log, every: int) -> bool:
    """Whether this learning step passed a multiple of `every` environment steps."""
    before = log.env_steps - int(log.rollout["rollout_len"])
    return log.env_steps // every > before // every


class EvaluationSteps:
    """Environment steps of a run's evaluations; by default at most a tenth of the training steps.

    It counts steps, not seconds, so that a repeated or resumed run evaluates at the same steps.
    """

    def __init__(self, episodes: int):
        self.episodes = episodes  # of one evaluation
        self.total: int = 0  # of all evaluations
        self.last: int = 0  # of the last one

    def allow(self, log: Log) -> bool:
        """Whether one more evaluation fits, judged by the length of the last one or of training episodes."""
        if "mean_ep_len" not in log.recent:  # no episode has ended, so its length is unknown
            return False
        expected = max(self.last, self.episodes * log.recent["mean_ep_len"])
        return self.total + expected <= SHARE * log.env_steps

    def add(self, env_steps: int) -> None:
        self.total, self.last = self.total + env_steps, env_steps

    def state_dict(self) -> StateDict:
        return {"total": self.total, "last": self.last}

    def load_state_dict(self, state: StateDict) -> None:
        self.total, self.last = int(state["total"]), int(state["last"])


def evaluate_every(
    logs: Iterable[Log],
    every: int,
    evaluate: Callable[[], dict[str, float]],
    allow: Callable[[Log], bool] = lambda log: True,
) -> Iterator[Log]:
    """Evaluate every `every` environment steps, if `allow` permits it, and add the result of `evaluate()` to the log. A
    log of a resumed run that was evaluated before is skipped."""
    for log in logs:
        if has_passed(log, every) and not log.evaluation and allow(log):
            log.evaluation = evaluate()
        yield log


def checkpoint_every(
    logs: Iterable[Log], every: int, save: Callable[[Log], None], minutes: float | None = None
) -> Iterator[Log]:
    """Call `save(log)` every `every` environment steps, and when the last save was `minutes` ago."""
    last = time.monotonic()
    for log in logs:
        if has_passed(log, every) or (minutes is not None and time.monotonic() - last >= 60 * minutes):
            save(log)
            last = time.monotonic()
        yield log


class BestModel:
    """Best returns so far, for `keep_models`."""

    def __init__(self) -> None:
        self.mean_return: float = -math.inf  # the largest one that was saved
        self.full: bool = False  # whether there were enough episodes for it to count
        self.evaluated: float = -math.inf  # the largest mean return of an evaluation whose agent was saved

    def state_dict(self) -> StateDict:
        numbers = {"mean_return": self.mean_return, "evaluated": self.evaluated}
        return {name: None if math.isinf(value) else value for name, value in numbers.items()} | {"full": self.full}

    def load_state_dict(self, state: StateDict) -> None:
        stored = (state["mean_return"], state["evaluated"])
        self.mean_return, self.evaluated = (-math.inf if value is None else float(value) for value in stored)
        self.full = bool(state["full"])


@dataclass
class ModelKeeper:
    """Saves the models of a run: see `keep_models`, which makes one."""

    agent: Agent
    folder: Path | Callable[[], Path]  # a function for a folder that moves
    budget: int
    num_checkpoints: int
    window: int = 100
    best_after: int = 0
    in_episodes: bool = False
    in_sync: Callable[[], bool] = lambda: True
    best: BestModel = field(default_factory=BestModel)  # the state for resuming
    attempt: Callable[[Callable[[], None]], object] = lambda save: save()  # called with the function that saves
    notes: dict[str, object] = field(default_factory=dict)  # for the agent's card

    @property
    def models(self) -> Path:
        """The folder of the models."""
        return self.folder() if callable(self.folder) else self.folder

    def keep(self, log: Log) -> None:
        """Save what this log makes due."""
        best, notes = self.best, self.notes | {"env_steps": log.env_steps}
        if not best.full and log.recent.get("window", 0) >= self.window:
            best.mean_return, best.full = -math.inf, True
        mean_return = log.recent.get("mean_ep_return", -math.inf)
        if mean_return > best.mean_return and log.episodes > self.best_after and self.in_sync():

            def save_best() -> None:
                self.agent.save_policy_net(self.models / "best_return_pi_ckpt.pth")
                self.agent.save(self.models / "best_agent", **notes, mean_return=mean_return)

            self.attempt(save_best)
            best.mean_return = mean_return
        if log.evaluation and self.in_sync():
            self.keep_evaluated(log.evaluation, log.env_steps)
        now = log.episodes if self.in_episodes else log.env_steps
        before = now - (len(log.finished) if self.in_episodes else int(log.rollout["rollout_len"]))
        for number in range(1, self.num_checkpoints + 1):
            if before < number * self.budget / self.num_checkpoints <= now:
                file = f"pi_ckpt{number}.pth"
                self.attempt(lambda file=file: self.agent.save_policy_net(self.models / file))  # type: ignore[misc]

    def keep_evaluated(self, evaluation: dict[str, float], env_steps: int) -> None:
        """Save the agent as `best_evaluated_agent/` if no earlier evaluation was as good."""
        mean_return = evaluation["mean_return"]
        if mean_return > self.best.evaluated:
            notes = self.notes | {"env_steps": env_steps, "mean_return": mean_return, "evaluation": evaluation}
            self.attempt(lambda: self.agent.save(self.models / "best_evaluated_agent", **notes))
            self.best.evaluated = mean_return


def keep_models(
    logs: Iterable[Log],
    agent: Agent,
    folder: Path | Callable[[], Path],
    budget: int,
    num_checkpoints: int,
    window: int = 100,
    best_after: int = 0,
    in_episodes: bool = False,
    in_sync: Callable[[], bool] = lambda: True,
    best: BestModel | None = None,
    **notes: object,
) -> Iterator[Log]:
    """Save `pi_ckpt1.pth` … at equal fractions of the budget. Also save the policy with the best mean return over
    `window` episodes, as a state dict (`best_return_pi_ckpt.pth`) and as an agent (`best_agent/`), and the agent with
    the best evaluation as `best_evaluated_agent/`.

    The best policy is provisional until `window` episodes have finished, because few episodes are noisy. None is saved
    in the first `best_after` episodes, or while the agent is ahead of its log (not `in_sync`). `notes` go on the
    agent's card. `best` holds the state for resuming. `folder` may be a function, for a folder that moves.
    """
    keeper = ModelKeeper(
        agent, folder, budget, num_checkpoints, window, best_after, in_episodes, in_sync, best or BestModel(),
        notes=notes,
    )  # fmt: skip
    for log in logs:
        keeper.keep(log)
        yield log


def track(logs: Iterable[Log], trackers: Iterable[Tracker]) -> Iterator[Log]:
    """Write every log to every tracker."""
    trackers = list(trackers)
    for log in logs:
        for tracker in trackers:
            tracker.write(log)
        yield log


def tracked(*trackers: Tracker) -> Callable[[Callable[P, Iterable[Log]]], Callable[P, Iterator[Log]]]:
    """`track` as a decorator for a trainer or a function that yields logs. Closes the trackers when the logs end.

    >>> from drl.tracking.console import QuietConsole
    >>> @tracked(QuietConsole())
    ... def training():
    ...     yield Log(env_steps=8, episodes=1, learning_steps=1, time={"time_elapsed": 0.5})
    >>> for log in training():
    ...     print(log)
    step 8 · 1 episode
    8 steps · 1 episode · 0.50 s
    """

    def decorate(make_logs: Callable[P, Iterable[Log]]) -> Callable[P, Iterator[Log]]:
        @functools.wraps(make_logs, updated=())
        def logs(*arguments: P.args, **options: P.kwargs) -> Iterator[Log]:
            yield from track(make_logs(*arguments, **options), trackers)
            for tracker in trackers:
                tracker.close()

        return logs

    return decorate


def progress(logs: Iterable[Log], env_steps: int) -> Iterator[Log]:
    """Show a progress bar in your own scripts."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("training", total=env_steps)
        for log in logs:
            mean_return = log.recent.get("mean_ep_return")
            text = "training" if mean_return is None else f"return {mean_return:8.2f}"
            bar.update(task, completed=min(log.env_steps, env_steps), description=text)
            yield log
