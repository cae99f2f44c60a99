"""drl: modular deep reinforcement learning. Environment, model, agent, algorithm and trainer are swapped one by one.

Importing `drl` registers its environments with Gymnasium and loads neither torch nor jax; names below are fetched on
first use.

>>> import drl
>>> drl.__version__
'0.1.0'
"""

import importlib
from typing import Any

from drl.games.registry import register_envs

__version__ = "0.1.0"

# One explicit table from public name to the module that defines it.
_PUBLIC = {
    "make_vec_env": "drl.envs.make_vec_env",
    "load_agent": "drl.experiment.load_agent",
    "evaluate": "drl.experiment.evaluation",
    "train": "drl.experiment.one_call",
    "train_seeds": "drl.experiment.one_call",
    "search": "drl.search.search_call",
    "resume": "drl.experiment.launch",
    "fork": "drl.experiment.launch",
    "Trainer": "drl.trainer.trainer",
    "register_activation": "drl.core.network_parts",
    "register_algorithm": "drl.core.algorithms",
    "register_backbone": "drl.core.network_parts",
    "register_head": "drl.core.network_parts",
    "register_initialization": "drl.core.network_parts",
    "register_schedule": "drl.core.schedules",
    "register_variant": "drl.core.variants",
}
__all__ = [*_PUBLIC, "__version__"]

register_envs()


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'drl' has no attribute {name!r}; it offers {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
