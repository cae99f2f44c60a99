"""Algorithms that learn from replay, with their environments and their buffer in one program."""

from dataclasses import dataclass, field
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp

from drl.core.configs import ActionNoiseConfig, EpsilonGreedyConfig, RandomStartConfig, ReplayConfig
from drl.core.errors import BadInput, plural
from drl.core.normalize import return_bound
from drl.core.schedules import Schedule, epsilon_schedule, schedule_of
from drl.core.specs import ActionSpec
from drl.engines.jax import ops
from drl.engines.jax.actor_critics import ActorCritic
from drl.engines.jax.algorithms.dqn import DQNState, PureDQN, q_head, q_values_of, with_noise
from drl.engines.jax.envs.jax_env import Noise, legal_actions, step_and_reset, where_rows
from drl.engines.jax.fused import fused_stats
from drl.engines.jax.fused.fused_replay import FusedReplay, ReplayState
from drl.engines.jax.fused.fused_stats import Carry, Counters, Ends, FusedProgram, Report, normalize, value_at
from drl.engines.jax.layers import Tree, noise_for, random_noise
from drl.engines.jax.off_policy import OffPolicyState, PureOffPolicy
from drl.engines.jax.ops import ReplayRows

ExplorationConfig = EpsilonGreedyConfig | RandomStartConfig


class Situation(NamedTuple):
    """Inputs of the exploration in N environments."""

    obs: jax.Array  # [N, …] normalized
    action_mask: jax.Array | None  # [N, choices] bool: legal actions; None: all
    env_steps: jax.Array  # int32: so far
    noise: jax.Array  # [N, entries] of a process within each episode; see `begin`


