"""Our own environments in JAX, on the rules and tables of `drl.games`: MovieRec, the Prisoner's Dilemma, and the probes
BitFlip (goals) and LegalMoves (masks)."""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.jax.envs.jax_env import EnvStep, Noise, out_of_time, rounded_up, uniform_noise
from drl.games.ipd.ipd_rules import OTHER_SIDE, STATES, outcome_of
from drl.games.ipd.ipd_rules import Rules as DilemmaRules
from drl.games.ipd.opponents import Pool
from drl.games.movie_rec.movie_rec_rules import CHURN_TENTHS, MovieRecRules
from drl.games.probes import LEGAL_MOVES, LENGTH, check_bits, draws_per_episode, goal_reward, is_reached, start_and_goal


class MovieRecState(NamedTuple):
    """Integers, as in the NumPy versions."""

    persona: jax.Array  # [N] int32, hidden
    counts: jax.Array  # [N, G + 2] int32: fifths of satisfaction per genre, tenths of fatigue, steps


@dataclass(frozen=True)
class MovieRec:
    """MovieRec-v1: keep a viewer watching. One random number per reset for the persona, one per step for the click.
    NumPy gives the same episodes."""

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

    def reset(self, noise: jax.Array) -> MovieRecState:
        personas = len(self.rules.personas)
        bounds = rounded_up(np.arange(1, personas) / personas)
        persona = (noise >= bounds).sum(axis=1, dtype=jnp.int32)
        return MovieRecState(persona, jnp.zeros((len(noise), len(self.rules.scale)), jnp.int32))

    def observe(self, state: MovieRecState) -> jax.Array:
        scale = self.rules.scale  # XLA multiplies by 1 / scale instead: the last bit may differ from NumPy's division
        return jnp.minimum(state.counts, scale).astype(jnp.float32) / scale.astype(np.float32)

    def step(self, state: MovieRecState, action: jax.Array, noise: jax.Array) -> EnvStep:
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
        return EnvStep(MovieRecState(state.persona, counts), reward, churned, stayed, success=stayed)


class DilemmaState(NamedTuple):
    """State of N environments."""

    opponent: jax.Array  # [N] int32, hidden
    recent: jax.Array  # [N, history] int8: the last rounds, oldest first; 0 is empty, 1 + o an outcome
    steps: jax.Array  # [N] int32


@dataclass(frozen=True)
class PrisonersDilemma:
    """IteratedPrisonersDilemma-v0 against a pool of memory-1 opponents. One random number per reset for the opponent;
    per round one for its move and, with `survival`, one for the end.

    Equal random numbers give equal games in NumPy. Make one with `against`; a Pool itself is not hashable by content.
    """

    rules: DilemmaRules
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

    def reset(self, noise: jax.Array) -> DilemmaState:
        number = len(noise)
        opponent = (noise >= rounded_up(self.reach)).sum(axis=1, dtype=jnp.int32)
        return DilemmaState(opponent, jnp.zeros((number, self.rules.history), jnp.int8), jnp.zeros(number, jnp.int32))

    def observe(self, state: DilemmaState) -> jax.Array:
        return (state.recent[:, :, None] == np.arange(len(STATES), dtype=np.int8)).astype(jnp.float32)

    def step(self, state: DilemmaState, action: jax.Array, noise: jax.Array) -> EnvStep:
        rules, last = self.rules, state.recent[:, -1].astype(jnp.int32)
        cooperates = noise[:, 0] < jnp.asarray(rounded_up(self.cooperation))[state.opponent, last]
        outcome = outcome_of(action, cooperates.astype(jnp.int32))
        reward = jnp.asarray(rules.payoffs, jnp.float32)[outcome]
        recent = jnp.concatenate([state.recent[:, 1:], (1 + outcome).astype(jnp.int8)[:, None]], axis=1)
        after = DilemmaState(state.opponent, recent, state.steps + 1)
        over = jnp.zeros(last.shape, bool) if rules.survival is None else noise[:, 1] >= rounded_up(rules.survival)
        return EnvStep(after, reward, over, out_of_time(after.steps, rules.rounds))


