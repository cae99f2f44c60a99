"""Tiny environments with known values. Importing this registers nothing; see `drl.games.registry`."""

from drl.games.probes.counting import CountingEnv, CountingVectorEnv
from drl.games.probes.flipping import BitFlipEnv
from drl.games.probes.known_values import MatchEnv, OneStepEnv, TargetEnv, TwoStepEnv
from drl.games.probes.masked import LegalMovesEnv
from drl.games.probes.remembering import CartPoleNoVelocityEnv, MoodEnv, RecallEnv

__all__ = [
    "BitFlipEnv",
    "CartPoleNoVelocityEnv",
    "CountingEnv",
    "CountingVectorEnv",
    "LegalMovesEnv",
    "MatchEnv",
    "MoodEnv",
    "OneStepEnv",
    "RecallEnv",
    "TargetEnv",
    "TwoStepEnv",
]
