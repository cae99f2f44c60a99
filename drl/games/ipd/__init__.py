"""The iterated Prisoner's Dilemma. Importing this registers nothing; see `drl.games.registry`."""

from drl.games.ipd.exact_values import best_memory_one_reply, best_response
from drl.games.ipd.ipd_env import IteratedPrisonersDilemmaEnv, IteratedPrisonersDilemmaVectorEnv
from drl.games.ipd.ipd_rules import Rules
from drl.games.ipd.opponents import NAMED, Pool, as_pool, load_pool
from drl.games.ipd.tournament import Behavior, observe_behavior

__all__ = [
    "NAMED",
    "Behavior",
    "IteratedPrisonersDilemmaEnv",
    "IteratedPrisonersDilemmaVectorEnv",
    "Pool",
    "Rules",
    "as_pool",
    "best_memory_one_reply",
    "best_response",
    "load_pool",
    "observe_behavior",
]
