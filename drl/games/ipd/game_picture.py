"""A game as a line of text and as a picture."""

from collections.abc import Sequence

import numpy as np

from drl.core.specs import Array
from drl.games.canvas import AMBER, GREEN, GREY, GROOVE, NIGHT, PANEL, RED, WHITE, Canvas
from drl.games.ipd.ipd_rules import OUTCOMES, Rules

STRIP = 40  # rounds of the text strip: the last ones
COLUMNS = 32  # rounds of the picture: the last ones
WIDTH, HEIGHT = 640, 288  # multiples of 16, for video encoders
MOVE_COLORS = {"C": GREEN, "D": RED}


def describe(rules: Rules, opponent: str, outcomes: Sequence[int]) -> str:
    """Both players' moves as strips of letters, the last outcome and the running total."""
    head = f"round {len(outcomes)}  {opponent}  "
    if not outcomes:
        return head + "the game begins"
    shown = [OUTCOMES[outcome] for outcome in outcomes[-STRIP:]]
    more = "…" if len(outcomes) > STRIP else ""
    agent, other = ("".join(moves) for moves in zip(*shown, strict=True))
    total = sum(rules.payoffs[outcome] for outcome in outcomes)
    reward = rules.payoffs[outcomes[-1]]
    return f"{head}agent {more}{agent}  opponent {more}{other}  {shown[-1]}  reward {reward:+.1f}  total {total:.1f}"


def draw_game(rules: Rules, opponent: str, outcomes: Sequence[int]) -> Array:
    """The last rounds, one column each, and the running score: uint8 [HEIGHT, WIDTH, 3]."""
    canvas = Canvas(WIDTH, HEIGHT)
    canvas.box((0, 0, WIDTH, HEIGHT), NIGHT)
    canvas.text((24, 16), "Prisoner's Dilemma", 22, WHITE)
    canvas.text((WIDTH - 24, 20), f"opponent  {opponent}", 17, GREY, right=True)
    canvas.text((24, 68), "agent", 15, GREY)
    canvas.text((24, 96), "opponent", 15, GREY)
    first = max(len(outcomes) - COLUMNS, 0)
    wide = (WIDTH - 24 - 112) / COLUMNS
    for column in range(COLUMNS):
        left = 112 + column * wide
        moves = OUTCOMES[outcomes[first + column]] if first + column < len(outcomes) else None
        for row in (0, 1):
            color = GROOVE if moves is None else MOVE_COLORS[moves[row]]
            canvas.box((left, 64 + 28 * row, wide - 3, 24), color, 4)
    _draw_score(canvas, rules, outcomes, first, wide)
    return canvas.pixels()


def _draw_score(canvas: Canvas, rules: Rules, outcomes: Sequence[int], first: int, wide: float) -> None:
    """Mean payoff per round so far, as a curve over the columns above it."""
    top, tall = 136, 104
    canvas.box((112, top, WIDTH - 24 - 112, tall), PANEL, 8)
    low, high = min(rules.payoffs), max(rules.payoffs)
    canvas.text((24, top), "payoff", 15, GREY)
    canvas.text((24, top + 20), "per round", 15, GREY)
    payoffs = np.array([rules.payoffs[outcome] for outcome in outcomes])
    if len(outcomes):
        mean = np.cumsum(payoffs) / np.arange(1, len(payoffs) + 1)
        share = (mean[first:] - low) / ((high - low) or 1.0)
        x = 112 + (np.arange(len(share)) + 0.5) * wide
        canvas.curve(x, top + tall - 8 - share * (tall - 16), AMBER)
        rounds = f"{len(outcomes)} round{'' if len(outcomes) == 1 else 's'}"
        canvas.text((24, 254), f"{rounds}, last {OUTCOMES[outcomes[-1]]}", 17, WHITE)
        canvas.text((WIDTH - 24, 254), f"{mean[-1]:.2f} per round, total {payoffs.sum():.1f}", 17, WHITE, right=True)
    else:
        canvas.text((24, 254), "The game begins", 17, WHITE)