def against(pool: Pool, rules: DilemmaRules) -> PrisonersDilemma:
    """The game against a pool of memory-1 opponents."""
    for name, strategy in zip(pool.names, pool.strategies, strict=True):
        if strategy is not None:
            raise BadInput(
                f"opponent {name!r} of the axelrod package cannot be compiled; step this environment in NumPy"
            )
    cooperation = tuple(map(tuple, pool.probs[:, OTHER_SIDE].tolist()))
    return PrisonersDilemma(rules, cooperation, tuple(np.cumsum(pool.weights)[:-1].tolist()))


class BitFlipState(NamedTuple):
    """State of N environments."""

    bits: jax.Array  # [N, bits] bool
    goal: jax.Array  # [N, bits] bool
    steps: jax.Array  # [N] int32


@dataclass(frozen=True)
class BitFlip:
    """drl/BitFlip-v0: flip bits until they equal a goal. Hindsight replay needs `compute_reward` and
    `compute_terminated`."""

    bits: int = 15

    def __post_init__(self) -> None:
        check_bits(self.bits)

    @property
    def max_steps(self) -> int:
        return self.bits

    @property
    def obs_spec(self) -> ObsSpec:
        part = ObsSpec("multi_binary", box_shape=(self.bits,))
        return ObsSpec("dict", keys=("achieved_goal", "desired_goal", "observation"), parts=(part,) * 3)

    @property
    def action_spec(self) -> ActionSpec:
        return ActionSpec("discrete", sizes=(self.bits,))

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Noise:
        return uniform_noise(key, shape, reset=draws_per_episode(self.bits))

    def reset(self, noise: jax.Array) -> BitFlipState:
        return BitFlipState(*start_and_goal(noise), jnp.zeros(len(noise), jnp.int32))

    def observe(self, state: BitFlipState) -> jax.Array:
        return jnp.concatenate([state.bits, state.goal, state.bits], axis=1).astype(jnp.float32)

    def step(self, state: BitFlipState, action: jax.Array, noise: None) -> EnvStep:
        bits = state.bits ^ (jnp.arange(self.bits) == action[:, None])
        after = BitFlipState(bits, state.goal, state.steps + 1)
        reached = is_reached(bits, state.goal)
        out_of_time = after.steps >= self.bits
        return EnvStep(after, goal_reward(bits, state.goal), reached, out_of_time & ~reached, success=reached)

    def compute_reward(self, achieved_goal: jax.Array, desired_goal: jax.Array) -> jax.Array:
        """Of encoded goals `[B, bits]`."""
        return goal_reward(achieved_goal, desired_goal)

    def compute_terminated(self, achieved_goal: jax.Array, desired_goal: jax.Array) -> jax.Array:
        """Whether a goal is reached, for hindsight."""
        return is_reached(achieved_goal, desired_goal)


class LegalMovesState(NamedTuple):
    """State of N environments."""

    legal: jax.Array  # [N, 4] bool
    steps: jax.Array  # [N] int32


@dataclass(frozen=True)
class LegalMoves:
    """drl/LegalMoves-v0: an illegal action costs 100, since nothing can raise."""

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

    def step(self, state: LegalMovesState, action: jax.Array, noise: jax.Array) -> EnvStep:
        chosen = jnp.take_along_axis(state.legal, action[:, None], axis=1)[:, 0]
        after = LegalMovesState(_legal(noise), state.steps + 1)
        reward = jnp.where(chosen, action / 3.0, -100.0)
        return EnvStep(after, reward, after.steps == LENGTH, jnp.zeros(len(action), bool))


def _legal(uniform: jax.Array) -> jax.Array:
    """Each action by a coin, and one of them for certain."""
    certain = jnp.arange(LEGAL_MOVES) == jnp.int32(uniform[:, LEGAL_MOVES:] * LEGAL_MOVES)
    return (uniform[:, :LEGAL_MOVES] < 0.5) | certain
