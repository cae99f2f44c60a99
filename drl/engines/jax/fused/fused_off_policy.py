"""DQN with its environments and its replay buffer in one program."""

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

from drl.core.configs import EpsilonGreedyConfig, ReplayConfig
from drl.core.errors import BadInput
from drl.core.schedules import Schedule, epsilon_schedule, schedule
from drl.engines.jax.algorithms.dqn import DQNState, PureDQN, q_head, q_values_of, with_noise
from drl.engines.jax.envs.jax_env import JaxEnv, Noise, State, legal_actions
from drl.engines.jax.envs.stepping import step_and_reset
from drl.engines.jax.fused.counters import Budget, Counters, Setup, new_counters, value_at
from drl.engines.jax.fused.fused_replay import FusedReplay, ReplayState
from drl.engines.jax.fused.step_report import Ends, Report, RunningEpisodes, new_running_episodes, record_step, summed
from drl.engines.jax.layers import Tree, noise_for, random_noise

Draws = tuple[jax.Array, jax.Array]  # uniform numbers that choose a batch, and a key for the noise
Logs = tuple[dict[str, jax.Array], dict[str, jax.Array]]  # sums over updates, and counts; see `summed`
Learning = tuple[DQNState, ReplayState]


class Carry(NamedTuple):
    """The whole state of a run between two learning steps."""

    learner: DQNState
    buffer: ReplayState
    env: State
    obs: jax.Array
    running: RunningEpisodes
    counters: Counters
    key: jax.Array


