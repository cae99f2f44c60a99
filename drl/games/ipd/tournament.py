"""Round-robin tournaments as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.games.ipd.exact_values import policy_values
from drl.games.ipd.games import MemoryOneSeat, Player, Seat, play_games, seat_for
from drl.games.ipd.ipd_rules import Rules
from drl.games.ipd.opponents import NAMED


@dataclass(frozen=True, eq=False)
class Table:
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
) -> Table:
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
    return Table(tuple(players), payoffs, errors)


def _meet(first: Seat, second: Seat, rules: Rules, games: int, seed: Sequence[int]) -> tuple[Array, Array]:
    """Payoffs per round of both players and their standard errors."""
    if isinstance(first, MemoryOneSeat) and isinstance(second, MemoryOneSeat):
        exact = [policy_values(a.probs, b.probs[None], rules)[0] for a, b in ((first, second), (second, first))]
        return np.array(exact) / rules.expected_rounds, np.zeros(2)
    played = play_games(first, second, rules, games, seed)
    each = np.stack([played.per_round(), played.per_round(second=True)])  # [2, G]
    error = each.std(axis=1, ddof=1) / np.sqrt(games) if games > 1 else np.full(2, np.nan)
    return each.mean(axis=1), error
