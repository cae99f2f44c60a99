"""The interface of all trainers: a generator of logs with a budget."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from drl.core.contracts import Agent
from drl.core.errors import BadInput
from drl.core.log import Log
from drl.core.state_files import StateDict

if TYPE_CHECKING:
    from drl.trainer.trainer import TrainingStats


class Stopped(Exception):
    """A learning step was interrupted because `should_stop` returned True. Nothing is lost."""


class TrainerLoop(ABC):
    """Base class of all trainers: a generator of logs with a budget. Without a budget it never ends."""

    agent: Agent
    stats: "TrainingStats"
    opened: ExitStack  # what `close` closes
    notes: Mapping[str, object] = MappingProxyType({})  # how it was built, for the record of its run
    inexact: str | None = None  # reason why a restored trainer does not continue exactly; None: it does
    should_stop: Callable[[], bool] = staticmethod(lambda: False)  # called often; True stops training soon
    in_step: bool = False  # whether a learning step is running or was interrupted by an exception

    @property
    def may_be_left(self) -> bool:
        """Whether it is safe to interrupt now: nothing is lost, or only the very first learning step."""
        return self.stats.learning_steps == 0

    @property
    def whole(self) -> bool:
        """Whether the state can be saved, including after an exception within a step."""
        return not self.in_step

    def __call__(self, total_timesteps: int | None = None) -> Iterator[Log]:
        """Yield logs until the budget is used up. `total_timesteps` sets the budget in total environment steps."""
        if total_timesteps is not None:
            self.set_budget(total_timesteps)
        return self._logs()

    def set_budget(self, total_timesteps: int) -> None:
        """Set the budget in environment steps, including the steps already taken."""
        if total_timesteps < 1:
            raise BadInput(f"total_timesteps is {total_timesteps}; expected at least 1")
        self.stats.total_timesteps, self.stats.num_episodes = total_timesteps, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the environments that `drl.make_trainer` opened. Environments that you passed in stay open."""
        self.opened.close()

    def _logs(self) -> Iterator[Log]:
        while not self.over:
            self.in_step = True
            try:
                log = self.step()
            except Stopped:
                self.in_step = False
                return
            self.in_step = False
            yield log

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        return self.stats.progress >= 1.0

    @abstractmethod
    def step(self) -> Log:
        """Run one learning step. Raises `Stopped` if `should_stop` returns True; the next call continues there."""

    @abstractmethod
    def state_dict(self) -> StateDict:
        """Complete training state of the trainer and its parts, as plain data."""

    @abstractmethod
    def load_state_dict(self, state: StateDict) -> None:
        """Restore such a state; iterating continues there."""

    def leave(self) -> None:  # noqa: B027
        """Freeze this trainer's state; no more logs will be read."""

    @property
    def in_sync(self) -> bool:
        """Whether the agent is at the step of the last log, not ahead of it."""
        return True

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        return self.stats.env_steps

    @property
    def episodes(self) -> int:
        """Finished episodes so far."""
        return self.stats.episodes

    @property
    def learning_steps(self) -> int:
        """Learning steps so far."""
        return self.stats.learning_steps
