"""MovieRec for N environments in one NumPy program."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.core.state_files import StateDict
from drl.games.movie_rec.movie_rec_rules import CATALOGUE, CHURN_TENTHS, PERSONAS, Persona, Rules, as_personas, observe
from drl.games.random_streams import Info, UniformStreams, masked, streams_for


class MovieRecVectorEnv(VectorEnv[Array, Array, Array]):
    """N sessions at once. A session restarts in the step that ends it (SAME_STEP).

    Environment i equals `MovieRecEnv` with seed `seed + i` (or `seed[i]` of a list), whatever N is. Where an episode
    ended, `infos["final_obs"]` and `infos["final_info"]` hold its last observation and info.

    >>> env = MovieRecVectorEnv(num_envs=2)
    >>> obs, infos = env.reset(seed=1)
    >>> obs.shape, infos["user_persona"].tolist()
    ((2, 17), ['romance_lover', 'action_fan'])
    """

    rules: Rules

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

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
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
            raise BadInput(f"num_envs = {num_envs!r}; expected a whole number, 1 or more")
        if render_mode is not None:
            raise BadInput(f"the vector form draws nothing (render_mode = {render_mode!r}); use MovieRecEnv to render")
        self.rules = rules = Rules(
            catalogue, as_personas(personas), reward_click, reward_no_click, reward_churn, max_session_length
        )
        self.num_envs: int = num_envs
        self.render_mode: str | None = None
        self.single_observation_space: spaces.Box = spaces.Box(0.0, 1.0, rules.scale.shape, np.float32)
        self.single_action_space: spaces.Discrete[np.int64] = spaces.Discrete(len(rules.catalogue))
        self.observation_space: spaces.Space[Array] = batch_space(self.single_observation_space, num_envs)
        self.action_space: spaces.Space[Array] = batch_space(self.single_action_space, num_envs)
        self._names = np.array([persona.name for persona in rules.personas], object)
        # What a step adds to the counts: one step and the genres of the clicked movie. The last row is a miss.
        movies, genres = rules.membership.shape
        self._gain = np.zeros((movies + 1, genres + 2), np.int32)
        self._gain[:movies, :genres], self._gain[:, -1] = rules.membership, 1
        self._streams: UniformStreams | None = None
        self._everywhere = np.ones(num_envs, bool)
        self._everywhere.flags.writeable = False  # returned as a mask by every step
        # One row per environment: NumPy is several times faster on equal shapes than with broadcasting.
        self._scale = np.tile(rules.scale, (num_envs, 1))
        self._counts = np.zeros_like(self._scale)  # fifths per genre, tenths of fatigue, steps
        self._fatigue = np.zeros(num_envs, np.int64)  # tenths again, as an index into the tables
        self._persona = np.zeros(num_envs, np.int64)
        self._viewer = np.full(
            num_envs, None, object
        )  # names; replaced, never changed in place, because infos refer to it

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, Info]:
        if seed is not None or self._streams is None:
            self._streams = streams_for(seed, self.num_envs)
        self._begin(np.arange(self.num_envs))
        return observe(self._counts, self._scale), masked(self._first_info(), self._everywhere)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, Info]:
        rules, movies = self.rules, len(self.rules.catalogue)
        movie = self._checked(actions)
        assert self._streams is not None
        # `take` with a flat index is much faster than indexing by several arrays.
        click_prob = rules.click_prob.take((self._persona * movies + movie) * CHURN_TENTHS + self._fatigue)
        clicked = self._streams.draw_all() < click_prob
        outcome = clicked * CHURN_TENTHS + self._fatigue
        reward = rules.reward.take(outcome)
        self._fatigue = rules.fatigue_after.take(outcome)
        self._counts += self._gain.take(np.where(clicked, movie, movies), axis=0)
        self._counts[:, -2] = self._fatigue
        churned = self._fatigue >= CHURN_TENTHS
        truncated = (self._counts[:, -1] >= rules.max_session_length) & ~churned
        ended = churned | truncated
        obs = observe(self._counts, self._scale)
        info = {
            "user_persona": self._viewer,
            "is_clicked": clicked,
            "click_prob": click_prob,
            "fatigue": self._fatigue / CHURN_TENTHS,
            "recommended_movie": movie,
            "churned": churned,
        }
        if not ended.any():
            return obs, reward, churned, truncated, masked(info, self._everywhere)
        final_info = masked(info | {"is_success": truncated}, ended)
        infos = masked({"final_obs": obs, "final_info": final_info}, ended) | masked(info, ~ended)
        indices = np.flatnonzero(ended)
        self._begin(indices)
        first_obs = obs.copy()
        first_obs[indices] = 0.0
        return first_obs, reward, churned, truncated, infos | masked(self._first_info(), self._everywhere)

    def state_dict(self) -> StateDict:
        streams = None if self._streams is None else self._streams.state_dict()
        return {"streams": streams, "counts": self._counts.copy(), "persona": self._persona.copy()}

    def load_state_dict(self, state: StateDict) -> None:
        if state["streams"] is not None:
            self._streams = streams_for(0, self.num_envs)
            self._streams.load_state_dict(state["streams"])
        self._counts[:], self._persona[:] = state["counts"], state["persona"]
        self._fatigue = self._counts[:, -2].astype(np.int64)
        self._viewer = self._names[self._persona]

    def _begin(self, indices: Array) -> None:
        assert self._streams is not None
        persona = self.rules.persona_of(self._streams.draw(indices))
        self._persona[indices], self._fatigue[indices], self._counts[indices] = persona, 0, 0
        self._viewer = self._viewer.copy()
        self._viewer[indices] = self._names[persona]

    def _first_info(self) -> Info:
        return {"user_persona": self._viewer, "fatigue": self._fatigue / CHURN_TENTHS}

    def _checked(self, actions: Array) -> Array:
        if self._streams is None:
            raise BadInput("step() before the first reset(); call reset() once")
        movie = np.array(actions)  # a copy, because infos refer to it
        movies = len(self.rules.catalogue)
        if movie.shape != (self.num_envs,) or movie.dtype.kind not in "iu":
            raise BadInput(f"actions = {actions!r}; expected {self.num_envs} whole numbers 0–{movies - 1}")
        if (movie.astype(np.uint64) >= movies).any():  # a negative number wraps to a huge one
            raise BadInput(f"actions = {actions!r}; expected only whole numbers 0–{movies - 1}")
        return movie.astype(np.int64, copy=False)
