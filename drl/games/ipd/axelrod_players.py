"""The axelrod package (extra `axelrod`): its players as our opponents, and our agents as players in its tournaments.

The package is imported on first use.
"""

import importlib.util
import inspect
import math
import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from drl.core.errors import BadInput, MissingExtra, did_you_mean
from drl.core.specs import Array
from drl.games.ipd.agent_copies import Actor, own_copy, rounds_seen
from drl.games.ipd.ipd_rules import COOPERATE, ONE_HOT, Rules, outcome_of

if TYPE_CHECKING:
    from axelrod import Action, Player


def load_axelrod() -> ModuleType:
    """The package. Importing it reads the source of every strategy many times; caching the sources cuts the import
    from 20 s to 6 s (measured once)."""
    if "axelrod" in sys.modules:
        return sys.modules["axelrod"]
    if importlib.util.find_spec("axelrod") is None:
        raise MissingExtra("a player of the axelrod package", "axelrod", "axelrod")
    read_source = inspect.getsource
    seen: dict[object, str] = {}

    def cached(thing: Callable[..., object]) -> str:
        function = getattr(thing, "__func__", thing)
        if function not in seen:
            seen[function] = read_source(thing)
        return seen[function]

    inspect.getsource = cached  # type: ignore[assignment]
    try:
        return importlib.import_module("axelrod")
    finally:
        inspect.getsource = read_source


def find_strategy(name: str) -> type:
    """The class of a strategy, by a name such as `TitForTat`."""
    axelrod = load_axelrod()
    strategies: dict[str, type] = {strategy.__name__: strategy for strategy in axelrod.all_strategies}
    if name not in strategies:
        raise BadInput(f"the axelrod package has no strategy {name!r}; {did_you_mean(name, strategies)}")
    if not axelrod.Classifiers.obey_axelrod(strategies[name]()):
        raise BadInput(f"{name} looks into or changes its opponent, which is a neural network here; choose another")
    return strategies[name]


class AxelrodOpponent:
    """One player of the package in one of our games. Call `begin`, then `move` and `see` in turn."""

    def __init__(self, strategy: type, rules: Rules):
        axelrod = load_axelrod()
        self._cooperate, self._moves = axelrod.Action.C, (axelrod.Action.D, axelrod.Action.C)
        self._player = strategy()
        self._agent = axelrod.Player()  # represents the agent: the player reads its history
        reward, sucker, temptation, punishment = rules.payoffs
        self._attributes = {
            "length": math.inf if rules.rounds is None else rules.rounds,
            "game": axelrod.Game(r=reward, s=sucker, t=temptation, p=punishment),
            "noise": 0,
        }

    def begin(self, uniform: float) -> None:
        """Start a new game. The uniform draw seeds the player."""
        self._agent.reset()
        self._player.reset()
        self._player.set_match_attributes(**self._attributes)
        self._player.set_seed(int(uniform * 2**32))

    def move(self) -> int:
        """Its next move: 1 cooperates."""
        return int(self._player.strategy(self._agent) == self._cooperate)

    def see(self, own: int, agents: int) -> None:
        """What was played in this round."""
        self._player.update_history(self._moves[own], self._moves[agents])
        self._agent.update_history(self._moves[agents], self._moves[own])


def agent_player(agent: Actor, name: str = "drl agent", history: int = 20, explore: bool = False) -> "Player":
    """A player of the axelrod package that moves like `agent`: anything with `act(obs)`.

    `history` is the number of observed rounds for agents without an `obs_spec`. `explore=True` samples from the policy.

        axelrod.Tournament([agent_player(agent), axelrod.TitForTat()], turns=100).play()
    """
    return _player_class()(agent, name, history, explore)


@cache
def _player_class() -> type:
    axelrod = load_axelrod()

    class AgentPlayer(axelrod.Player):  # type: ignore[misc, name-defined]
        name = "drl agent"
        classifier = {  # noqa: RUF012  (the package's own convention)
            "memory_depth": math.inf,
            "stochastic": True,  # disables the package's match cache, since two agents may share a name
            "long_run_time": False,
            "inspects_source": False,
            "manipulates_source": False,
            "manipulates_state": False,
        }

        def __init__(self, agent: Actor, name: str, history: int, explore: bool):
            super().__init__()
            self.agent, self.name, self.explore = (
                own_copy(agent),
                name,
                explore,
            )  # axelrod creates a new player per match
            self.length = rounds_seen(agent, history)

        def __repr__(self) -> str:
            return str(self.name)

        def strategy(self, opponent: "Player") -> "Action":
            obs = self._observed()
            move = self.agent.act(obs, explore=True) if self.explore else self.agent.act(obs)
            return axelrod.Action.C if int(np.asarray(move)) == COOPERATE else axelrod.Action.D

        def _observed(self) -> Array:
            cooperate = axelrod.Action.C
            rounds = zip(self.history[-self.length :], self.history.coplays[-self.length :], strict=True)
            played = [1 + outcome_of(int(own == cooperate), int(other == cooperate)) for own, other in rounds]
            return ONE_HOT[[0] * (self.length - len(played)) + played]

    return AgentPlayer