@dataclass(frozen=True)
class FusedOffPolicy:
    """Configuration and pure functions: a static argument of compiled functions.

    A round is a few steps of every environment and the updates that follow. A learning step has as many rounds as
    `updates_per_log` updates need. After the budget is used up, steps do not count and nothing is learned.
    """

    env: JaxEnv
    pure: PureDQN
    num_envs: int
    budget: Budget
    buffer: ReplayConfig = field(default_factory=ReplayConfig)
    exploration: EpsilonGreedyConfig = field(default_factory=EpsilonGreedyConfig)

    @classmethod
    def make(cls, pure: PureDQN, setup: Setup) -> Self:
        if setup.normalize_obs or setup.normalize_reward:
            raise BadInput("dqn in one program does not normalize; use --vectorization sync")
        return cls(setup.env, pure, setup.num_envs, setup.budget, setup.buffer, setup.exploration)

    def __post_init__(self) -> None:
        every, num_envs = self.buffer.train_every, self.num_envs
        if every % num_envs and num_envs % every:
            raise BadInput(
                f"train_every is {every} with {num_envs} environments; in one program one must divide the other: "
                f"use --train-every {max(every // num_envs, 1) * num_envs}, or --vectorization sync"
            )
        if self.buffer.capacity // num_envs <= self.buffer.n_step:
            raise BadInput(
                f"capacity {self.buffer.capacity} holds fewer than n_step steps of each of {num_envs} environments"
            )

    @property
    def replay(self) -> FusedReplay:
        return FusedReplay(self.buffer, self.pure.config.gamma, self.num_envs)

    @property
    def rows_per_round(self) -> int:
        return max(1, self.buffer.train_every // self.num_envs)

    @property
    def updates_per_round(self) -> int:
        return self.buffer.gradient_steps * max(1, self.num_envs // self.buffer.train_every)

    @property
    def rounds(self) -> int:
        return -(-self.buffer.updates_per_log // self.updates_per_round)

    @property
    def rows(self) -> int:
        """Steps of every environment in one learning step."""
        return self.rounds * self.rows_per_round

    @property
    def steps(self) -> int:
        """Environment steps of one learning step."""
        return self.rows * self.num_envs

    @property
    def passes(self) -> int:
        """Passes of one learning step over its rows."""
        return max(1, self.rounds * self.updates_per_round * self.buffer.batch_size // self.steps)

    @property
    def epsilon(self) -> Schedule:
        """ε over environment steps."""
        head = q_head(self.pure.model)
        noisy = head is not None and head.sigma > 0
        return epsilon_schedule(self.exploration, noisy, max(self.buffer.warmup, self.buffer.batch_size))

    def begin(self, params: Tree, key: jax.Array) -> Carry:
        key, first = jax.random.split(key)
        state = self.env.reset(self.env.draw(first, (self.num_envs,)).reset)
        buffer = self.replay.begin(self.env.obs_spec, self.env.action_spec, legal_actions(self.env, state) is not None)
        learner = self.pure.begin(params)
        learner = learner._replace(target=jax.tree.map(jnp.array, params))
        return Carry(
            learner, buffer, state, self.env.observe(state), new_running_episodes(self.num_envs), new_counters(), key
        )

    def learn_step(self, carry: Carry) -> tuple[Carry, Report]:
        config, shape = self.pure.config, (self.rounds, self.rows_per_round, self.num_envs)
        before = carry.counters.env_steps
        key, env_key, action_key, draw_key, noise_key = jax.random.split(carry.key, 5)
        rate = value_at(schedule(config.learning_rate, config.learning_rate_end), self.budget.progress(carry.counters))
        draws = (
            self.env.draw(env_key, shape),
            jax.random.uniform(action_key, (*shape, 2)),
            jax.random.uniform(draw_key, (self.rounds, self.updates_per_round, 2, self.buffer.batch_size)),
            jax.random.split(noise_key, (self.rounds, self.updates_per_round + self.rows_per_round)),
        )

        def one_round(carry: Carry, draws: Tree) -> tuple[Carry, tuple[jax.Array, Ends, Logs]]:
            noise, coins, draws, keys = draws
            began = carry.counters.env_steps
            carry, (reward, ends) = jax.lax.scan(self._act, carry, (noise, coins, keys[self.updates_per_round :]))
            updates = (draws, keys[: self.updates_per_round])
            whole = (
                carry.counters.env_steps - began == self.rows_per_round * self.num_envs
            )  # not cut short by the budget
            learner, buffer, logs = self._learn(carry, updates, rate, whole)
            return carry._replace(learner=learner, buffer=buffer), (reward.sum(), ends, logs)

        carry, (reward, ends, logs) = jax.lax.scan(one_round, carry, draws)
        ends = Ends(*(column.reshape(self.rows, self.num_envs) for column in ends))
        learned, counts = ({name: values.sum() for name, values in part.items()} for part in logs)
        learned["learning_rate"], counts["learning_rate"] = rate * counts["loss"], counts["loss"]
        report = Report(learned, counts, carry.counters.env_steps - before, reward.sum(), ends)
        return carry._replace(key=key), report

    def _act(self, carry: Carry, draws: tuple[Noise, jax.Array, jax.Array]) -> tuple[Carry, tuple[jax.Array, Ends]]:
        """One step of every environment, stored in the buffer."""
        noise, coins, key = draws
        model, params = self.pure.model, carry.learner.params
        noisy_params = with_noise(params, noise_for(params, partial(random_noise, key)))
        q_values = q_values_of(q_head(model), model.apply(noisy_params, carry.obs))
        mask, count = legal_actions(self.env, carry.env), self.env.action_spec.sizes[0]
        if mask is None:
            random = jnp.int32(coins[:, 1] * count)
        else:  # the n-th legal action
            wanted = jnp.int32(coins[:, 1] * mask.sum(axis=1))
            random = (jnp.cumsum(mask, axis=1) > wanted[:, None]).argmax(axis=1).astype(jnp.int32)
            q_values = jnp.where(mask, q_values, -jnp.inf)
        action = q_values.argmax(axis=-1).astype(jnp.int32)
        action = jnp.where(coins[:, 0] < value_at(self.epsilon, carry.counters.env_steps), random, action)
        state, step = step_and_reset(self.env, carry.env, action, noise)
        running, ends = record_step(carry.running, step)
        buffer = self.replay.add(carry.buffer, carry.obs, action, step)
        counts = ~self.budget.used(carry.counters)
        ends = ends._replace(how=ends.how * counts)
        episodes = (ends.how > 0).sum(dtype=jnp.int32)
        counters = Counters(carry.counters.env_steps + self.num_envs * counts, carry.counters.episodes + episodes)
        carry = carry._replace(buffer=buffer, env=state, obs=step.obs, running=running, counters=counters)
        return carry, (step.reward.sum() * counts, ends)

    def _learn(
        self, carry: Carry, updates: Draws, rate: jax.Array, whole: jax.Array
    ) -> tuple[DQNState, ReplayState, Logs]:
        """The updates of one whole round, after the warm-up and once the buffer holds a batch."""
        buffer, counters = self.buffer, carry.counters
        due = whole & (counters.env_steps >= buffer.warmup + buffer.train_every)
        due &= self.replay.complete(carry.buffer) * self.num_envs >= buffer.batch_size

        def update(now: Learning, draws: Draws) -> tuple[Learning, dict[str, jax.Array]]:
            learner, replay = now
            replay, rows, place = self.replay.draw(replay, draws[0])
            learner, logs, priority = self.pure.step(learner, rows, draws[1], rate)
            return (learner, self.replay.update_priorities(replay, place, priority)), logs

        def learn(now: Learning) -> tuple[Learning, Logs]:
            now, logs = jax.lax.scan(update, now, updates)
            return now, summed(logs)

        now = (carry.learner, carry.buffer)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(learn, now)[1])
        (learner, replay), logs = jax.lax.cond(due, learn, lambda now: (now, nothing), now)
        return learner, replay, logs
