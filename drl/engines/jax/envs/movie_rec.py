"""MovieRec-v1: keep a viewer watching. The rules are the tables of `drl.games.movie_rec.movie_rec_rules`."""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.jax.envs.jax_env import Moved, Noise, rounded_up, uniform_noise
from drl.games.movie_rec.movie_rec_rules import CHURN_TENTHS, MovieRecRules


class Session(NamedTuple):
    """Integers, as in the NumPy versions."""

    persona: jax.Array  # [N] int32, hidden
    counts: jax.Array  # [N, G + 2] int32: fifths of satisfaction per genre, tenths of fatigue, steps


@dataclass(frozen=True)
class MovieRec:
    """One random number per reset for the persona, one per step for the click. NumPy gives the same episodes."""

    rules: MovieRecRules = field(default_factory=MovieRecRules)

    @property
    def obs_spec(self) -> ObsSpec:
        return ObsSpec("box", box_shape=self.rules.scale.shape)

    @property
    def action_spec(self) -> ActionSpec:
        return ActionSpec("discrete", sizes=(len(self.rules.catalogue),))

    @property
    def max_steps(self) -> int:
        return self.rules.max_session_length

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        return uniform_noise(key, shape, reset=1, step=1)

    def reset(self, noise: jax.Array) -> Session:
        personas = len(self.rules.personas)
        bounds = rounded_up(np.arange(1, personas) / personas)
        persona = (noise >= bounds).sum(axis=1, dtype=jnp.int32)
        return Session(persona, jnp.zeros((len(noise), len(self.rules.scale)), jnp.int32))

    def observe(self, state: Session) -> jax.Array:
        scale = self.rules.scale  # XLA multiplies by 1 / scale instead: the last bit may differ from NumPy's division
        return jnp.minimum(state.counts, scale).astype(jnp.float32) / scale.astype(np.float32)

    def step(self, state: Session, action: jax.Array, noise: jax.Array) -> Moved:
        rules, fatigue = self.rules, state.counts[:, -2]
        click_prob = jnp.asarray(rounded_up(rules.click_prob))[state.persona, action, fatigue]
        clicked = noise[:, 0] < click_prob
        outcome = clicked.astype(jnp.int32), fatigue
        reward = jnp.asarray(rules.reward, jnp.float32)[outcome]
        fatigue = jnp.asarray(rules.fatigue_after, jnp.int32)[outcome]
        satisfied = state.counts[:, :-2] + jnp.where(clicked[:, None], jnp.asarray(rules.membership)[action], 0)
        steps = state.counts[:, -1] + 1
        counts = jnp.concatenate([satisfied, fatigue[:, None], steps[:, None]], axis=1)
        churned = fatigue >= CHURN_TENTHS
        stayed = (steps >= rules.max_session_length) & ~churned
        return Moved(Session(state.persona, counts), reward, churned, stayed, success=stayed)
