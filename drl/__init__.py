"""drl: modular deep reinforcement learning. Environment, model, agent, algorithm and trainer are swapped one by one.

Importing `drl` registers its environments with Gymnasium and loads neither torch nor jax: a name is imported from its
module when it is first used. `drl.torch` and `drl.jax` export models, agents and algorithms of each engine.

>>> import drl
>>> drl.__version__
'0.1.0'
"""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from drl.games.registry import register_envs

if TYPE_CHECKING:  # what a type checker and an editor read; the table below is what runs, and a test compares them
    from drl.analysis.comparison import compare as compare
    from drl.analysis.reproduction_queue import reproduce as reproduce
    from drl.cli.completion import completion as completion
    from drl.core.algorithms import register_algorithm as register_algorithm
    from drl.core.network_parts import register_activation as register_activation
    from drl.core.network_parts import register_backbone as register_backbone
    from drl.core.network_parts import register_head as register_head
    from drl.core.network_parts import register_initialization as register_initialization
    from drl.core.schedules import register_schedule as register_schedule
    from drl.core.variants import register_variant as register_variant
    from drl.deploy.export_agent import convert as convert
    from drl.deploy.export_agent import export as export
    from drl.deploy.serve_call import serve as serve
    from drl.doctor.examine_run import doctor as doctor
    from drl.envs.make_vec_env import make_vec_env as make_vec_env
    from drl.experiment.ablation import ablate as ablate
    from drl.experiment.evaluation import evaluate as evaluate
    from drl.experiment.hub import pull as pull
    from drl.experiment.hub import push as push
    from drl.experiment.launch import fork as fork
    from drl.experiment.launch import resume as resume
    from drl.experiment.load_agent import load_agent as load_agent
    from drl.experiment.offers import list as list
    from drl.experiment.one_call import train as train
    from drl.experiment.one_call import train_seeds as train_seeds
    from drl.experiment.play_again import replay as replay
    from drl.report.board_server import board as board
    from drl.report.one_file import report as report
    from drl.report.plot_call import plot as plot
    from drl.search.search_call import search as search
    from drl.trainer.trainer import Trainer as Trainer

__version__ = "0.1.0"

# Module → the public names that it defines.
_PUBLIC = {
    "drl.analysis.comparison": "compare",
    "drl.analysis.reproduction_queue": "reproduce",
    "drl.cli.completion": "completion",
    "drl.core.algorithms": "register_algorithm",
    "drl.core.network_parts": "register_activation register_backbone register_head register_initialization",
    "drl.core.schedules": "register_schedule",
    "drl.core.variants": "register_variant",
    "drl.deploy.export_agent": "convert export",
    "drl.deploy.serve_call": "serve",
    "drl.doctor.examine_run": "doctor",
    "drl.envs.make_vec_env": "make_vec_env",
    "drl.experiment.ablation": "ablate",
    "drl.experiment.evaluation": "evaluate",
    "drl.experiment.hub": "pull push",
    "drl.experiment.launch": "fork resume",
    "drl.experiment.load_agent": "load_agent",
    "drl.experiment.offers": "list",
    "drl.experiment.one_call": "train train_seeds",
    "drl.experiment.play_again": "replay",
    "drl.report.board_server": "board",
    "drl.report.one_file": "report",
    "drl.report.plot_call": "plot",
    "drl.search.search_call": "search",
    "drl.trainer.trainer": "Trainer",
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names.split()}

register_envs()

if not TYPE_CHECKING:  # a type checker would take any name from a `__getattr__`
    # `from drl import *` must not hide Python's own `list`.
    __all__ = [*(name for name in _MODULE_OF if name != "list"), "__version__"]

    def __getattr__(name):
        if name in ("torch", "jax"):
            return importlib.import_module(f"drl.{name}")
        if name in _MODULE_OF:
            return getattr(importlib.import_module(_MODULE_OF[name]), name)
        raise AttributeError(f"module 'drl' has no attribute {name!r}; it offers {', '.join(sorted(_MODULE_OF))}")


def __dir__() -> Sequence[str]:
    return sorted([*_MODULE_OF, "__version__", "jax", "torch"])
