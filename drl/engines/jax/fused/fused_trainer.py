"""The trainer of a fused program. It gives one log per learning step, as `Trainer` does, but computes many learning
steps, a chunk, in one call.

A run can be inspected, saved and stopped only between two chunks. While the logs of a chunk are given, the agent is
already at the chunk's end. So chunks end at the `sync_points`: when an evaluation or a checkpoint is due, log and agent
are in sync.
"""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple, NoReturn

import numpy as np

from drl.core.contracts import Agent, EnvChange, ReachableEnvs
from drl.core.errors import BadInput
from drl.core.log import REPORTED, SUCCESS, TERMINATED, Episode, Log
from drl.core.specs import AnyArray
from drl.core.state_files import StateDict
from drl.engines.jax.fused.fused_learner import FusedLearner
from drl.engines.jax.fused.step_report import Report
from drl.envs.episode_stats import judge_success
from drl.trainer.trainer import TrainerConfig, TrainingStats
from drl.trainer.trainer_loop import Stopped, TrainerLoop


class SeedBatch:
    """Runs of several seeds in one program. Each has its own trainer; all advance together."""

    def __init__(
        self,
        learner: FusedLearner,
        agents: Sequence[Agent],
        config: TrainerConfig,
        sync_points: Sequence[float] = (),  # periods in environment steps
        reward_threshold: float | None = None,  # the return of a success, if the environment does not report success
    ):
        self.learner: FusedLearner = learner
        self.reward_threshold: float | None = reward_threshold
        self.sync_points: list[float] = [every for every in sync_points if every]
        self.computed: list[int] = [0] * len(agents)  # environment steps that the program has taken, per seed
        self.trainers: list[FusedTrainer] = [
            FusedTrainer(self, number, agent, config) for number, agent in enumerate(agents)
        ]

    def advance(self) -> None:
        """Compute one chunk and queue its reports at the trainers."""
        count = self._length()
        started = time.perf_counter()
        reports = self.learner.advance(count)
        seconds = (time.perf_counter() - started) / count
        for number, (trainer, report) in enumerate(zip(self.trainers, reports, strict=True)):
            self.computed[number] += int(report.steps.sum())
            trainer.receive(report, seconds)

    def _length(self) -> int:
        """Learning steps up to the next sync point: the step that passes it is the last of its chunk."""
        ahead = [every - done % every for every in self.sync_points for done in self.computed]
        fitting = min((steps // self.learner.most_steps for steps in ahead), default=self.learner.preferred)
        return int(max(1, min(self.learner.preferred, fitting)))


class Taken(NamedTuple):
    """One learning step that is computed but not yet logged."""

    learned: dict[str, float]  # {}: in the warm-up, nothing was learned
    steps: int
    reward: float  # sum over the step
    episodes: list[Episode]
    seconds: float


def in_a_program(what: str) -> BadInput:
    """The error to raise for a part of a run that is compiled."""
    return BadInput(f"{what} cannot be reached: this run is a compiled program; use --vectorization sync")


class FusedTrainer(TrainerLoop):
    """Yields one Log per learning step, as `Trainer` does. Iterating resumes; it never resets."""

    vectorization = "jax"

    def __init__(self, seed_batch: SeedBatch, number: int, agent: Agent, config: TrainerConfig):
        self.seed_batch: SeedBatch = seed_batch
        self.number: int = number
        self.agent: Agent = agent
        self.config: TrainerConfig = config
        self.stats: TrainingStats = TrainingStats(config.window, config.total_timesteps, config.num_episodes)
        self.opened: ExitStack[bool | None] = ExitStack()
        self.pending: deque[Taken] = deque()
        self._left: StateDict | None = None  # its last state, if it was left before the end

    def set_budget(self, total_timesteps: int) -> None:
        raise BadInput("the budget is compiled into this program; give total_timesteps to make_trainer, or drl.train")

    @property
    def envs(self) -> ReachableEnvs:
        """There is no way into a compiled program."""
        raise in_a_program("envs")

    @property
    def changes(self) -> list[EnvChange]:
        """None: see `envs`."""
        return []

    @property
    def algorithm(self) -> NoReturn:
        """It is a part of the compiled program."""
        raise in_a_program("algorithm")

    @property
    def buffer(self) -> NoReturn:
        """It is a part of the compiled program."""
        raise in_a_program("buffer")

    def leave(self) -> None:
        if len(self.seed_batch.trainers) > 1:
            self._left = self.state_dict()

    def step(self) -> Log:
        learned: dict[str, float] = {}
        seconds = 0.0
        while not learned and not self.over:
            if not self.pending:
                if self.should_stop():
                    raise Stopped
                self.seed_batch.advance()
            taken = self.pending.popleft()
            learned, seconds = dict(taken.learned), seconds + taken.seconds
            self.stats.add(taken.steps, taken.reward, taken.episodes)
        exploration = self.agent.exploration
        settings = {} if exploration is None else exploration.at(self.stats.env_steps)
        return self.stats.log(learned, seconds, settings)

    @property
    def in_sync(self) -> bool:
        return not self.pending

    def receive(self, report: Report, seconds: float) -> None:
        """Queue the learning steps of a chunk, each of which took `seconds`, and update the agent."""
        if self._left is not None:  # the other seeds continue without it
            return
        episodes: list[list[Episode]] = [[] for _ in report.steps]
        step, _, env = place = np.nonzero(report.ends.how)
        columns: tuple[AnyArray, ...] = (step, *(column[place] for column in report.ends), env)
        for number, how, total, length, where in zip(*(column.tolist() for column in columns), strict=True):
            reported = bool(how & SUCCESS) if how & REPORTED else None
            success = judge_success(reported, total, self.seed_batch.reward_threshold)
            episodes[number].append(Episode(total, length, bool(how & TERMINATED), success, where))
        learn, counts = ({name: values.tolist() for name, values in part.items()} for part in report[:2])
        numbers = zip(report.steps.tolist(), report.reward.tolist(), strict=True)
        for i, (steps, reward) in enumerate(numbers):
            if not steps:  # after the end of the budget, while other seeds continue
                continue
            learned = {name: values[i] / counts[name][i] for name, values in learn.items() if counts[name][i]}
            self.pending.append(Taken(learned, steps, reward, episodes[i], seconds))
        self._refresh()

    def _refresh(self) -> None:
        learner = self.seed_batch.learner
        self.agent.model_state.params = learner.params(self.number)  # type: ignore[attr-defined]
        running_stats = learner.running_stats(self.number)
        if running_stats is not None and self.agent.normalizer is not None:
            state = {"clip": self.agent.normalizer.clip, "stats": {"": running_stats._asdict()}}
            self.agent.normalizer.load_state_dict(state)

    def state_dict(self) -> StateDict:
        """The state of this seed."""
        if self._left is not None:
            return self._left
        pending = [taken._asdict() | {"episodes": [e.plain() for e in taken.episodes]} for taken in self.pending]
        return {
            "stats": self.stats.state_dict(),
            "pending": pending,
            "computed": self.seed_batch.computed[self.number],
            "learner": self.seed_batch.learner.state_dict(self.number),
            "agent": self.agent.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        self.stats.load_state_dict(state["stats"])
        self._left = None
        self.pending.clear()
        for taken in state["pending"]:
            episodes = [Episode.from_plain(episode) for episode in taken["episodes"]]
            self.pending.append(Taken(**taken | {"episodes": episodes}))
        self.seed_batch.computed[self.number] = int(state["computed"])
        self.seed_batch.learner.load_state_dict(self.number, state["learner"])
        self.agent.load_state_dict(state["agent"])
