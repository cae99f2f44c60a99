"""MovieRec as a single Gymnasium environment."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.games.movie_rec.movie_rec_rules import CATALOGUE, CHURN_TENTHS, PERSONAS, Persona, Rules, as_personas, observe
from drl.games.movie_rec.session_card import Moment, describe, draw_card
from drl.games.random_streams import Info

RENDER_MODES = ("ansi", "rgb_array")


class MovieRecEnv(gym.Env[Array, np.int64]):
    """One episode is one session with one viewer, whose persona is hidden. Each step recommends one movie.

    Observation: satisfaction per genre, fatigue, elapsed share of the session; all in [0, 1]. An episode takes one
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
        if render_mode not in (None, *RENDER_MODES):
            raise BadInput(f"render_mode = {render_mode!r}; expected one of {', '.join(RENDER_MODES)} or None")
        self.rules: Rules = Rules(
            catalogue, as_personas(personas), reward_click, reward_no_click, reward_churn, max_session_length
        )
        self.render_mode = render_mode
        self.observation_space: spaces.Box = spaces.Box(0.0, 1.0, self.rules.scale.shape, np.float32)
        self.action_space: spaces.Discrete[np.int64] = spaces.Discrete(len(self.rules.catalogue))
        self._counts = np.zeros_like(self.rules.scale)  # fifths per genre, tenths of fatigue, steps
        self._fatigue = 0  # tenths
        self._step = 0
        self._persona = 0
        self._over = True  # no session is running
        self._moments: list[Moment] = []  # steps of this session, kept only for rendering

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self._persona = int(self.rules.persona_of(self.np_random.random()))
        self._counts[:] = 0
        self._fatigue, self._step, self._over = 0, 0, False
        self._moments.clear()
        return observe(self._counts, self.rules.scale), {"user_persona": self._name, "fatigue": 0.0}

    def step(self, action: SupportsIndex) -> tuple[Array, float, bool, bool, Info]:
        rules = self.rules
        movie = self._checked(action)
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

    def render(self) -> str | Array:
        """The last step as a line of text (`ansi`) or a picture (`rgb_array`)."""
        if self.render_mode is None:
            raise BadInput(f"this environment was made without a render_mode; pass one of {', '.join(RENDER_MODES)}")
        show = describe if self.render_mode == "ansi" else draw_card
        return show(self.rules, self._name, self._moments)

    @property
    def _name(self) -> str:
        return self.rules.personas[self._persona].name

    def _checked(self, action: SupportsIndex) -> int:
        if self._over:
            raise BadInput("step() without a running session; call reset() first")
        try:
            movie = operator.index(action)
        except TypeError:
            movie = -1
        if not 0 <= movie < len(self.rules.catalogue):
            raise BadInput(f"action {action!r} is no movie; expected a whole number 0–{len(self.rules.catalogue) - 1}")
        return movie
