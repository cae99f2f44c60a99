"""The user's own objects in a run (model, trackers, stages), which no file can hold, and the context they receive."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypeVar, final, runtime_checkable

from drl.agents.evaluation import Evaluation
from drl.algorithms import find_algorithm
from drl.core.contracts import Agent, Algorithm, Batch, Buffer, ReachableEnvs, Tracker
from drl.core.errors import BadInput
from drl.core.log import Log
from drl.core.network_parts import name_of
from drl.core.state_files import StateDict
from drl.envs.env_attributes import restored, stored
from drl.runs.folder.run_folder import Run
from drl.settings.experiment import Experiment

if TYPE_CHECKING:
    from drl.runs.building import AnyTrainer

Result = TypeVar("Result")
Evaluate = Callable[[int | None, int | None, bool, Mapping[str, object]], Evaluation]


@final
class Context:
    """A run in progress, passed to a stage or an `on_log` with a second parameter.

    >>> def harder(log: Log, context: Context) -> None:
    ...     if log.get("success_rate", 0.0) > 0.8:
    ...         context.envs.set("level", context.envs.get("level")[0] + 1)
    """

    def __init__(self, trainer: "AnyTrainer", run: Run, evaluate: Evaluate):
        self.trainer = trainer  # with its counters: env_steps, episodes, learning_steps
        self.stopped: bool = False  # whether `stop` was called
        self._run, self._evaluate = run, evaluate

    @property
    def envs(self) -> ReachableEnvs:
        """Access to all environments in all processes with `get`, `set` and `call`. Evaluation environments receive the
        same attributes, and the same calls of methods that return nothing."""
        return self.trainer.envs

    @property
    def agent(self) -> Agent:
        """The agent in training."""
        return self.trainer.agent

    @property
    def algorithm(self) -> Algorithm[Batch]:
        """The algorithm with its optimizer. Its `learning_rate_factor` multiplies the learning rate."""
        return self.trainer.algorithm

    @property
    def buffer(self) -> Buffer[Batch]:
        """The buffer that the algorithm learns from."""
        return self.trainer.buffer

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._run.folder

    def evaluate(
        self,
        episodes: int | None = None,
        *,
        seed: int | None = None,
        explore: bool = False,
        attributes: Mapping[str, object] | None = None,
    ) -> Evaluation:
        """Play episodes in separate environments, without affecting training. Defaults are the run's evaluation
        settings. `attributes` are set on these environments only, after the run's own changes."""
        return self._evaluate(episodes, seed, explore, attributes or {})

    def stop(self) -> None:
        """Stop training after this log. The run is saved and evaluated, and its status is finished."""
        self.stopped = True


MakeTrackers = Callable[[Run], Iterable[Tracker]] | Iterable[Tracker]
Stage = Callable[[Iterator[Log]], Iterator[Log]] | Callable[[Iterator[Log], Context], Iterator[Log]]
OnLog = Callable[[Log], object] | Callable[[Log, Context], object]


class LogFunction:
    """A stage that calls a function with every log."""

    def __init__(self, function: OnLog):
        self.function = function

    def __call__(self, logs: Iterator[Log], context: Context) -> Iterator[Log]:
        for log in logs:
            with_context(self.function, log, context)
            yield log


def with_context(function: Callable[..., Result], first: object, context: Context) -> Result:
    """Call a stage or a function. It gets the context if it has a second parameter without a default, or one named
    `context`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin
        return function(first)
    if any(each.name == "context" and each.kind is not each.VAR_POSITIONAL for each in parameters[1:]):
        return function(first, context=context) if parameters[1].name != "context" else function(first, context)
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    takes = len(places) > 1 and places[1].default is inspect.Parameter.empty
    return function(first, context) if takes else function(first)


@runtime_checkable
class WithState(Protocol):
    """A stage or `on_log` whose state is stored in checkpoints."""

    def state_dict(self) -> StateDict: ...

    def load_state_dict(self, state: StateDict) -> object: ...


@dataclass(frozen=True)
class Extras:
    """The user's objects in a run."""

    model: object = None  # a module, or a function from specs to one; None: from the settings
    trackers: MakeTrackers = ()
    stages: tuple[Stage, ...] = ()  # between evaluation and tracking, the first one innermost
    place: Path | None = None  # where the run's folder is made; None: in results_dir
    saved: Callable[[Path], object] = lambda folder: (
        None
    )  # called with the run's folder when it is made, and after every checkpoint

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        model: object = None,
        trackers: MakeTrackers = (),
        stages: Iterable[Stage] = (),
        on_log: OnLog | None = None,
    ) -> Self:
        """Make extras from the arguments of `train`. `on_log` is the last stage; a model config is a setting."""
        is_config = isinstance(model, find_algorithm(experiment.algorithm).parts["model"])
        chosen = tuple(stages)
        if wrong := [stage for stage in chosen if not callable(stage)]:
            raise BadInput(f"stages has {wrong[0]!r:.80}; expected functions that take logs and yield logs")
        if on_log is not None and not callable(on_log):
            raise BadInput(f"on_log is {on_log!r:.80}; expected a function of a log, or of a log and a context")
        chosen += () if on_log is None else (LogFunction(on_log),)
        return cls(None if is_config else model, trackers, chosen)

    def trackers_of(self, run: Run) -> list[Tracker]:
        """Return the user's trackers for a run."""
        return list(self.trackers(run) if callable(self.trackers) else self.trackers)

    @property
    def stage_names(self) -> list[str]:
        """Return the names of the stages and `on_log` for the record of a run."""
        return [name_of(_inside(stage)) for stage in self.stages]

    def state_dict(self) -> StateDict:
        """States of the stages and `on_log` that have a `state_dict`, by position and name."""
        states = {}
        for key, stage in self._with_state().items():
            try:
                states[key] = stored(stage.state_dict())
            except TypeError as error:
                raise BadInput(f"the state_dict of {key} holds {error}, which no file can hold") from None
        return states

    def check_state(self, state: StateDict) -> None:
        """Raise if a stage with a stored state is missing or replaced by another one."""
        if missing := [key for key in state if key not in self._with_state()]:
            raise BadInput(
                f"the checkpoint holds the state of {', '.join(missing)}; give the stages and on_log that the run was "
                "started with: drl.resume(…, stages=…, on_log=…)"
            )

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the state of every stage."""
        stages = self._with_state()
        for key, plain in state.items():
            stages[key].load_state_dict(restored(plain))

    def _with_state(self) -> dict[str, WithState]:
        named = ((f"stage {i} ({type(stage).__name__})", stage) for i, stage in enumerate(map(_inside, self.stages)))
        return {name: stage for name, stage in named if isinstance(stage, WithState)}


def _inside(stage: Stage) -> object:
    return stage.function if isinstance(stage, LogFunction) else stage


NOTHING = Extras()
