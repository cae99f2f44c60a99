"""drl: modular deep reinforcement learning. Environment, model, agent, algorithm and trainer are swapped one by one.

Importing `drl` registers its environments with Gymnasium and loads neither torch nor jax: a name is imported from its
module when it is first used. `drl.torch` and `drl.jax` export models, agents and algorithms of each engine.

>>> import drl
>>> drl.__version__
'0.1.0'
"""

import importlib
from typing import TYPE_CHECKING

from drl.games.registry import register_envs

if TYPE_CHECKING:  # what a type checker and an editor read; the table below is what runs, and a test compares them
    from drl.core.algorithms import register_algorithm as register_algorithm
    from drl.core.network_parts import register_activation as register_activation
    from drl.core.network_parts import register_backbone as register_backbone
    from drl.core.network_parts import register_head as register_head
    from drl.core.network_parts import register_initialization as register_initialization
    from drl.core.schedules import register_schedule as register_schedule
    from drl.core.variants import register_variant as register_variant
    from drl.envs.make_vec_env import make_vec_env as make_vec_env
    from drl.experiment.evaluation import evaluate as evaluate
    from drl.experiment.extras import Context as Context
    from drl.experiment.launch import fork as fork
    from drl.experiment.launch import resume as resume
    from drl.experiment.load_agent import load_agent as load_agent
    from drl.experiment.one_call import train as train
    from drl.experiment.one_call import train_seeds as train_seeds
    from drl.search.search_call import search as search
    from drl.trainer.trainer import Trainer as Trainer

__version__ = "0.1.0"

# Module → the public names that it defines.
_PUBLIC = {
    "drl.core.algorithms": "register_algorithm",
    "drl.core.network_parts": "register_activation register_backbone register_head register_initialization",
    "drl.core.schedules": "register_schedule",
    "drl.core.variants": "register_variant",
    "drl.envs.make_vec_env": "make_vec_env",
    "drl.experiment.evaluation": "evaluate",
    "drl.experiment.extras": "Context",
    "drl.experiment.launch": "fork resume",
    "drl.experiment.load_agent": "load_agent",
    "drl.experiment.one_call": "train train_seeds",
    "drl.search.search_call": "search",
    "drl.trainer.trainer": "Trainer",
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names.split()}

register_envs()

if not TYPE_CHECKING:  # a type checker would take any name from a `__getattr__`
    __all__ = [*_MODULE_OF, "__version__"]

    def __getattr__(name):
        if name in ("torch", "jax"):
            return importlib.import_module(f"drl.{name}")
        if name in _MODULE_OF:
            return getattr(importlib.import_module(_MODULE_OF[name]), name)
        raise AttributeError(f"module 'drl' has no attribute {name!r}; it offers {', '.join(sorted(_MODULE_OF))}")


def __dir__() -> list[str]:
    return sorted([*_MODULE_OF, "__version__", "jax", "torch"])
