"""PPO and A2C with their environments in one program: a rollout of T steps and the update on it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from drl.core.errors import BadInput, plural
from drl.engines.jax import ops
from drl.engines.jax.algorithms.a2c import PureA2C
from drl.engines.jax.algorithms.ppo import PurePPO
from drl.engines.jax.algorithms.reinforce import PureReinforce, ReinforceState
from drl.engines.jax.envs.jax_env import JaxEnv, Noise, State, legal_actions, step_and_reset
from drl.engines.jax.fused.fused_stats import (
    Budget,
    Counters,
    Ends,
    FusedRunningStats,
    Report,
    RunningEpisodes,
    Scaler,
    Setup,
    new_counters,
    new_running_episodes,
    new_running_stats,
    new_scaler,
    normalize,
    one_update,
    prepared,
    record_step,
    value_at,
)
from drl.engines.jax.layers import Tree
from drl.engines.jax.models import policy_of
from drl.engines.jax.on_policy import LearnerState, Window, flat

Playing = tuple[State, jax.Array, RunningEpisodes]  # N environments, their observations, their episodes


class RolloutCarry(NamedTuple):
    """The whole state of a run between two learning steps."""

    learner: LearnerState
    env: State
    obs: jax.Array
    running: RunningEpisodes
    counters: Counters
    key: jax.Array
    running_stats: FusedRunningStats | None  # of observations, if they are normalized
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

    def begin(self, params: Tree, key: jax.Array) -> RolloutCarry:
        key, first = jax.random.split(key)
        state = self.env.reset(self.env.draw(first, (self.num_envs,)).reset)
        obs = self.env.observe(state)
        running_stats = new_running_stats(self.env.obs_spec.shape) if self.normalize_obs else None
        scaler = new_scaler(self.num_envs) if self.normalize_reward else None
        return RolloutCarry(
            self.pure.begin(params),
            state,
            obs,
            new_running_episodes(self.num_envs),
            new_counters(),
            key,
            running_stats,
            scaler,
        )

    def learn_step(self, carry: RolloutCarry) -> tuple[RolloutCarry, Report]:
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

    def _collect(
        self, carry: RolloutCarry, env_key: jax.Array, action_key: jax.Array
    ) -> tuple[RolloutCarry, Window, Ends]:
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


# N environments, their observations, their episodes, and which of these are not over.
PlayingEpisodes = tuple[State, jax.Array, RunningEpisodes, jax.Array]
Seen = tuple[tuple[Tree, ...], Ends]  # columns of a Window, and episodes that ended


class EpisodesCarry(NamedTuple):
    """The whole state of a run between two learning steps, when no episode is running."""

    learner: ReinforceState
    counters: Counters
    key: jax.Array
    running_stats: FusedRunningStats | None  # of observations, if they are normalized
    scaler: Scaler | None  # of rewards, if they are normalized


@dataclass(frozen=True)
class FusedEpisodes:
    """Configuration and pure functions: a static argument of compiled functions.

    All environments begin together and play one episode each; those that finish first wait for the last one. With fewer
    environments than episodes this is repeated.
    """

    env: JaxEnv
    pure: PureReinforce
    num_envs: int
    budget: Budget
    normalize_obs: bool = False
    normalize_reward: bool = False

    @classmethod
    def make(cls, pure: PureReinforce, setup: Setup) -> Self:
        return cls(setup.env, pure, setup.num_envs, setup.budget, setup.normalize_obs, setup.normalize_reward)

    def __post_init__(self) -> None:
        episodes, num_envs = self.pure.config.episodes_per_step, self.num_envs
        if episodes % num_envs:
            fitting = max(n for n in range(1, num_envs + 1) if episodes % n == 0)
            raise BadInput(
                f"episodes_per_step is {episodes} with {plural(num_envs, 'environment')}; in one program all play "
                f"equally many: use --num-envs {fitting}, or --vectorization sync"
            )
        if self.env.max_steps is None:
            raise BadInput("reinforce in one program needs an environment with a time limit; use --vectorization sync")

    @property
    def turns(self) -> int:
        """Episodes of every environment in one learning step."""
        return self.pure.config.episodes_per_step // self.num_envs

    @property
    def longest(self) -> int:
        """Most steps of an episode."""
        return int(self.env.max_steps or 0)

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

    def begin(self, params: Tree, key: jax.Array) -> EpisodesCarry:
        running_stats = new_running_stats(self.env.obs_spec.shape) if self.normalize_obs else None
        scaler = new_scaler(self.num_envs * self.turns) if self.normalize_reward else None
        return EpisodesCarry(self.pure.begin(params), new_counters(), key, running_stats, scaler)

    def learn_step(self, carry: EpisodesCarry) -> tuple[EpisodesCarry, Report]:
        key, *turns = jax.random.split(carry.key, self.turns + 1)

        def play(_: None, key: jax.Array) -> tuple[None, tuple[Window, Ends]]:
            return None, self._play(carry, key)

        _, (window, ends) = jax.lax.scan(play, None, jnp.stack(turns))
        last_obs = flat(window.last_obs)
        window, ends = jax.tree.map(self._side_by_side, (window._replace(last_obs=None), ends))
        window = window._replace(last_obs=last_obs)
        steps, reward = window.valid.sum(dtype=jnp.int32), window.reward.sum()
        window, running_stats, scaler = prepared(window, carry.running_stats, carry.scaler, self.pure.config.gamma)
        config = self.pure.config
        progress = self.budget.progress(carry.counters)
        settings = {name: value_at(each, progress) for name, each in self.pure.schedules.items()}
        learner, logs = self.pure.step(carry.learner, window, jax.random.fold_in(key, 1), *settings.values())
        counters = Counters(carry.counters.env_steps + steps, carry.counters.episodes + config.episodes_per_step)
        report = one_update(logs | settings, steps, reward, ends)
        return EpisodesCarry(learner, counters, key, running_stats, scaler), report

    def _play(self, carry: EpisodesCarry, key: jax.Array) -> tuple[Window, Ends]:
        """One episode of every environment, `[T, N]`; rows after its end are invalid."""
        dist, shape = self.pure.dist, (self.longest, self.num_envs)
        first_key, env_key, action_key = jax.random.split(key, 3)
        state = self.env.reset(self.env.draw(first_key, (self.num_envs,)).reset)
        noise, draws = self.env.draw(env_key, shape), ops.random_draws(dist, action_key, shape)

        def act(number: ArrayLike, now: PlayingEpisodes) -> tuple[PlayingEpisodes, Seen]:
            state, obs, running, alive = now
            seen = normalize(carry.running_stats, obs)
            mask = legal_actions(self.env, state)
            action = ops.sample(dist, policy_of(self.pure.model, carry.learner.params, seen), draws[number], mask)
            state, step = step_and_reset(self.env, state, action, jax.tree.map(lambda leaf: leaf[number], noise))
            step = step._replace(reward=jnp.where(alive, step.reward, 0.0))
            running, ends = record_step(running, step)
            ends = ends._replace(how=jnp.where(alive, ends.how, 0))
            # Invalid rows are terminated, so that they do not affect the returns.
            terminated, truncated = step.terminated | ~alive, step.truncated & alive
            row = (obs, action, step.reward, terminated, truncated, alive, step.next_obs, mask)
            return (state, step.obs, running, alive & ~(step.terminated | step.truncated)), (row, ends)

        now = (state, self.env.observe(state), new_running_episodes(self.num_envs), jnp.ones(self.num_envs, bool))
        shapes = jax.eval_shape(act, 0, now)[1]
        seen, ends = jax.tree.map(lambda leaf: jnp.zeros((self.longest, *leaf.shape), leaf.dtype), shapes)
        seen = (*seen[:3], jnp.ones_like(seen[3]), *seen[4:])  # rows that are never played are also terminated
        return self._until_all_ended(act, now, (seen, ends))

    def _until_all_ended(
        self,
        act: Callable[[ArrayLike, PlayingEpisodes], tuple[PlayingEpisodes, Seen]],
        now: PlayingEpisodes,
        rows: Seen,
    ) -> tuple[Window, Ends]:
        def goes_on(loop: tuple[jax.Array, PlayingEpisodes, Seen]) -> jax.Array:
            number, now, _ = loop
            return (number < self.longest) & now[3].any()

        def step(loop: tuple[jax.Array, PlayingEpisodes, Seen]) -> tuple[jax.Array, PlayingEpisodes, Seen]:
            number, now, rows = loop
            now, new = act(number, now)
            return number + 1, now, jax.tree.map(lambda column, row: column.at[number].set(row), rows, new)

        _, (_, obs, _, _), (seen, ends) = jax.lax.while_loop(goes_on, step, (jnp.int32(0), now, rows))
        return Window._make((*seen[:6], obs, *seen[6:])), ends

    def _side_by_side(self, leaf: jax.Array) -> jax.Array:
        """`[turns, T, N, …]` → `[T, turns · N, …]`: every column is one episode."""
        return jnp.moveaxis(leaf, 0, 1).reshape(self.longest, -1, *leaf.shape[3:])
