"""What every trainer is: a generator of logs with a budget."""

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
    """A learning step was left before its end, because it should stop. Nothing is lost."""


class TrainerLoop(ABC):
    """A generator of logs with a budget: what every trainer is. Without a budget it never ends."""

    agent: Agent
    stats: "TrainingStats"
    opened: ExitStack  # what `close` closes
    notes: Mapping[str, object] = MappingProxyType({})  # how it was built, for the record of its run
    inexact: str | None = None  # why it does not continue exactly where its stored state was; None: it does
    should_stop: Callable[[], bool] = staticmethod(lambda: False)  # asked often; True ends the logs soon
    in_step: bool = False  # whether a learning step is being computed, or an exception has broken it off

    @property
    def may_be_left(self) -> bool:
        """Whether an exception may break off what runs now: nothing is lost by it, or only the very first step."""
        return self.stats.learning_steps == 0

    @property
    def whole(self) -> bool:
        """Whether the state can be saved, also after an exception in the middle of a step."""
        return not self.in_step

    def __call__(self, total_timesteps: int | None = None) -> Iterator[Log]:
        """The logs until the budget is used up. `total_timesteps` sets the budget: environment steps in all."""
        if total_timesteps is not None:
            self.set_budget(total_timesteps)
        return self._logs()

    def set_budget(self, total_timesteps: int) -> None:
        """Set the budget in environment steps, those already taken included."""
        if total_timesteps < 1:
            raise BadInput(f"total_timesteps is {total_timesteps}; expected at least 1")
        self.stats.total_timesteps, self.stats.num_episodes = total_timesteps, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what was opened for this trainer: the environments of `drl.make_trainer`. What you made is yours."""
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
        """One learning step. Raises `Stopped` if `should_stop` says so; the next call continues there."""

    @abstractmethod
    def state_dict(self) -> StateDict:
        """All that changes in training, of the trainer and of its parts, as plain data."""

    @abstractmethod
    def load_state_dict(self, state: StateDict) -> None:
        """Go back to such a state: iterating continues there."""

    def leave(self) -> None:  # noqa: B027
        """No further log will be taken: the state stays as it is, whatever runs together with this trainer."""

    @property
    def in_sync(self) -> bool:
        """Whether the agent is as the last log left it, not already ahead."""
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
