"""A run for another process, with the objects that it names, and what that process answers."""

from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]

from drl.algorithms import ALGORITHMS, find_algorithm
from drl.core.errors import DrlError, Interrupted, advice_of
from drl.core.named_objects import give_objects, given_objects
from drl.core.network_parts import ACTIVATIONS, INITIALIZATIONS, OPTIMIZERS, import_plugins
from drl.core.schedules import FUNCTIONS
from drl.core.specs import PlainDict
from drl.envs.env_names import find_object, split_wrapper
from drl.runs.extras import Extras
from drl.settings.experiment import Experiment

TABLES: list[dict[str, Any]] = [
    ACTIVATIONS,
    INITIALIZATIONS,
    FUNCTIONS,
    OPTIMIZERS,
]  # which may hold functions of the user


class Answer(NamedTuple):
    """What a process tells of its run: where it is and how it ended, or why there is none."""

    folder: Path | None = None
    status: str = "failed"
    evaluation: dict[str, float] | None = None
    error: str = ""
    exit_code: int = 1
    result: PlainDict | None = None  # of what was to be done after the run

    @classmethod
    def of(cls, error: BaseException) -> "Answer":
        """A run that has ended with an error."""
        if isinstance(error, Interrupted):
            return cls(error="stopped before it began", exit_code=130)
        code = error.exit_code if isinstance(error, DrlError) else 1
        said = [f"{type(error).__name__}: {error}", *advice_of(error).splitlines()]
        return cls(error="; ".join(said), exit_code=code)


class PackedRun(NamedTuple):
    """A run that can be sent to another process."""

    plugins: tuple[str, ...]  # imported before the content is read, which may need them
    content: bytes

    def unpack(self) -> tuple[Experiment, Extras]:
        """In the other process."""
        import_plugins(self.plugins)
        record, content = cloudpickle.loads(self.content)
        ALGORITHMS.setdefault(record.name, record)
        experiment, extras, objects, functions = cloudpickle.loads(content)
        give_objects(objects)
        for table, given in zip(TABLES, functions, strict=True):
            table.update(given)
        return experiment, extras


def pack(experiment: Experiment, extras: Extras) -> PackedRun:
    """A run with the user's functions and classes, as bytes."""
    objects = _named_in(experiment, given_objects())
    functions = [{name: part for name, part in table.items() if name in objects} for table in TABLES]
    content = cloudpickle.dumps((experiment, extras, objects | _in_files(experiment), functions))
    record = find_algorithm(experiment.algorithm)  # may be the user's own
    return PackedRun(experiment.run.plugins, cloudpickle.dumps((record, content)))


def _in_files(experiment: Experiment) -> dict[str, object]:
    """The environment and the wrappers of files, which may not be on the other machine."""
    run = experiment.run
    names = [run.env, *(split_wrapper(wrapper)[0] for wrapper in run.wrappers)]
    return {name: find_object(name) for name in names if name.rpartition(":")[0].endswith(".py")}


def _named_in(experiment: Experiment, objects: dict[str, Any]) -> dict[str, Any]:
    """The objects that an experiment names. Others may be of modules that its process cannot import."""
    settings = repr(experiment)
    return {name: each for name, each in objects.items() if name in settings}
