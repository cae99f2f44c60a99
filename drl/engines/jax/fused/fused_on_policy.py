"""PPO and A2C with their environments in one program: a rollout of T steps and the update on it."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

from drl.engines.jax import ops
from drl.engines.jax.algorithms.a2c import PureA2C
from drl.engines.jax.algorithms.ppo import PurePPO
from drl.engines.jax.envs.jax_env import JaxEnv, Noise, State, legal_actions, step_and_reset
from drl.engines.jax.fused.counters import Budget, Counters, Setup, new_counters, value_at
from drl.engines.jax.fused.running_stats import RunningStats, Scaler, new_running_stats, new_scaler, normalize, prepared
from drl.engines.jax.fused.step_report import (
    Ends,
    Report,
    RunningEpisodes,
    new_running_episodes,
    one_update,
    record_step,
)
from drl.engines.jax.layers import Tree
from drl.engines.jax.models import policy_of
from drl.engines.jax.on_policy import LearnerState, Window

Playing = tuple[State, jax.Array, RunningEpisodes]  # N environments, their observations, their episodes


class Carry(NamedTuple):
    """The whole state of a run between two learning steps."""

    learner: LearnerState
    env: State
    obs: jax.Array
    running: RunningEpisodes
    counters: Counters
    key: jax.Array
    running_stats: RunningStats | None  # of observations, if they are normalized
    scaler: Scaler | None  # of rewards, if they are normalized


@dataclass(frozen=True)
class FusedOnPolicy:
    """Configuration and pure functions: a static argument of compiled functions."""

    env: JaxEnv
    pure: PurePPO | PureA2C
    num_envs: int
    budget: Budget
    normalize_obs: bool = False
    normalize_reward: bool = False

    @classmethod
    def make(cls, pure: PurePPO | PureA2C, setup: Setup) -> Self:
        return cls(setup.env, pure, setup.num_envs, setup.budget, setup.normalize_obs, setup.normalize_reward)

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
        """Passes of one learning step over its rows."""
        return int(getattr(self.pure.config, "epochs", 1))

    def begin(self, params: Tree, key: jax.Array) -> Carry:
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
        progress = self.budget.progress(carry.counters)
        settings = {name: value_at(each, progress) for name, each in self.pure.schedules.items()}
        learner, logs = self.pure.step(carry.learner, window, learn_key, *settings.values())
        ended = (ends.how > 0).sum(dtype=jnp.int32)
        counters = Counters(carry.counters.env_steps + self.steps, carry.counters.episodes + ended)
        report = one_update(logs | settings, jnp.int32(self.steps), rows.reward.sum(), ends)
        carry = carry._replace(learner=learner, counters=counters, key=key)
        return carry._replace(running_stats=running_stats, scaler=scaler), report

    def _collect(self, carry: Carry, env_key: jax.Array, action_key: jax.Array) -> tuple[Carry, Window, Ends]:
        """T steps of every environment with the current policy."""
        dist, shape = self.pure.dist, (self.rows, self.num_envs)
        params, running_stats = carry.learner.params, carry.running_stats

        def act(now: Playing, draws: tuple[Noise, jax.Array]) -> tuple[Playing, tuple[Tree, Ends]]:
            state, obs, running = now
            mask = legal_actions(self.env, state)
            dist_params = policy_of(self.pure.model, params, normalize(running_stats, obs))
            action = ops.sample(dist, dist_params, draws[1], mask)
            state, step = step_and_reset(self.env, state, action, draws[0])
            running, ends = record_step(running, step)
            seen = (obs, action, step.reward, step.terminated, step.truncated, step.next_obs, mask)
            return (state, step.obs, running), (seen, ends)

        draws = (self.env.draw(env_key, shape), ops.random_draws(dist, action_key, shape))
        (state, obs, running), (seen, ends) = jax.lax.scan(act, (carry.env, carry.obs, carry.running), draws)
        window = Window._make((*seen[:5], None, obs, *seen[5:]))
        return carry._replace(env=state, obs=obs, running=running), window, ends
