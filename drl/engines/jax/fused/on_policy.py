"""PPO and A2C with their worlds: a rollout of T steps and what is learned from it, in one program."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from drl.core.schedules import schedule
from drl.engines.jax.fused.chance import choose, draw_chance
from drl.engines.jax.fused.clock import Budget, Clock, new_clock, value_at
from drl.engines.jax.fused.moments import Moments, Scaler, new_moments, new_scaler, normalise, prepared
from drl.engines.jax.fused.report import Book, Ends, Report, new_book, note
from drl.engines.jax.layers import Params
from drl.engines.jax.on_policy import Window
from drl.engines.jax.worlds.stepping import step_and_reset
from drl.engines.jax.worlds.world_contract import JaxWorld, Noise


class Carry(NamedTuple):
    """Everything that a run is made of between two learning steps."""

    learner: Any
    world: Any
    obs: jax.Array
    book: Book
    clock: Clock
    key: jax.Array
    moments: Moments | None  # of observations, where they are normalised
    scaler: Scaler | None  # of rewards, likewise


@dataclass(frozen=True)
class FusedOnPolicy:
    """A constant to the compiler: configuration and pure functions."""

    world: JaxWorld
    pure: Any  # PurePPO or PureA2C
    num_envs: int
    budget: Budget
    normalise_obs: bool = False
    normalise_reward: bool = False

    @property
    def rows(self) -> int:
        """Steps of every world in one learning step."""
        return int(self.pure.config.rollout_length)

    @property
    def steps(self) -> int:
        """Environment steps of one learning step."""
        return self.rows * self.num_envs

    @property
    def passes(self) -> int:
        """How often a learning step goes over its rows."""
        return int(getattr(self.pure.config, "epochs", 1))

    def begin(self, params: Params, key: jax.Array) -> Carry:
        key, first = jax.random.split(key)
        state = self.world.reset(self.world.draw(first, (self.num_envs,)).reset)
        obs = self.world.observe(state)
        moments = new_moments(self.world.obs_spec.shape) if self.normalise_obs else None
        scaler = new_scaler(self.num_envs) if self.normalise_reward else None
        return Carry(self.pure.begin(params), state, obs, new_book(self.num_envs), new_clock(), key, moments, scaler)

    def learn_step(self, carry: Carry) -> tuple[Carry, Report]:
        key, world_key, action_key, learn_key = jax.random.split(carry.key, 4)
        carry, rows, ends = self._collect(carry, world_key, action_key)
        window, moments, scaler = prepared(rows, carry.moments, carry.scaler, self.pure.config.gamma)
        config, progress = self.pure.config, self.budget.progress(carry.clock)
        settings = {"learning_rate": value_at(schedule(config.learning_rate, config.learning_rate_end), progress)}
        if hasattr(config, "clip_range"):
            settings["clip_range"] = value_at(schedule(config.clip_range, config.clip_range_end), progress)
        learner, logs = self.pure.step(carry.learner, window, learn_key, *settings.values())
        ended = (ends.how > 0).sum(dtype=jnp.int32)
        clock = Clock(carry.clock.env_steps + self.steps, carry.clock.episodes + ended)
        report = Report(logs | settings, jnp.int32(1), jnp.int32(self.steps), rows.reward.sum(), ends)
        return carry._replace(learner=learner, clock=clock, key=key, moments=moments, scaler=scaler), report

    def _collect(self, carry: Carry, world_key: jax.Array, action_key: jax.Array) -> tuple[Carry, Window, Ends]:
        """T steps of every world with the policy as it is."""
        spec, shape = self.world.action_spec, (self.rows, self.num_envs)
        params, moments = carry.learner.params, carry.moments

        def act(now: Any, chance: tuple[Noise, jax.Array]) -> tuple[Any, Any]:
            state, obs, book = now
            action = choose(spec, self.pure.model.policy(params, normalise(moments, obs)), chance[1])
            state, step = step_and_reset(self.world, state, action, chance[0])
            book, ends = note(book, step)
            seen = (obs, action, step.reward, step.terminated, step.truncated, step.next_obs)
            return (state, step.obs, book), (seen, ends)

        chances = (self.world.draw(world_key, shape), draw_chance(spec, action_key, shape))
        (state, obs, book), (seen, ends) = jax.lax.scan(act, (carry.world, carry.obs, carry.book), chances)
        window = Window._make((*seen[:5], None, obs, seen[5]))
        return carry._replace(world=state, obs=obs, book=book), window, ends
