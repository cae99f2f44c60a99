"""Games between any two players, many at once: memory-1 tables, players of the axelrod package, trained agents.

A seat is one player in G games: it returns G moves, then sees the moves of both sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.games.ipd.agent_copies import Actor, own_copy, rounds_seen
from drl.games.ipd.axelrod_players import AxelrodOpponent
from drl.games.ipd.ipd_rules import ONE_HOT, OTHER_SIDE, STATES, Rules, outcome_of
from drl.games.ipd.opponents import OnePlayer, Pool, as_pool

NEGLIGIBLE = 1e-6  # weight of the rounds that are not played in a game that ends by chance

Player = Pool | OnePlayer | Actor


class Seat(Protocol):
    """One side of G games."""

    def begin(self, games: int, rng: np.random.Generator) -> None:
        """New games begin."""

    def moves(self) -> Array:
        """[G] next moves, 0 or 1."""

    def see(self, states: Array) -> None:
        """[G] states 1 … 4 after the round, own move first."""


class MemoryOneSeat:
    """Plays by a table of five cooperation probabilities."""

    def __init__(self, probs: Array):
        self.probs = probs

    def begin(self, games: int, rng: np.random.Generator) -> None:
        self._rng, self._states = rng, np.zeros(games, np.int64)

    def moves(self) -> Array:
        return (self._rng.random(len(self._states)) < self.probs[self._states]).astype(np.int64)

    def see(self, states: Array) -> None:
        self._states = states


class AxelrodSeat:
    """A strategy of the axelrod package, one player per game."""

    def __init__(self, strategy: type, rules: Rules):
        self._strategy, self._rules = strategy, rules
        self._players: list[AxelrodOpponent] = []

    def begin(self, games: int, rng: np.random.Generator) -> None:
        missing = games - len(self._players)
        self._players = self._players[:games] + [AxelrodOpponent(self._strategy, self._rules) for _ in range(missing)]
        for player, uniform in zip(self._players, rng.random(games).tolist(), strict=True):
            player.begin(uniform)

    def moves(self) -> Array:
        return np.array([player.move() for player in self._players])

    def see(self, states: Array) -> None:
        for player, outcome in zip(self._players, (states - 1).tolist(), strict=True):
            player.see(1 - outcome // 2, 1 - outcome % 2)


class AgentSeat:
    """Anything with `act(obs)` that takes a batch of observations, such as a trained agent.

    `history` is the number of observed rounds for agents without an `obs_spec`. `explore=True` samples from the policy.
    """

    def __init__(self, agent: Actor, history: int = 20, explore: bool = False):
        self._agent, self._history = agent, rounds_seen(agent, history)
        self._options = {"explore": True} if explore else {}

    def begin(self, games: int, rng: np.random.Generator) -> None:
        self._player = own_copy(self._agent, rng)
        self._obs = np.tile(ONE_HOT[0], (games, self._history, 1))

    def moves(self) -> Array:
        return np.asarray(self._player.act(self._obs, **self._options)).astype(np.int64)

    def see(self, states: Array) -> None:
        self._obs = np.concatenate([self._obs[:, 1:], ONE_HOT[states][:, None]], axis=1)


def seat_for(player: Player, rules: Rules) -> Seat:
    """A seat for a player: what `as_pool` takes for one opponent, or an agent with `act`."""
    if hasattr(player, "act"):
        return AgentSeat(player, rules.history)
    pool = as_pool(player)
    if len(pool) != 1:
        raise BadInput(f"got {len(pool)} players for one seat; expected one")
    strategy = pool.strategies[0]
    return MemoryOneSeat(pool.probs[0]) if strategy is None else AxelrodSeat(strategy, rules)


@dataclass(frozen=True, eq=False)
class Games:
    """The states of G games of T rounds, from the first player's side."""

    states: Array  # [T, G], 1 … 4 for CC, CD, DC, DD
    rules: Rules

    def returns(self, second: bool = False) -> Array:
        """The value of each game [G] to the first player, or to the second.

        If games end by chance, round t has the weight survival^t. That is the expected return given the moves, without
        the noise of an early or late end.
        """
        states = OTHER_SIDE[self.states] if second else self.states
        return self._round_weights() @ np.array(self.rules.payoffs)[states - 1]

    def per_round(self, second: bool = False) -> Array:
        """The value of each game [G] as a payoff per round."""
        return self.returns(second) / self._round_weights().sum()

    def cooperation(self) -> dict[str, float]:
        """How often the first player cooperates in the first round and after each outcome; NaN for unvisited states."""
        before = np.concatenate([np.zeros_like(self.states[:1]), self.states[:-1]])
        cooperates = self.states <= 2
        weights = np.broadcast_to(self._round_weights()[:, None], self.states.shape)
        rates = {}
        for number, name in enumerate(STATES):
            there = weights * (before == number)
            rates[name] = float((there * cooperates).sum() / there.sum()) if there.any() else float("nan")
        return rates

    def _round_weights(self) -> Array:
        survival = 1.0 if self.rules.survival is None else self.rules.survival
        return np.power(survival, np.arange(len(self.states)))


def play_games(
    first: Seat, second: Seat, rules: Rules | None = None, games: int = 1, seed: int | Sequence[int] = 0
) -> Games:
    """Play `games` games. Games that end by chance are played until the rest is negligible.

    >>> rules = Rules(rounds=5)
    >>> played = play_games(seat_for("always_defect", rules), seat_for("tit_for_tat", rules), rules)
    >>> played.returns().tolist(), played.returns(second=True).tolist()
    ([9.0], [4.0])
    """
    rules = rules or Rules()
    if games < 1:
        raise BadInput(f"games = {games!r}; expected at least 1")
    one, other = (np.random.default_rng(sequence) for sequence in np.random.SeedSequence(seed).spawn(2))
    first.begin(games, one)
    second.begin(games, other)
    states = []
    for _ in range(rounds_to_play(rules)):
        state = 1 + outcome_of(first.moves(), second.moves())
        first.see(state)
        second.see(OTHER_SIDE[state])
        states.append(state)
    return Games(np.array(states), rules)


def rounds_to_play(rules: Rules) -> int:
    """Rounds of a game; with a probability of survival, the most that all but a negligible share of them last."""
    if rules.survival is None:
        return rules.rounds or 1
    return 1 if rules.survival == 0 else 1 + int(np.ceil(np.log(NEGLIGIBLE) / np.log(rules.survival)))
