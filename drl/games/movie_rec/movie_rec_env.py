"""MovieRec as a Gymnasium environment: single, and N environments in one NumPy program; their pictures."""

import colorsys
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from drl.core.specs import Array
from drl.core.state_files import StateDict
from drl.games.canvas import AMBER, GREEN, GREY, GROOVE, NIGHT, PANEL, RED, WHITE, Canvas, Color
from drl.games.env_forms import RENDER_MODES, Info, SingleForm, Step, UniformStreams, VectorForm, VectorStep, masked
from drl.games.movie_rec.movie_rec_rules import (
    CATALOGUE,
    CHURN_TENTHS,
    PERSONAS,
    MovieRecRules,
    Persona,
    as_personas,
    observe,
)

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


class MovieRecEnv(SingleForm):
    """One episode is one session with one viewer, whose persona is hidden. Each step recommends one movie.

    Observation: satisfaction per genre, fatigue, elapsed share of the session; all in [0, 1]. An episode uses one
    uniform draw for the persona, then one per step: the viewer clicks if it is below the click probability.

    >>> env = MovieRecEnv(render_mode="ansi")
    >>> obs, info = env.reset(seed=1)
    >>> obs, reward, terminated, truncated, info = env.step(6)
    >>> print(env.render())
    step  1/20  romance_lover  movie  6  Romance, Drama       no click  p 0.90  fatigue 0.2  reward  -0.2
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 2}  # noqa: RUF012  (Gymnasium's own convention)

    def __init__(
        self,
        catalogue: Sequence[Sequence[str]] = CATALOGUE,
        personas: Sequence[Persona] | Mapping[str, Mapping[str, Sequence[str]]] = PERSONAS,
        reward_click: float = 1.0,
        reward_no_click: float = -0.2,
        reward_churn: float = -10.0,
        max_session_length: int = 20,
        render_mode: str | None = None,
    ):
        self.rules: MovieRecRules = MovieRecRules(
            catalogue, as_personas(personas), reward_click, reward_no_click, reward_churn, max_session_length
        )
        super().__init__(self.rules.scale.shape, len(self.rules.catalogue), render_mode)
        self._counts = np.zeros_like(self.rules.scale)  # fifths per genre, tenths of fatigue, steps
        self._fatigue = 0  # tenths
        self._step = 0
        self._persona = 0
        self._moments: list[Moment] = []  # steps of this session, only for rendering

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self._persona = int(self.rules.persona_of(self.np_random.random()))
        self._counts[:] = 0
        self._fatigue, self._step, self._over = 0, 0, False
        self._moments.clear()
        return observe(self._counts, self.rules.scale), {"user_persona": self._name, "fatigue": 0.0}

    def step(self, action: SupportsIndex) -> Step:
        rules = self.rules
        movie = self._checked(action, f"no movie; expected a whole number 0–{len(rules.catalogue) - 1}")
        click_prob = float(rules.click_prob[self._persona, movie, self._fatigue])
        clicked = bool(self.np_random.random() < click_prob)
        reward = float(rules.reward[int(clicked), self._fatigue])
        self._fatigue = int(rules.fatigue_after[int(clicked), self._fatigue])
        self._step += 1
        if clicked:
            self._counts[:-2] += rules.membership[movie]
        self._counts[-2:] = self._fatigue, self._step
        churned = self._fatigue >= CHURN_TENTHS
        truncated = self._step >= rules.max_session_length and not churned
        self._over = churned or truncated
        info: Info = {
            "user_persona": self._name,
            "is_clicked": clicked,
            "click_prob": click_prob,
            "fatigue": self._fatigue / CHURN_TENTHS,
            "recommended_movie": movie,
            "churned": churned,
        }
        if self._over:
            info["is_success"] = truncated  # the viewer stayed to the end
        if self.render_mode is not None:
            self._moments.append(Moment(movie, clicked, click_prob, self._fatigue, reward))
        return observe(self._counts, rules.scale), reward, churned, truncated, info

    def _describe(self) -> str:
        return describe(self.rules, self._name, self._moments)

    def _draw(self) -> Array:
        return draw_card(self.rules, self._name, self._moments)

    @property
    def _name(self) -> str:
        return self.rules.personas[self._persona].name


class MovieRecVectorEnv(VectorForm):
    """N sessions at once; see `VectorForm`.

    >>> env = MovieRecVectorEnv(num_envs=2)
    >>> obs, infos = env.reset(seed=1)
    >>> obs.shape, infos["user_persona"].tolist()
    ((2, 17), ['romance_lover', 'action_fan'])
    """

    def __init__(
        self,
        num_envs: int = 1,
        catalogue: Sequence[Sequence[str]] = CATALOGUE,
        personas: Sequence[Persona] | Mapping[str, Mapping[str, Sequence[str]]] = PERSONAS,
        reward_click: float = 1.0,
        reward_no_click: float = -0.2,
        reward_churn: float = -10.0,
        max_session_length: int = 20,
        render_mode: str | None = None,
    ):
        self.rules: MovieRecRules = MovieRecRules(
            catalogue, as_personas(personas), reward_click, reward_no_click, reward_churn, max_session_length
        )
        rules = self.rules
        super().__init__(num_envs, rules.scale.shape, len(rules.catalogue), render_mode)
        self._names = np.array([persona.name for persona in rules.personas], object)
        # What a step adds to the counts: one step and the genres of the clicked movie. The last row is a miss.
        movies, genres = rules.membership.shape
        self._gain = np.zeros((movies + 1, genres + 2), np.int32)
        self._gain[:movies, :genres], self._gain[:, -1] = rules.membership, 1
        # One row per environment: NumPy is several times faster on equal shapes than with broadcasting.
        self._scale = np.tile(rules.scale, (num_envs, 1))
        self._counts = np.zeros_like(self._scale)  # fifths per genre, tenths of fatigue, steps
        self._fatigue = np.zeros(num_envs, np.int64)  # tenths again, as an index into the tables
        self._persona = np.zeros(num_envs, np.int64)
        # Names; replaced, never changed in place, because infos refer to it.
        self._viewer = np.full(num_envs, None, object)

    def step(self, actions: Array) -> VectorStep:
        rules, movies, streams = self.rules, len(self.rules.catalogue), self._started()
        movie = self._checked(actions, f"whole numbers 0–{movies - 1}")
        # `take` with a flat index is much faster than indexing by several arrays.
        click_prob = rules.click_prob.take((self._persona * movies + movie) * CHURN_TENTHS + self._fatigue)
        clicked = streams.draw_all() < click_prob
        outcome = clicked * CHURN_TENTHS + self._fatigue
        reward = rules.reward.take(outcome)
        self._fatigue = rules.fatigue_after.take(outcome)
        self._counts += self._gain.take(np.where(clicked, movie, movies), axis=0)
        self._counts[:, -2] = self._fatigue
        churned = self._fatigue >= CHURN_TENTHS
        truncated = (self._counts[:, -1] >= rules.max_session_length) & ~churned
        ended = churned | truncated
        obs = self._observed()
        info: Info = {
            "user_persona": self._viewer,
            "is_clicked": clicked,
            "click_prob": click_prob,
            "fatigue": self._fatigue / CHURN_TENTHS,
            "recommended_movie": movie,
            "churned": churned,
        }
        if not ended.any():
            return obs, reward, churned, truncated, masked(info, self._everywhere)
        infos = self._restart(ended, info, obs, info | {"is_success": truncated})
        first_obs = obs.copy()
        first_obs[ended] = 0.0
        return first_obs, reward, churned, truncated, infos

    def state_dict(self) -> StateDict:
        return (super().state_dict() or {}) | {"counts": self._counts.copy(), "persona": self._persona.copy()}

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self._counts[:], self._persona[:] = state["counts"], state["persona"]
        self._fatigue = self._counts[:, -2].astype(np.int64)
        self._viewer = self._names[self._persona]

    def _begin(self, streams: UniformStreams, indices: Array) -> None:
        persona = self.rules.persona_of(streams.draw(indices))
        self._persona[indices], self._fatigue[indices], self._counts[indices] = persona, 0, 0
        self._viewer = self._viewer.copy()
        self._viewer[indices] = self._names[persona]

    def _first_info(self) -> Info:
        return {"user_persona": self._viewer, "fatigue": self._fatigue / CHURN_TENTHS}

    def _observed(self) -> Array:
        return observe(self._counts, self._scale)


def describe(rules: MovieRecRules, persona: str, moments: Sequence[Moment]) -> str:
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


def draw_card(rules: MovieRecRules, persona: str, moments: Sequence[Moment]) -> Array:
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


def _draw_movie(canvas: Canvas, rules: MovieRecRules, last: Moment) -> None:
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


def _draw_session(canvas: Canvas, rules: MovieRecRules, moments: Sequence[Moment]) -> None:
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


def _genre_color(rules: MovieRecRules, genre: str) -> Color:
    """Light colors, evenly spaced in hue, so that every genre has its own."""
    hue = rules.genres.index(genre) / len(rules.genres)
    red, green, blue = colorsys.hls_to_rgb(hue, 0.70, 0.62)
    return int(255 * red), int(255 * green), int(255 * blue)
