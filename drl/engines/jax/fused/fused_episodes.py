"""REINFORCE and its environments in one program: whole episodes and the update on them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from drl.core.errors import BadInput, plural
from drl.engines.jax import ops
from drl.engines.jax.algorithms.reinforce import PureReinforce, ReinforceState
from drl.engines.jax.envs.jax_env import JaxEnv, State, legal_actions, step_and_reset
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
from drl.engines.jax.on_policy import Window, flat

# N environments, their observations, their episodes, and which of these are not over.
Playing = tuple[State, jax.Array, RunningEpisodes, jax.Array]
Seen = tuple[tuple[Tree, ...], Ends]  # columns of a Window, and episodes that ended


class Carry(NamedTuple):
    """The whole state of a run between two learning steps, when no episode is running."""

    learner: ReinforceState
    counters: Counters
    key: jax.Array
    running_stats: RunningStats | None  # of observations, if they are normalized
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

    def begin(self, params: Tree, key: jax.Array) -> Carry:
        running_stats = new_running_stats(self.env.obs_spec.shape) if self.normalize_obs else None
        scaler = new_scaler(self.num_envs * self.turns) if self.normalize_reward else None
        return Carry(self.pure.begin(params), new_counters(), key, running_stats, scaler)

    def learn_step(self, carry: Carry) -> tuple[Carry, Report]:
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
        return Carry(learner, counters, key, running_stats, scaler), report

    def _play(self, carry: Carry, key: jax.Array) -> tuple[Window, Ends]:
        """One episode of every environment, `[T, N]`; rows after its end are invalid."""
        dist, shape = self.pure.dist, (self.longest, self.num_envs)
        first_key, env_key, action_key = jax.random.split(key, 3)
        state = self.env.reset(self.env.draw(first_key, (self.num_envs,)).reset)
        noise, draws = self.env.draw(env_key, shape), ops.random_draws(dist, action_key, shape)

        def act(number: ArrayLike, now: Playing) -> tuple[Playing, Seen]:
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
        self, act: Callable[[ArrayLike, Playing], tuple[Playing, Seen]], now: Playing, rows: Seen
    ) -> tuple[Window, Ends]:
        def goes_on(loop: tuple[jax.Array, Playing, Seen]) -> jax.Array:
            number, now, _ = loop
            return (number < self.longest) & now[3].any()

        def step(loop: tuple[jax.Array, Playing, Seen]) -> tuple[jax.Array, Playing, Seen]:
            number, now, rows = loop
            now, new = act(number, now)
            return number + 1, now, jax.tree.map(lambda column, row: column.at[number].set(row), rows, new)

        _, (_, obs, _, _), (seen, ends) = jax.lax.while_loop(goes_on, step, (jnp.int32(0), now, rows))
        return Window._make((*seen[:6], obs, *seen[6:])), ends

    def _side_by_side(self, leaf: jax.Array) -> jax.Array:
        """`[turns, T, N, …]` → `[T, turns · N, …]`: every column is one episode."""
        return jnp.moveaxis(leaf, 0, 1).reshape(self.longest, -1, *leaf.shape[3:])
