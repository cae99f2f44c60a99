"""PPO, A2C and REINFORCE with their environments in one program: a rollout or episodes, and the update on them."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from drl.core.errors import BadInput, plural
from drl.engines.jax import ops
from drl.engines.jax.envs.jax_env import JaxStep, Noise, State, legal_actions, step_and_reset
from drl.engines.jax.fused import fused_stats
from drl.engines.jax.fused.fused_stats import Carry, Counters, Ends, FusedProgram, Report, RunningEpisodes, record_step
from drl.engines.jax.layers import Tree
from drl.engines.jax.models import policy_of
from drl.engines.jax.on_policy import PureOnPolicy, Window, flat

Playing = tuple[State, jax.Array, RunningEpisodes]  # N environments, their observations, their episodes
Row = tuple[tuple[Tree, ...], Ends]  # columns of a Window, and episodes that ended


@dataclass(frozen=True)
class FusedOnPolicy(FusedProgram):
    """PPO and A2C: a rollout of T steps of every environment, then one learning step."""

    pure: PureOnPolicy

    @property
    def rows(self) -> int:
        return int(self.pure.config.rollout_length)

    @property
    def passes(self) -> int:
        return int(getattr(self.pure.config, "epochs", 1))

    def learn_step(self, carry: Carry) -> tuple[Carry, Report]:
        key, env_key, action_key, learn_key = jax.random.split(carry.key, 4)
        shape = (self.rows, self.num_envs)
        draws = (self.env.draw(env_key, shape), ops.random_draws(self.pure.dist, action_key, shape))

        def act(now: Playing, draws: tuple[Noise, jax.Array]) -> tuple[Playing, Row]:
            state, obs, running = now
            action, mask, state, step = self.act(carry, state, obs, *draws)
            running, ends = record_step(running, step)
            row = (obs, action, step.reward, step.terminated, step.truncated, step.next_obs, mask)
            return (state, step.obs, running), (row, ends)

        (state, obs, running), (row, ends) = jax.lax.scan(act, (carry.env, carry.obs, carry.running), draws)
        carry = carry._replace(env=state, obs=obs, running=running, key=key)
        return self.learn(carry, Window._make((*row[:5], None, obs, *row[5:])), ends, learn_key)

    def act(
        self, carry: Carry, state: State, obs: jax.Array, noise: Noise, draws: jax.Array
    ) -> tuple[jax.Array, jax.Array | None, State, JaxStep]:
        """One step of every environment: actions, masks of legal actions, the next state, and the step."""
        mask = legal_actions(self.env, state)
        seen = fused_stats.normalize(carry.running_stats, obs)
        dist_params = policy_of(self.pure.model, carry.learner.params, seen)
        action = ops.sample(self.pure.dist, dist_params, draws, mask)
        return action, mask, *step_and_reset(self.env, state, action, noise)

    def learn(self, carry: Carry, window: Window, ends: Ends, key: jax.Array) -> tuple[Carry, Report]:
        """One learning step on a window."""
        steps = jnp.int32(self.steps) if window.valid is None else window.valid.sum(dtype=jnp.int32)
        reward, gamma = window.reward.sum(), self.pure.config.gamma
        window, running_stats, scaler = fused_stats.prepared(window, carry.running_stats, carry.scaler, gamma)
        settings = self.settings_at(carry.counters)
        learner, logs = self.pure.step(carry.learner, window, key, *settings.values())
        ended = (ends.how > 0).sum(dtype=jnp.int32)
        counters = Counters(carry.counters.env_steps + steps, carry.counters.episodes + ended)
        carry = carry._replace(learner=learner, counters=counters, running_stats=running_stats, scaler=scaler)
        logs |= settings
        return carry, Report(logs, {name: jnp.int32(1) for name in logs}, steps, reward, ends)


PlayingEpisodes = tuple[State, jax.Array, RunningEpisodes, jax.Array]  # and which of these are not over


@dataclass(frozen=True)
class FusedEpisodes(FusedOnPolicy):
    """REINFORCE. All environments begin together and play one episode each; those that finish first wait for the last
    one. With fewer environments than episodes this is repeated."""

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
        return int(self.pure.config.episodes_per_step) // self.num_envs

    @property
    def longest(self) -> int:
        """Most steps of an episode."""
        return int(self.env.max_steps or 0)

    @property
    def rows(self) -> int:
        return self.longest * self.turns

    def begin(self, params: Tree, key: jax.Array) -> Carry:
        return self.without_episodes(params, key, self.num_envs * self.turns)

    def learn_step(self, carry: Carry) -> tuple[Carry, Report]:
        key, *turns = jax.random.split(carry.key, self.turns + 1)

        def play(_: None, key: jax.Array) -> tuple[None, tuple[Window, Ends]]:
            return None, self._play(carry, key)

        _, (window, ends) = jax.lax.scan(play, None, jnp.stack(turns))
        last_obs = flat(window.last_obs)
        window, ends = jax.tree.map(self._side_by_side, (window._replace(last_obs=None), ends))
        carry, learn_key = carry._replace(key=key), jax.random.fold_in(key, 1)
        return self.learn(carry, window._replace(last_obs=last_obs), ends, learn_key)

    def _play(self, carry: Carry, key: jax.Array) -> tuple[Window, Ends]:
        """One episode of every environment, `[T, N]`; rows after its end are invalid."""
        shape = (self.longest, self.num_envs)
        first_key, env_key, action_key = jax.random.split(key, 3)
        state = self.env.reset(self.env.draw(first_key, (self.num_envs,)).reset)
        draws = (self.env.draw(env_key, shape), ops.random_draws(self.pure.dist, action_key, shape))

        def act(number: ArrayLike, now: PlayingEpisodes) -> tuple[PlayingEpisodes, Row]:
            state, obs, running, alive = now
            action, mask, state, step = self.act(carry, state, obs, *jax.tree.map(lambda leaf: leaf[number], draws))
            step = step._replace(reward=jnp.where(alive, step.reward, 0.0))
            running, ends = record_step(running, step)
            ends = ends._replace(how=jnp.where(alive, ends.how, 0))
            # Invalid rows are terminated, so that they do not affect the returns.
            terminated, truncated = step.terminated | ~alive, step.truncated & alive
            row = (obs, action, step.reward, terminated, truncated, alive, step.next_obs, mask)
            return (state, step.obs, running, alive & ~(step.terminated | step.truncated)), (row, ends)

        running = fused_stats.new_running_episodes(self.num_envs)
        now = (state, self.env.observe(state), running, jnp.ones(self.num_envs, bool))
        shapes = jax.eval_shape(act, 0, now)[1]
        row, ends = jax.tree.map(lambda leaf: jnp.zeros((self.longest, *leaf.shape), leaf.dtype), shapes)
        row = (*row[:3], jnp.ones_like(row[3]), *row[4:])  # rows that are never played are also terminated
        return self._until_all_ended(act, now, (row, ends))

    def _until_all_ended(
        self, act: Callable[[ArrayLike, PlayingEpisodes], tuple[PlayingEpisodes, Row]], now: PlayingEpisodes, rows: Row
    ) -> tuple[Window, Ends]:
        def goes_on(loop: tuple[jax.Array, PlayingEpisodes, Row]) -> jax.Array:
            number, now, _ = loop
            return (number < self.longest) & now[3].any()

        def step(loop: tuple[jax.Array, PlayingEpisodes, Row]) -> tuple[jax.Array, PlayingEpisodes, Row]:
            number, now, rows = loop
            now, new = act(number, now)
            return number + 1, now, jax.tree.map(lambda column, row: column.at[number].set(row), rows, new)

        _, (_, obs, _, _), (row, ends) = jax.lax.while_loop(goes_on, step, (jnp.int32(0), now, rows))
        return Window._make((*row[:6], obs, *row[6:])), ends

    def _side_by_side(self, leaf: jax.Array) -> jax.Array:
        """`[turns, T, N, …]` → `[T, turns · N, …]`: every column is one episode."""
        return jnp.moveaxis(leaf, 0, 1).reshape(self.longest, -1, *leaf.shape[3:])
