"""The iterated Prisoner's Dilemma. Importing this registers nothing; see `drl.envs.registry`."""

from drl.envs.ipd.environment import IteratedPrisonersDilemmaEnv
from drl.envs.ipd.opponents import NAMED, Pool, as_pool, load_pool
from drl.envs.ipd.rules import Rules
from drl.envs.ipd.vector_environment import IteratedPrisonersDilemmaVectorEnv

__all__ = [
    "NAMED",
    "IteratedPrisonersDilemmaEnv",
    "IteratedPrisonersDilemmaVectorEnv",
    "Pool",
    "Rules",
    "as_pool",
    "load_pool",
]
