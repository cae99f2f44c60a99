"""IteratedPrisonersDilemma-v0 against a pool of memory-1 opponents, with the rules and opponents of
`drl.games.ipd`."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.jax.envs.jax_env import Moved, Noise, out_of_time, rounded_up, uniform_noise
from drl.games.ipd.ipd_rules import OTHER_SIDE, STATES, Rules, outcome_of
from drl.games.ipd.opponents import Pool


class Game(NamedTuple):
    """State of N environments."""

    opponent: jax.Array  # [N] int32, hidden
    recent: jax.Array  # [N, history] int8: the last rounds, oldest first; 0 is empty, 1 + o an outcome
    steps: jax.Array  # [N] int32


@dataclass(frozen=True)
class PrisonersDilemma:
    """One random number per reset for the opponent; per round one for its move and, with `survival`, one for the end.

    Equal random numbers give equal games in NumPy. Make one with `against`; a Pool itself is not hashable by content.
    """

    rules: Rules
    cooperation: tuple[tuple[float, ...], ...]  # [K][5] of each opponent in each state, seen from the agent's side
    reach: tuple[float, ...]  # [K − 1] cumulative weights: opponent k plays for random numbers up to here

    @property
    def obs_spec(self) -> ObsSpec:
        return ObsSpec("box", box_shape=(self.rules.history, len(STATES)))

    @property
    def action_spec(self) -> ActionSpec:
        return ActionSpec("discrete", sizes=(2,))

    @property
    def max_steps(self) -> int | None:
        return self.rules.rounds

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        return uniform_noise(key, shape, reset=1, step=1 if self.rules.survival is None else 2)

    def reset(self, noise: jax.Array) -> Game:
        number = len(noise)
        opponent = (noise >= rounded_up(self.reach)).sum(axis=1, dtype=jnp.int32)
        return Game(opponent, jnp.zeros((number, self.rules.history), jnp.int8), jnp.zeros(number, jnp.int32))

    def observe(self, state: Game) -> jax.Array:
        return (state.recent[:, :, None] == np.arange(len(STATES), dtype=np.int8)).astype(jnp.float32)

    def step(self, state: Game, action: jax.Array, noise: jax.Array) -> Moved:
        rules, last = self.rules, state.recent[:, -1].astype(jnp.int32)
        cooperates = noise[:, 0] < jnp.asarray(rounded_up(self.cooperation))[state.opponent, last]
        outcome = outcome_of(action, cooperates.astype(jnp.int32))
        reward = jnp.asarray(rules.payoffs, jnp.float32)[outcome]
        recent = jnp.concatenate([state.recent[:, 1:], (1 + outcome).astype(jnp.int8)[:, None]], axis=1)
        after = Game(state.opponent, recent, state.steps + 1)
        over = jnp.zeros(last.shape, bool) if rules.survival is None else noise[:, 1] >= rounded_up(rules.survival)
        return Moved(after, reward, over, out_of_time(after.steps, rules.rounds))


def against(pool: Pool, rules: Rules) -> PrisonersDilemma:
    """The game against a pool of memory-1 opponents."""
    for name, strategy in zip(pool.names, pool.strategies, strict=True):
        if strategy is not None:
            raise BadInput(
                f"opponent {name!r} of the axelrod package cannot be compiled; step this environment in NumPy"
            )
    cooperation = tuple(map(tuple, pool.probs[:, OTHER_SIDE].tolist()))
    return PrisonersDilemma(rules, cooperation, tuple(np.cumsum(pool.weights)[:-1].tolist()))
