"""A session as a line of text and as a picture (about 10 ms)."""

import colorsys
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from drl.core.specs import Array
from drl.games.canvas import AMBER, GREEN, GREY, GROOVE, NIGHT, PANEL, RED, WHITE, Canvas, Color
from drl.games.movie_rec.movie_rec_rules import CHURN_TENTHS, Rules

WIDTH, HEIGHT = 640, 400  # multiples of 16, for video encoders
MOST_CELLS = 60  # a session longer than this gets a plain bar


class Moment(NamedTuple):
    """The result of one step."""

    movie: int
    clicked: bool
    click_prob: float
    fatigue: int  # tenths, after the step
    reward: float

    @property
    def churned(self) -> bool:
        """Whether the user has left."""
        return self.fatigue >= CHURN_TENTHS


def describe(rules: Rules, persona: str, moments: Sequence[Moment]) -> str:
    """The last step in one line. Columns fit the widest entry of these rules, so lines align."""
    width = len(str(rules.max_session_length))
    head = f"step {len(moments):{width}}/{rules.max_session_length}  "
    head += f"{persona:{max(len(p.name) for p in rules.personas)}}  "
    if not moments:
        return head + "the session begins"
    last = moments[-1]
    genres = ", ".join(rules.catalogue[last.movie])
    widest = max(len(", ".join(movie)) for movie in rules.catalogue)
    verdict = "churned" if last.churned else "click" if last.clicked else "no click"
    return (
        f"{head}movie {last.movie:{len(str(len(rules.catalogue) - 1))}}  {genres:{widest}}  {verdict:8}  "
        f"p {last.click_prob:.2f}  fatigue {last.fatigue / CHURN_TENTHS:.1f}  reward {last.reward:+5.1f}"
    )


def draw_card(rules: Rules, persona: str, moments: Sequence[Moment]) -> Array:
    """The last step and the session so far as a picture: uint8 [HEIGHT, WIDTH, 3]."""
    canvas = Canvas(WIDTH, HEIGHT)
    canvas.box((0, 0, WIDTH, HEIGHT), NIGHT, 0)
    canvas.text((24, 18), "MovieRec", 22, WHITE)
    canvas.text((WIDTH - 24, 20), f"viewer  {persona}", 17, GREY, right=True)
    canvas.box((24, 56, WIDTH - 48, 200), PANEL, 14)
    if moments:
        _draw_movie(canvas, rules, moments[-1])
    else:
        canvas.text((WIDTH // 2, 142), "The session begins", 26, WHITE, center=True)
    _draw_fatigue(canvas, moments[-1].fatigue if moments else 0)
    _draw_session(canvas, rules, moments)
    return canvas.pixels()


def _draw_movie(canvas: Canvas, rules: Rules, last: Moment) -> None:
    genres = rules.catalogue[last.movie]
    colors = [_genre_color(rules, genre) for genre in genres]
    canvas.poster((44, 76, 116, 160), colors[0], colors[-1])
    canvas.text((102, 134), str(last.movie), 52, WHITE, center=True)
    canvas.text((186, 78), f"Movie {last.movie}", 28, WHITE)
    left = 186.0
    for genre, color in zip(genres, colors, strict=True):
        wide = canvas.measure(genre, 15) + 22
        if left + wide > WIDTH - 40:
            break  # a custom movie may have more genres than fit
        canvas.box((left, 120, wide, 28), color, 14)
        canvas.text((left + 11, 127), genre, 15, NIGHT)
        left += wide + 8
    verdict, color = _verdict(last)
    wide = canvas.measure(verdict, 22) + 36
    canvas.box((186, 176, wide, 46), color, 12)
    canvas.text((186 + wide // 2, 190), verdict, 22, NIGHT, center=True)
    canvas.text((186 + wide + 18, 181), f"reward {last.reward:+.1f}", 17, WHITE)
    canvas.text((186 + wide + 18, 203), f"click chance {last.click_prob:.0%}", 15, GREY)


def _verdict(moment: Moment) -> tuple[str, Color]:
    if moment.churned:
        return "VIEWER LEFT", RED
    return ("CLICKED", GREEN) if moment.clicked else ("NO CLICK", AMBER)


def _draw_fatigue(canvas: Canvas, tenths: int) -> None:
    canvas.text((24, 280), "Fatigue", 17, GREY)
    canvas.text((WIDTH - 24, 280), f"{tenths / CHURN_TENTHS:.1f}", 17, WHITE, right=True)
    full, share = WIDTH - 194, min(tenths / CHURN_TENTHS, 1.0)
    canvas.box((120, 278, full, 20), GROOVE, 10)
    if tenths:
        canvas.box(
            (120, 278, max(20, round(share * full)), 20), GREEN if share < 0.4 else AMBER if share < 0.7 else RED, 10
        )


def _draw_session(canvas: Canvas, rules: Rules, moments: Sequence[Moment]) -> None:
    length, taken = rules.max_session_length, len(moments)
    canvas.text((24, 320), "Session", 17, GREY)
    canvas.text((WIDTH - 24, 320), f"{taken}/{length}", 17, WHITE, right=True)
    full = WIDTH - 194
    if length > MOST_CELLS:
        canvas.box((120, 318, full, 20), GROOVE, 10)
        if taken:
            canvas.box((120, 318, max(20, round(full * taken / length)), 20), GREEN, 10)
    else:
        edges = np.linspace(120, 120 + full + 3, length + 1)
        for i, (left, right) in enumerate(itertools.pairwise(edges)):
            color = _verdict(moments[i])[1] if i < taken else GROOVE
            canvas.box((left, 318, right - left - 3, 20), color, 4)
    total = sum(moment.reward for moment in moments)
    clicks = sum(moment.clicked for moment in moments)
    canvas.text((120, 356), f"{clicks} click{'' if clicks == 1 else 's'}", 17, GREY)
    canvas.text((WIDTH - 24, 356), f"return {total:+.1f}", 17, WHITE, right=True)


def _genre_color(rules: Rules, genre: str) -> Color:
    """Light colors, evenly spaced in hue, so that every genre has its own."""
    hue = rules.genres.index(genre) / len(rules.genres)
    red, green, blue = colorsys.hls_to_rgb(hue, 0.70, 0.62)
    return int(255 * red), int(255 * green), int(255 * blue)
