"""drl/LegalMoves-v0 in JAX: an environment with illegal actions. An illegal one costs 100, since nothing can raise."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.jax.envs.jax_env import Moved, Noise, uniform_noise
from drl.games.probes import LEGAL_MOVES, LENGTH


class LegalMovesState(NamedTuple):
    """State of N environments."""

    legal: jax.Array  # [N, 4] bool
    steps: jax.Array  # [N] int32


@dataclass(frozen=True)
class LegalMoves:
    """An instance is a constant to the compiler."""

    max_steps: int | None = LENGTH

    @property
    def obs_spec(self) -> ObsSpec:
        return ObsSpec("box", box_shape=(1,))

    @property
    def action_spec(self) -> ActionSpec:
        return ActionSpec("discrete", sizes=(LEGAL_MOVES,))

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        return uniform_noise(key, shape, reset=LEGAL_MOVES + 1, step=LEGAL_MOVES + 1)

    def reset(self, noise: jax.Array) -> LegalMovesState:
        return LegalMovesState(_legal(noise), jnp.zeros(len(noise), jnp.int32))

    def observe(self, state: LegalMovesState) -> jax.Array:
        return jnp.ones((len(state.steps), 1))

    def action_mask(self, state: LegalMovesState) -> jax.Array:
        """[N, 4] bool: legal actions."""
        return state.legal

    def step(self, state: LegalMovesState, action: jax.Array, noise: jax.Array) -> Moved:
        chosen = jnp.take_along_axis(state.legal, action[:, None], axis=1)[:, 0]
        after = LegalMovesState(_legal(noise), state.steps + 1)
        reward = jnp.where(chosen, action / 3.0, -100.0)
        return Moved(after, reward, after.steps == LENGTH, jnp.zeros(len(action), bool))


def _legal(uniform: jax.Array) -> jax.Array:
    """Each action by a coin, and one of them for certain."""
    certain = jnp.arange(LEGAL_MOVES) == jnp.int32(uniform[:, LEGAL_MOVES:] * LEGAL_MOVES)
    return (uniform[:, :LEGAL_MOVES] < 0.5) | certain
