"""The axelrod package (extra `axelrod`): its players as our opponents, and our agents as players of its tournaments.

The package is imported when it is first needed and not before.
"""

import importlib.util
import inspect
import math
import sys
from functools import cache
from typing import Any

import numpy as np

from drl.core.errors import BadInput, MissingExtra, did_you_mean
from drl.core.specs import Array
from drl.games.ipd.agent_copies import own_copy, rounds_seen
from drl.games.ipd.ipd_rules import COOPERATE, ONE_HOT, Rules, outcome_of


def load_axelrod() -> Any:
    """The package. Importing it reads the source of every strategy again and again, for 20 s on the machine where we
    looked; what it reads is remembered meanwhile, which leaves 6."""
    if "axelrod" in sys.modules:
        return sys.modules["axelrod"]
    if importlib.util.find_spec("axelrod") is None:
        raise MissingExtra("a player of the axelrod package", "axelrod", "axelrod")
    read_source, seen = inspect.getsource, {}

    def remembered(thing: Any) -> str:
        function = getattr(thing, "__func__", thing)
        if function not in seen:
            seen[function] = read_source(thing)
        return str(seen[function])

    inspect.getsource = remembered  # type: ignore[assignment]
    try:
        return importlib.import_module("axelrod")
    finally:
        inspect.getsource = read_source


def find_strategy(name: str) -> type:
    """The class of a strategy by its name, such as `TitForTat`."""
    axelrod = load_axelrod()
    strategies: dict[str, type] = {strategy.__name__: strategy for strategy in axelrod.all_strategies}
    if name not in strategies:
        raise BadInput(f"the axelrod package has no strategy {name!r}; {did_you_mean(name, strategies)}")
    if not axelrod.Classifiers.obey_axelrod(strategies[name]()):
        raise BadInput(f"{name} looks into or changes its opponent, which is a neural network here; choose another")
    return strategies[name]


class AxelrodOpponent:
    """One player of the package in one of our games: `begin`, then `move` and `see` in turns."""

    def __init__(self, strategy: type, rules: Rules):
        axelrod = load_axelrod()
        self._cooperate, self._moves = axelrod.Action.C, (axelrod.Action.D, axelrod.Action.C)
        self._player = strategy()
        self._agent = axelrod.Player()  # stands in for the agent: the player reads its history
        reward, sucker, temptation, punishment = rules.payoffs
        self._attributes = {
            "length": math.inf if rules.rounds is None else rules.rounds,
            "game": axelrod.Game(r=reward, s=sucker, t=temptation, p=punishment),
            "noise": 0,
        }

    def begin(self, uniform: float) -> None:
        """A new game, whose chances follow from a uniform draw."""
        self._agent.reset()
        self._player.reset()
        self._player.set_match_attributes(**self._attributes)
        self._player.set_seed(int(uniform * 2**32))

    def move(self) -> int:
        return int(self._player.strategy(self._agent) == self._cooperate)

    def see(self, own: int, agents: int) -> None:
        self._player.update_history(self._moves[own], self._moves[agents])
        self._agent.update_history(self._moves[agents], self._moves[own])


def agent_player(agent: Any, name: str = "drl agent", history: int = 20, explore: bool = False) -> Any:
    """A player of the axelrod package that moves as `agent` does: anything with `act(obs)`.

    `history` is used where the agent does not say how many rounds it sees. `explore=True` samples from its policy.

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
            "stochastic": True,  # tells the package to play every match anew; another agent may have the same name
            "long_run_time": False,
            "inspects_source": False,
            "manipulates_source": False,
            "manipulates_state": False,
        }

        def __init__(self, agent: Any, name: str, history: int, explore: bool):
            super().__init__()
            self.agent, self.name, self.explore = own_copy(agent), name, explore  # axelrod makes players anew per match
            self.length = rounds_seen(agent, history)

        def __repr__(self) -> str:
            return str(self.name)

        def strategy(self, opponent: Any) -> Any:
            obs = self._observed()
            move = self.agent.act(obs, explore=True) if self.explore else self.agent.act(obs)
            return axelrod.Action.C if int(np.asarray(move)) == COOPERATE else axelrod.Action.D

        def _observed(self) -> Array:
            cooperate = axelrod.Action.C
            rounds = zip(self.history[-self.length :], self.history.coplays[-self.length :], strict=True)
            played = [1 + outcome_of(int(own == cooperate), int(other == cooperate)) for own, other in rounds]
            return ONE_HOT[[0] * (self.length - len(played)) + played]

    return AgentPlayer
