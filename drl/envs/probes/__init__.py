"""Tiny worlds whose every value is known. Importing this registers nothing; see `drl.envs.registry`."""

from drl.envs.probes.counting import CountingEnv, CountingVectorEnv
from drl.envs.probes.known_values import MatchEnv, OneStepEnv, TargetEnv, TwoStepEnv
from drl.envs.probes.remembering import CartPoleNoVelocityEnv, MoodEnv, RecallEnv

__all__ = [
    "CartPoleNoVelocityEnv",
    "CountingEnv",
    "CountingVectorEnv",
    "MatchEnv",
    "MoodEnv",
    "OneStepEnv",
    "RecallEnv",
    "TargetEnv",
    "TwoStepEnv",
]