@dataclass(frozen=True)
class ActEpsilonGreedy:
    """Random actions with probability ε, otherwise those of the largest value."""

    pure: PureDQN
    config: EpsilonGreedyConfig
    spec: ActionSpec
    first_update: int

    @property
    def epsilon(self) -> Schedule:
        """ε over environment steps."""
        head = q_head(self.pure.model)
        return epsilon_schedule(self.config, head is not None and head.sigma > 0, self.first_update)

    def begin(self, num_envs: int) -> jax.Array:
        return jnp.zeros((num_envs, 0))

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.uniform(key, (*shape, 2))

    def act(self, params: Tree, now: Situation, draws: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = self.pure.model
        noisy_params = with_noise(params, noise_for(params, partial(random_noise, key)))
        q_values = q_values_of(q_head(model), model.apply(noisy_params, now.obs))
        random = random_action(self.spec, draws[:, 1], now.action_mask)
        if now.action_mask is not None:
            q_values = jnp.where(now.action_mask, q_values, -jnp.inf)
        action = q_values.argmax(axis=-1).astype(jnp.int32)
        return jnp.where(draws[:, 0] < value_at(self.epsilon, now.env_steps), random, action), now.noise


@dataclass(frozen=True)
class ActByPolicy:
    """Uniformly random actions first, then samples from the policy, with noise on top of them if there is any."""

    pure: PureOffPolicy
    config: RandomStartConfig
    spec: ActionSpec
    first_update: int

    @property
    def sigma(self) -> Schedule | None:
        """Standard deviation of the action noise over time; None: there is none."""
        config = self.config
        if not isinstance(config, ActionNoiseConfig) or config.quiet:
            return None
        if self.spec.kind != "box":
            raise BadInput(f"noise_sigma is {config.noise_sigma}, but {self.spec.kind} actions take no noise; use 0")
        return schedule_of(config, "noise_sigma", config.noise_decay)

    def begin(self, num_envs: int) -> jax.Array:
        return jnp.zeros((num_envs, self.spec.entries if self.sigma else 0))

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Tree:
        start, sample, noise = jax.random.split(key, 3)
        entries = (*shape, max(self.pure.dist.entries, 1))
        draws: Tree = {"start": jax.random.uniform(start, entries)}
        draws["sample"] = ops.random_draws(self.pure.dist, sample, shape)
        return draws | ({"noise": jax.random.normal(noise, entries)} if self.sigma else {})

    def act(self, params: Tree, now: Situation, draws: Tree, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        dist_params = self.pure.policy(params, now.obs)
        action = ops.sample(self.pure.dist, dist_params, draws["sample"], now.action_mask)
        noise = now.noise
        first = now.env_steps < (self.first_update if self.config.random_steps is None else self.config.random_steps)
        if self.sigma:
            assert isinstance(self.config, ActionNoiseConfig)
            keep = 0.0 if self.config.noise == "gaussian" else 1.0 - self.config.noise_theta
            moved = keep * noise + value_at(self.sigma, now.env_steps) * draws["noise"]
            noise = jnp.where(first, noise, moved)
            action = jnp.clip(action + noise, -1.0, 1.0)
        if self.spec.kind == "box":
            return jnp.where(first, 2.0 * draws["start"] - 1.0, action), noise
        return jnp.where(first, random_action(self.spec, draws["start"][:, 0], now.action_mask), action), noise


def random_action(spec: ActionSpec, uniform: jax.Array, action_mask: jax.Array | None) -> jax.Array:
    """A uniformly random legal action of a Discrete space, from uniform numbers `[N]`."""
    if action_mask is None:
        return jnp.int32(uniform * spec.sizes[0])
    wanted = jnp.int32(uniform * action_mask.sum(axis=1))  # the n-th legal action
    return (jnp.cumsum(action_mask, axis=1) > wanted[:, None]).argmax(axis=1).astype(jnp.int32)


Draws = tuple[jax.Array, jax.Array]  # uniform numbers that choose a batch, and a key for the noise
Logs = tuple[dict[str, jax.Array], dict[str, jax.Array]]  # sums over updates, and counts; see `summed`
AnyState = DQNState | OffPolicyState
Learning = tuple[AnyState, ReplayState]


class Seen(NamedTuple):
    """The part of a step that statistics read `[N, …]`."""

    obs: jax.Array
    reward: jax.Array
    ended: jax.Array
    counts: jax.Array  # [N] float32: 0 after the budget is used up


@dataclass(frozen=True)
class FusedOffPolicy(FusedProgram):
    """A round is a few steps of every environment and the updates that follow. A learning step has as many rounds as
    `updates_per_log` updates need. After the budget is used up, steps do not count and nothing is learned.
    """

    pure: PureDQN | PureOffPolicy
    buffer: ReplayConfig = field(default_factory=ReplayConfig)
    exploration: ExplorationConfig = field(default_factory=EpsilonGreedyConfig)

    def __post_init__(self) -> None:
        every, num_envs = self.buffer.train_every, self.num_envs
        if every % num_envs and num_envs % every:
            raise BadInput(
                f"train_every is {every} with {plural(num_envs, 'environment')}; in one program one must divide the "
                f"other: use --train-every {max(every // num_envs, 1) * num_envs}, or --vectorization sync"
            )
        if self.buffer.capacity // num_envs <= self.buffer.n_step:
            raise BadInput(
                f"capacity {self.buffer.capacity} holds fewer than n_step steps of each of {num_envs} environments"
            )

    @property
    def replay(self) -> FusedReplay:
        """The replay inside the program."""
        return FusedReplay(self.buffer, self.pure.config.gamma, self.num_envs, self.env)

    @property
    def rows_per_round(self) -> int:
        """Steps of every environment between two rounds of updates."""
        return max(1, self.buffer.train_every // self.num_envs)

    @property
    def updates_per_round(self) -> int:
        """Updates after them."""
        return self.buffer.gradient_steps * max(1, self.num_envs // self.buffer.train_every)

    @property
    def rounds(self) -> int:
        """Rounds in one learning step."""
        return -(-self.buffer.updates_per_log // self.updates_per_round)

    @property
    def rows(self) -> int:
        """Steps of every environment in one learning step."""
        return self.rounds * self.rows_per_round

    @property
    def passes(self) -> int:
        """Passes of one learning step over its rows."""
        return max(1, self.rounds * self.updates_per_round * self.buffer.batch_size // self.steps)

    @property
    def acting(self) -> ActEpsilonGreedy | ActByPolicy:
        """How it explores."""
        first_update = max(self.buffer.warmup, self.buffer.batch_size)
        if isinstance(self.exploration, EpsilonGreedyConfig):
            assert isinstance(self.pure, PureDQN)
            return ActEpsilonGreedy(self.pure, self.exploration, self.env.action_spec, first_update)
        assert isinstance(self.pure, PureOffPolicy)
        return ActByPolicy(self.pure, self.exploration, self.env.action_spec, first_update)

    @property
    def reward_bound(self) -> float | None:
        """The largest return that critics with a fixed support can represent."""
        model = self.pure.model
        head = model.critic.head if isinstance(model, ActorCritic) else q_head(model)
        return return_bound(head.v_min, head.v_max) if head is not None and head.kind == "c51" else None

    def begin(self, params: Tree, key: jax.Array) -> Carry:
        carry = super().begin(params, key)
        masked = legal_actions(self.env, carry.env) is not None
        buffer = self.replay.begin(self.env.obs_spec, self.env.action_spec, masked)
        target = jax.tree.map(jnp.array, carry.learner.target)  # donated buffers are not shared
        learner = carry.learner._replace(target=target)
        return carry._replace(learner=learner, buffer=buffer, noise=self.acting.begin(self.num_envs))

    def learn_step(self, carry: Carry) -> tuple[Carry, Report]:
        shape = (self.rounds, self.rows_per_round, self.num_envs)
        before = carry.counters.env_steps
        key, env_key, action_key, draw_key, noise_key = jax.random.split(carry.key, 5)
        settings = self.settings_at(carry.counters)
        numbers = (self.rounds, self.updates_per_round, self.replay.num_draws, self.buffer.batch_size)
        draws = (
            self.env.draw(env_key, shape),
            self.acting.draw(action_key, shape),
            jax.random.uniform(draw_key, numbers),
            jax.random.split(noise_key, (self.rounds, self.updates_per_round + self.rows_per_round)),
        )

        def one_round(carry: Carry, draws: Tree) -> tuple[Carry, tuple[jax.Array, Ends, Logs, Seen | None]]:
            noise, numbers, draws, keys = draws
            began = carry.counters.env_steps
            inputs = (noise, numbers, keys[self.updates_per_round :])
            carry, (reward, ends, seen) = jax.lax.scan(self._act, carry, inputs)
            updates = (draws, keys[: self.updates_per_round])
            # Not cut short by the budget.
            whole = carry.counters.env_steps - began == self.rows_per_round * self.num_envs
            learner, buffer, logs = self._learn(carry, updates, tuple(settings.values()), whole)
            return carry._replace(learner=learner, buffer=buffer), (reward.sum(), ends, logs, seen)

        carry, (reward, ends, logs, seen) = jax.lax.scan(one_round, carry, draws)
        if seen is not None:
            carry = self._with_statistics(carry, seen)
        ends = Ends(*(column.reshape(self.rows, self.num_envs) for column in ends))
        learned, counts = ({name: values.sum() for name, values in part.items()} for part in logs)
        updates = reduce(jnp.maximum, counts.values())  # some numbers are not reported by every update
        learned |= {name: value * updates for name, value in settings.items()}
        counts |= dict.fromkeys(settings, updates)
        report = Report(learned, counts, carry.counters.env_steps - before, reward.sum(), ends)
        return carry._replace(key=key), report

    def _act(
        self, carry: Carry, draws: tuple[Noise, Tree, jax.Array]
    ) -> tuple[Carry, tuple[jax.Array, Ends, Seen | None]]:
        """One step of every environment, stored in the buffer."""
        noise, numbers, key = draws
        obs, mask = normalize(carry.running_stats, carry.obs), legal_actions(self.env, carry.env)
        now = Situation(obs, mask, carry.counters.env_steps, carry.noise)
        action, process = self.acting.act(carry.learner.params, now, numbers, key)
        state, step = step_and_reset(self.env, carry.env, action, noise)
        running, ends = fused_stats.record_step(carry.running, step)
        buffer = self.replay.add(carry.buffer, carry.obs, action, step, mask)
        process = where_rows(step.terminated | step.truncated, jnp.zeros_like(process), process)
        counts = ~self.budget.used(carry.counters)
        ends = ends._replace(how=ends.how * counts)
        episodes = (ends.how > 0).sum(dtype=jnp.int32)
        counters = Counters(carry.counters.env_steps + self.num_envs * counts, carry.counters.episodes + episodes)
        seen = None
        if self.normalize_obs or self.normalize_reward:
            ended, share = step.terminated | step.truncated, jnp.broadcast_to(1.0 * counts, step.reward.shape)
            seen = Seen(carry.obs, step.reward, ended, share)
        carry = carry._replace(buffer=buffer, env=state, obs=step.obs, running=running, counters=counters)
        return carry._replace(noise=process), (step.reward.sum() * counts, ends, seen)

    def _with_statistics(self, carry: Carry, seen: Seen) -> Carry:
        """Statistics of observations and rewards after a learning step, `[rounds, rows, N, …]`."""
        rows = jax.tree.map(lambda column: column.reshape(self.rows, self.num_envs, *column.shape[3:]), seen)
        running_stats, scaler = carry.running_stats, carry.scaler
        if running_stats is not None:
            flat = rows.obs.reshape(self.steps, *rows.obs.shape[2:])
            running_stats = fused_stats.merge(running_stats, flat, rows.counts.reshape(-1))
        if scaler is not None:
            scaler = fused_stats.follow(scaler, rows.reward, rows.ended, self.pure.config.gamma, rows.counts)
        return carry._replace(running_stats=running_stats, scaler=scaler)

    def _prepared(self, carry: Carry, rows: ReplayRows) -> ReplayRows:
        """Rows as the learner sees them: observations normalized, rewards scaled."""
        if carry.running_stats is not None:
            obs, next_obs = (normalize(carry.running_stats, part) for part in (rows.obs, rows.next_obs))
            rows = rows._replace(obs=obs, next_obs=next_obs)
        if carry.scaler is not None:
            rows = rows._replace(reward=rows.reward / fused_stats.reward_scale(carry.scaler, self.reward_bound))
        return rows

    def _learn(
        self, carry: Carry, updates: Draws, rates: tuple[jax.Array, ...], whole: jax.Array
    ) -> tuple[AnyState, ReplayState, Logs]:
        """The updates of one whole round, after the warm-up and once the buffer holds a batch."""
        buffer, counters = self.buffer, carry.counters
        due = whole & (counters.env_steps >= buffer.warmup + buffer.train_every)
        due &= self.replay.complete(carry.buffer) * self.num_envs >= buffer.batch_size

        def update(now: Learning, draws: Draws) -> tuple[Learning, dict[str, jax.Array]]:
            learner, replay = now
            replay, rows, place = self.replay.draw(replay, draws[0])
            rows = self._prepared(carry, rows)
            learner, logs, priority = self.pure.step(learner, rows, draws[1], *rates)  # type: ignore[arg-type]
            return (learner, self.replay.update_priorities(replay, place, priority)), logs

        def learn(now: Learning) -> tuple[Learning, Logs]:
            now, logs = jax.lax.scan(update, now, updates)
            return now, fused_stats.summed(logs)

        now = (carry.learner, carry.buffer)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(learn, now)[1])
        (learner, replay), logs = jax.lax.cond(due, learn, lambda now: (now, nothing), now)
        return learner, replay, logs
