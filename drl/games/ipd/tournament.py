"""Games between any two players, many at once: memory-1 tables, players of the axelrod package, trained agents.

A seat is one player in G games: it returns G moves, then sees the moves of both sides. `round_robin` is a tournament,
`observe_behavior` shows a player against each opponent of a pool.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.games.ipd.exact_values import best_response, policy_values
from drl.games.ipd.ipd_rules import ONE_HOT, OTHER_SIDE, STATES, Rules, outcome_of
from drl.games.ipd.opponents import (
    NAMED,
    AxelrodOpponent,
    GameAgent,
    OnePlayer,
    Opponents,
    Pool,
    as_pool,
    own_copy,
    rounds_seen,
)

NEGLIGIBLE = 1e-6  # weight of the rounds that are not played in a game that ends by chance

Player = Pool | OnePlayer | GameAgent


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

    def __init__(self, agent: GameAgent, history: int = 20, explore: bool = False):
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


@dataclass(frozen=True, eq=False)
class TournamentTable:
    """Mean payoff per round of each player (row) against each (column)."""

    names: tuple[str, ...]
    payoffs: Array  # [K, K]
    errors: Array  # [K, K] standard errors: 0 where the payoff is exact

    @property
    def scores(self) -> Array:
        """Mean over all others [K]. Games against itself do not count, as in the axelrod package."""
        count = len(self.names)
        return (self.payoffs.sum(axis=1) - np.diag(self.payoffs)) / max(count - 1, 1)

    @property
    def ranking(self) -> tuple[str, ...]:
        """Names, best first."""
        return tuple(self.names[i] for i in np.argsort(-self.scores, kind="stable"))

    def __str__(self) -> str:
        order = [self.names.index(name) for name in self.ranking]
        wide = max(len(name) for name in self.names)
        lines = [" " * (wide + 5) + "score " + "".join(f"{rank + 1:7}" for rank in range(len(order)))]
        for rank, i in enumerate(order):
            cells = "".join(f"{self.payoffs[i, j]:7.3f}" for j in order)
            lines.append(f"{rank + 1:3}  {self.names[i]:{wide}}{self.scores[i]:6.3f} {cells}")
        return "\n".join(lines)


def round_robin(
    players: Mapping[str, Player | None] | None = None, rules: Rules | None = None, games: int = 200, seed: int = 0
) -> TournamentTable:
    """Every player against every other and against itself.

    `players` maps your own names to players: a named or axelrod player, five probabilities, or an agent with `act`.
    The default is all named memory-1 players. Two memory-1 players get their exact expected payoff; every other pair
    plays `games` games.

    >>> table = round_robin({"defect": "always_defect", "tft": "tit_for_tat"}, Rules(rounds=10))
    >>> print(table)
               score       1      2
      1  defect 1.400   1.000  1.400
      2  tft    0.900   0.900  3.000
    """
    players, rules = dict.fromkeys(NAMED) if players is None else players, rules or Rules()
    if not players:
        raise BadInput("a tournament without players; give at least one")
    # Two seats each, so that a player can play against itself.
    given = {name: name if player is None else player for name, player in players.items()}
    seats = [(seat_for(player, rules), seat_for(player, rules)) for player in given.values()]
    payoffs, errors = np.zeros((len(seats), len(seats))), np.zeros((len(seats), len(seats)))
    for i in range(len(seats)):
        for j in range(i, len(seats)):
            found = _meet(seats[i][0], seats[j][1], rules, games, [seed, i, j])
            (payoffs[i, j], payoffs[j, i]), (errors[i, j], errors[j, i]) = found
    return TournamentTable(tuple(players), payoffs, errors)


def _meet(first: Seat, second: Seat, rules: Rules, games: int, seed: Sequence[int]) -> tuple[Array, Array]:
    """Payoffs per round of both players and their standard errors."""
    if isinstance(first, MemoryOneSeat) and isinstance(second, MemoryOneSeat):
        exact = [policy_values(a.probs, b.probs[None], rules)[0] for a, b in ((first, second), (second, first))]
        return np.array(exact) / rules.expected_rounds, np.zeros(2)
    played = play_games(first, second, rules, games, seed)
    each = np.stack([played.per_round(), played.per_round(second=True)])  # [2, G]
    error = each.std(axis=1, ddof=1) / np.sqrt(games) if games > 1 else np.full(2, np.nan)
    return each.mean(axis=1), error


@dataclass(frozen=True, eq=False)
class Behavior:
    """Payoffs are per round; `best` is the payoff of the best reply, NaN for opponents that are not memory-1."""

    pool: Pool
    payoffs: Array  # [K]
    errors: Array  # [K] standard errors
    best: Array  # [K]
    cooperation: Array  # [K, 5] how often it cooperates in each state; NaN for unvisited states

    @property
    def payoff(self) -> float:
        """Mean payoff per round against the pool."""
        return float(self.pool.weights @ self.payoffs)

    @property
    def error(self) -> float:
        """Standard error of `payoff`."""
        return float(np.sqrt(np.square(self.pool.weights * self.errors).sum()))

    @property
    def share(self) -> float:
        """`payoff` relative to the best reply of a player that knows the opponent."""
        return self.payoff / float(self.pool.weights @ self.best)

    def __str__(self) -> str:
        wide = max(map(len, (*self.pool.names, "the pool")))
        lines = [f"{'':{wide}}  payoff    best   share   cooperates: " + "".join(f"{state:>7}" for state in STATES)]
        for name, payoff, best, rates in zip(self.pool.names, self.payoffs, self.best, self.cooperation, strict=True):
            shown = "".join(f"{rate:7.2f}" if np.isfinite(rate) else f"{'–':>7}" for rate in rates)
            lines.append(f"{name:{wide}}  {payoff:6.3f}  {best:6.3f}  {payoff / best:6.1%}  {'':13}{shown}")
        best = float(self.pool.weights @ self.best)
        return "\n".join([*lines, f"{'the pool':{wide}}  {self.payoff:6.3f}  {best:6.3f}  {self.share:6.1%}"])

    def draw(self, path: Path, title: str) -> Path:
        """Plot the cooperation in each state (column) against each opponent (row), as a .png, .pdf or .svg."""
        from matplotlib.colors import LinearSegmentedColormap

        from drl.tracking import figures

        longest = max(map(len, self.pool.names))
        figure, (ax,) = figures.make_panels(
            title,
            "how often it cooperates, by what happened in the round before (its move first); gray: never seen · "
            "right: payoff as a share of the best reply's",
            1,
            1,
            (5.6, 0.36 * len(self.pool)),
            titled=True,  # the columns are named above
            left=0.3 + longest * figures.CHARACTER,
            right=0.9,
        )
        shades = LinearSegmentedColormap.from_list("cooperation", ["white", figures.COLORS[0]])
        ax.set_facecolor("#d8d8d8")
        ax.imshow(self.cooperation, cmap=shades, vmin=0.0, vmax=1.0, aspect="auto")
        for (row, column), rate in np.ndenumerate(self.cooperation):
            if np.isfinite(rate):
                ink = "white" if rate > 0.8 else figures.INK
                ax.text(column, row, f"{rate:.2f}", ha="center", va="center", fontsize=9, color=ink)
        figures.finish(ax, "", x_label="")
        ax.grid(False)
        figures.name_ticks(ax.xaxis, ["first round", *(f"after {state}" for state in STATES[1:])])
        figures.name_ticks(ax.yaxis, self.pool.names)
        ax.xaxis.tick_top()
        for row, share in enumerate(self.payoffs / self.best):
            text = f"{share:.0%}" if np.isfinite(share) else "–"
            ax.text(len(STATES) - 0.35, row, text, ha="left", va="center", fontsize=9, color=figures.INK)
        return figures.save_figure(figure, path)


def observe_behavior(
    player: Player,
    opponents: Opponents = "all",
    rules: Rules | None = None,
    games: int = 200,
    seed: int = 0,
    explore: bool = False,
) -> Behavior:
    """Play `games` games against each opponent of a pool. `player` is an agent with `act`, or what `as_pool` takes.

    If games end by chance, returns are discounted instead (see `Games.returns`), which removes the noise of the end.

    >>> print(observe_behavior("tit_for_tat", ["always_defect", "tit_for_tat"]))
                   payoff    best   share   cooperates:   start     CC     CD     DC     DD
    always_defect   0.950   1.000   95.0%                  1.00      –   0.00      –   0.00
    tit_for_tat     3.000   3.000  100.0%                  1.00   1.00      –      –      –
    the pool        1.975   2.000   98.7%
    """
    rules, pool = rules or Rules(), as_pool(opponents)
    first: Seat = AgentSeat(player, rules.history, explore) if hasattr(player, "act") else seat_for(player, rules)
    payoffs, errors, best, cooperation = [], [], [], []
    for i, (name, strategy) in enumerate(zip(pool.names, pool.strategies, strict=True)):
        row = pool.probs[i].tolist()
        second = seat_for(row if strategy is None else name, rules)
        played = play_games(first, second, rules, games, [seed, i])
        each = played.per_round()
        payoffs.append(each.mean())
        errors.append(each.std() / np.sqrt(max(games - 1, 1)))
        best.append(np.nan if strategy else best_response(row, rules).value / rules.expected_rounds)
        cooperation.append(list(played.cooperation().values()))
    return Behavior(pool, *(np.array(column) for column in (payoffs, errors, best, cooperation)))
