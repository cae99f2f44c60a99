"""Objects of the user's program that take part in a run and that no file can hold."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from drl.core.algorithms import find_algorithm
from drl.core.contracts import Tracker
from drl.core.errors import BadInput
from drl.core.log import Log
from drl.experiment.config import Experiment
from drl.experiment.run_folder import Run

MakeTrackers = Callable[[Run], Iterable[Tracker]] | Iterable[Tracker]
Stage = Callable[[Iterator[Log]], Iterator[Log]]
Saved = Callable[[Path], object]


def _nothing(folder: Path) -> None: ...


@dataclass(frozen=True)
class Extras:
    """Objects that take part in a run."""

    model: object = None  # a module, or a function from specs to one; None: as the settings say
    trackers: MakeTrackers = ()
    stages: tuple[Stage, ...] = field(default=())  # between evaluation and tracking, the first one innermost
    place: Path | None = None  # where the run's folder is made; None: in results_dir
    saved: Saved = _nothing  # called with the run's folder when it is made, and after every checkpoint

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        model: object = None,
        trackers: MakeTrackers = (),
        stages: Iterable[Stage] = (),
    ) -> Self:
        """A model that is a config is among the settings of the experiment."""
        is_config = isinstance(model, find_algorithm(experiment.algorithm).parts["model"])
        chosen = tuple(stages)
        if wrong := [stage for stage in chosen if not callable(stage)]:
            raise BadInput(f"stages has {wrong[0]!r:.80}; expected functions that take logs and yield logs")
        return cls(None if is_config else model, trackers, chosen)

    def trackers_of(self, run: Run) -> list[Tracker]:
        """The user's trackers for a run."""
        made = self.trackers(run) if callable(self.trackers) else self.trackers
        return list(made)


NOTHING = Extras()
