"""REINFORCE with its worlds: whole episodes and what is learned from them, in one program."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from drl.core.errors import BadInput
from drl.core.schedules import schedule
from drl.engines.jax.algorithms.reinforce import PureReinforce
from drl.engines.jax.fused.chance import choose, draw_chance
from drl.engines.jax.fused.clock import Budget, Clock, new_clock, value_at
from drl.engines.jax.fused.moments import Moments, Scaler, new_moments, new_scaler, normalise, prepared
from drl.engines.jax.fused.report import Ends, Report, new_book, note
from drl.engines.jax.layers import Params
from drl.engines.jax.on_policy import Window, flat
from drl.engines.jax.worlds.stepping import step_and_reset
from drl.engines.jax.worlds.world_contract import JaxWorld


class Carry(NamedTuple):
    """Everything that a run is made of between two learning steps: no episode is under way then."""

    learner: Any
    clock: Clock
    key: jax.Array
    moments: Moments | None  # of observations, where they are normalised
    scaler: Scaler | None  # of rewards, likewise


@dataclass(frozen=True)
class FusedEpisodes:
    """A constant to the compiler: configuration and pure functions.

    All worlds begin together and play one episode each; those that are through wait for the last. With fewer worlds
    than episodes they play several times.
    """

    world: JaxWorld
    pure: PureReinforce
    num_envs: int
    budget: Budget
    normalise_obs: bool = False
    normalise_reward: bool = False

    def __post_init__(self) -> None:
        episodes, wide = self.pure.config.episodes_per_step, self.num_envs
        if episodes % wide:
            raise BadInput(
                f"episodes_per_step is {episodes} with {wide} worlds; in one program every world plays equally many: "
                f"use --num-envs {max(n for n in range(1, wide + 1) if episodes % n == 0)}, or --world-engine sync"
            )
        if self.world.max_steps is None:
            raise BadInput("reinforce in one program needs a world with a time limit; use --world-engine sync")

    @property
    def turns(self) -> int:
        return self.pure.config.episodes_per_step // self.num_envs

    @property
    def longest(self) -> int:
        return int(self.world.max_steps or 0)

    @property
    def rows(self) -> int:
        return self.longest * self.turns

    @property
    def steps(self) -> int:
        """Environment steps of one learning step, at most."""
        return self.rows * self.num_envs

    @property
    def passes(self) -> int:
        return 1

    def begin(self, params: Params, key: jax.Array) -> Carry:
        moments = new_moments(self.world.obs_spec.shape) if self.normalise_obs else None
        scaler = new_scaler(self.num_envs * self.turns) if self.normalise_reward else None
        return Carry(self.pure.begin(params), new_clock(), key, moments, scaler)

    def learn_step(self, carry: Carry) -> tuple[Carry, Report]:
        key, *turns = jax.random.split(carry.key, self.turns + 1)

        def play(_: None, key: jax.Array) -> tuple[None, Any]:
            return None, self._play(carry, key)

        _, (window, ends) = jax.lax.scan(play, None, jnp.stack(turns))
        last_obs = flat(window.last_obs)
        window, ends = jax.tree.map(self._side_by_side, (window._replace(last_obs=None), ends))
        window = window._replace(last_obs=last_obs)
        steps, reward = window.valid.sum(dtype=jnp.int32), window.reward.sum()
        window, moments, scaler = prepared(window, carry.moments, carry.scaler, self.pure.config.gamma)
        config = self.pure.config
        rate = value_at(schedule(config.learning_rate, config.learning_rate_end), self.budget.progress(carry.clock))
        learner, logs = self.pure.step(carry.learner, window, None, rate)
        clock = Clock(carry.clock.env_steps + steps, carry.clock.episodes + config.episodes_per_step)
        report = Report(logs | {"learning_rate": rate}, jnp.int32(1), steps, reward, ends)
        return Carry(learner, clock, key, moments, scaler), report

    def _play(self, carry: Carry, key: jax.Array) -> tuple[Window, Ends]:
        """One episode of every world, `[T, N]`; rows after its end are not valid."""
        spec, shape = self.world.action_spec, (self.longest, self.num_envs)
        first_key, world_key, action_key = jax.random.split(key, 3)
        state = self.world.reset(self.world.draw(first_key, (self.num_envs,)).reset)
        noise, chance = self.world.draw(world_key, shape), draw_chance(spec, action_key, shape)

        def act(number: Any, now: Any) -> tuple[Any, Any]:
            state, obs, book, alive = now
            seen = normalise(carry.moments, obs)
            action = choose(spec, self.pure.model.policy(carry.learner.params, seen), chance[number])
            state, step = step_and_reset(self.world, state, action, jax.tree.map(lambda leaf: leaf[number], noise))
            step = step._replace(reward=jnp.where(alive, step.reward, 0.0))
            book, ends = note(book, step)
            ends = ends._replace(how=jnp.where(alive, ends.how, 0))
            # What is not valid is terminated, so that nothing flows back from it.
            terminated, truncated = step.terminated | ~alive, step.truncated & alive
            row = (obs, action, step.reward, terminated, truncated, alive, step.next_obs)
            return (state, step.obs, book, alive & ~(step.terminated | step.truncated)), (row, ends)

        now = (state, self.world.observe(state), new_book(self.num_envs), jnp.ones(self.num_envs, bool))
        shapes = jax.eval_shape(act, 0, now)[1]
        seen, ends = jax.tree.map(lambda leaf: jnp.zeros((self.longest, *leaf.shape), leaf.dtype), shapes)
        seen = (*seen[:3], jnp.ones_like(seen[3]), *seen[4:])  # rows that are never played are terminated too
        return self._until_all_ended(act, now, (seen, ends))

    def _until_all_ended(self, act: Any, now: Any, rows: Any) -> tuple[Window, Ends]:
        def goes_on(loop: Any) -> jax.Array:
            number, now, _ = loop
            return (number < self.longest) & now[3].any()

        def step(loop: Any) -> Any:
            number, now, rows = loop
            now, new = act(number, now)
            return number + 1, now, jax.tree.map(lambda column, row: column.at[number].set(row), rows, new)

        _, (_, obs, _, _), (seen, ends) = jax.lax.while_loop(goes_on, step, (jnp.int32(0), now, rows))
        return Window._make((*seen[:6], obs, seen[6])), ends

    def _side_by_side(self, leaf: jax.Array) -> jax.Array:
        """`[turns, T, N, …]` → `[T, turns · N, …]`: every column is one episode."""
        return jnp.moveaxis(leaf, 0, 1).reshape(self.longest, -1, *leaf.shape[3:])
