"""An experiment for another process, with the user's objects that its settings name."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]

from drl.core.network_parts import ACTIVATIONS, INITIALIZATIONS, functions_in, give_functions, import_plugins
from drl.core.schedules import FUNCTIONS
from drl.envs.user_objects import find_object, give_objects, given_objects
from drl.envs.wrapper_names import split_wrapper
from drl.experiment.config import Experiment

TABLES: list[dict[str, Any]] = [ACTIVATIONS, INITIALIZATIONS, FUNCTIONS]  # which may hold functions of the user


class SentExperiment(NamedTuple):
    plugins: tuple[str, ...]
    content: bytes

    @classmethod
    def of(cls, experiment: Experiment, beside: object = None) -> "SentExperiment":
        """`beside` is sent as well."""
        functions = [_named_in(experiment, functions_in(table)) for table in TABLES]
        objects = _named_in(experiment, given_objects()) | _in_files(experiment)
        return cls(experiment.run.plugins, cloudpickle.dumps((experiment, beside, objects, functions)))

    def open(self) -> tuple[Experiment, Any]:
        """In the other process."""
        import_plugins(self.plugins)  # before its objects are read
        experiment, beside, objects, functions = cloudpickle.loads(self.content)
        give_objects(objects)
        for table, given in zip(TABLES, functions, strict=True):
            give_functions(table, given)
        return experiment, beside


def _in_files(experiment: Experiment) -> dict[str, object]:
    """The environment and the wrappers of files, which may not be on the other machine."""
    run = experiment.run
    names = [run.env, *(split_wrapper(wrapper)[0] for wrapper in run.wrappers)]
    return {name: find_object(name) for name in names if name.rpartition(":")[0].endswith(".py")}


def _named_in(experiment: Experiment, objects: Mapping[str, Any]) -> dict[str, Any]:
    """The objects that an experiment names. Others may be of modules that its process cannot import."""
    settings = repr(experiment)
    return {name: each for name, each in objects.items() if name in settings}
