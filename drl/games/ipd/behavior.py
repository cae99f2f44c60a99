"""How a player behaves against each opponent of a pool, and how close it is to the best reply."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drl.core.specs import Array
from drl.games.ipd.exact_values import best_response
from drl.games.ipd.games import AgentSeat, Player, Seat, play_games, seat_for
from drl.games.ipd.ipd_rules import STATES, Rules
from drl.games.ipd.opponents import Opponents, Pool, as_pool


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
