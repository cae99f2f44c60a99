"""PPO and A2C with their environments: a rollout of T steps and what is learned from it, in one program."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from drl.core.schedules import schedule
from drl.engines.jax.envs.jax_env import JaxEnv, Noise
from drl.engines.jax.envs.stepping import step_and_reset
from drl.engines.jax.fused.counters import Budget, Counters, new_counters, value_at
from drl.engines.jax.fused.random_draws import choose, random_draws
from drl.engines.jax.fused.running_stats import RunningStats, Scaler, new_running_stats, new_scaler, normalize, prepared
from drl.engines.jax.fused.step_report import Ends, Report, RunningEpisodes, new_running_episodes, note
from drl.engines.jax.layers import Params
from drl.engines.jax.on_policy import Window


class Carry(NamedTuple):
    """Everything that a run is made of between two learning steps."""

    learner: Any
    env: Any
    obs: jax.Array
    stats: RunningEpisodes
    counters: Counters
    key: jax.Array
    running_stats: RunningStats | None  # of observations, where they are normalized
    scaler: Scaler | None  # of rewards, likewise


@dataclass(frozen=True)
class FusedOnPolicy:
    """A constant to the compiler: configuration and pure functions."""

    env: JaxEnv
    pure: Any  # PurePPO or PureA2C
    num_envs: int
    budget: Budget
    normalize_obs: bool = False
    normalize_reward: bool = False

    @property
    def rows(self) -> int:
        """Steps of every environment in one learning step."""
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
        state = self.env.reset(self.env.draw(first, (self.num_envs,)).reset)
        obs = self.env.observe(state)
        running_stats = new_running_stats(self.env.obs_spec.shape) if self.normalize_obs else None
        scaler = new_scaler(self.num_envs) if self.normalize_reward else None
        return Carry(
            self.pure.begin(params),
            state,
            obs,
            new_running_episodes(self.num_envs),
            new_counters(),
            key,
            running_stats,
            scaler,
        )

    def learn_step(self, carry: Carry) -> tuple[Carry, Report]:
        key, env_key, action_key, learn_key = jax.random.split(carry.key, 4)
        carry, rows, ends = self._collect(carry, env_key, action_key)
        window, running_stats, scaler = prepared(rows, carry.running_stats, carry.scaler, self.pure.config.gamma)
        config, progress = self.pure.config, self.budget.progress(carry.counters)
        settings = {"learning_rate": value_at(schedule(config.learning_rate, config.learning_rate_end), progress)}
        if hasattr(config, "clip_range"):
            settings["clip_range"] = value_at(schedule(config.clip_range, config.clip_range_end), progress)
        learner, logs = self.pure.step(carry.learner, window, learn_key, *settings.values())
        ended = (ends.how > 0).sum(dtype=jnp.int32)
        counters = Counters(carry.counters.env_steps + self.steps, carry.counters.episodes + ended)
        report = Report(logs | settings, jnp.int32(1), jnp.int32(self.steps), rows.reward.sum(), ends)
        return carry._replace(
            learner=learner, counters=counters, key=key, running_stats=running_stats, scaler=scaler
        ), report

    def _collect(self, carry: Carry, env_key: jax.Array, action_key: jax.Array) -> tuple[Carry, Window, Ends]:
        """T steps of every environment with the policy as it is."""
        spec, shape = self.env.action_spec, (self.rows, self.num_envs)
        params, running_stats = carry.learner.params, carry.running_stats

        def act(now: Any, draws: tuple[Noise, jax.Array]) -> tuple[Any, Any]:
            state, obs, stats = now
            action = choose(spec, self.pure.model.policy(params, normalize(running_stats, obs)), draws[1])
            state, step = step_and_reset(self.env, state, action, draws[0])
            stats, ends = note(stats, step)
            seen = (obs, action, step.reward, step.terminated, step.truncated, step.next_obs)
            return (state, step.obs, stats), (seen, ends)

        draws = (self.env.draw(env_key, shape), random_draws(spec, action_key, shape))
        (state, obs, stats), (seen, ends) = jax.lax.scan(act, (carry.env, carry.obs, carry.stats), draws)
        window = Window._make((*seen[:5], None, obs, seen[5]))
        return carry._replace(env=state, obs=obs, stats=stats), window, ends
