"""DQN with its environments and its replay buffer, in one program."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from drl.core.configs import DQNConfig
from drl.core.errors import BadInput
from drl.core.schedules import epsilon_schedule, schedule
from drl.engines.jax.algorithms.dqn import DQNState, PureDQN
from drl.engines.jax.envs.jax_env import JaxEnv, Noise
from drl.engines.jax.envs.stepping import step_and_reset
from drl.engines.jax.fused.counters import Budget, Counters, new_counters, value_at
from drl.engines.jax.fused.fused_replay import Buffer, FusedReplay
from drl.engines.jax.fused.step_report import Ends, Report, RunningEpisodes, new_running_episodes, note
from drl.engines.jax.layers import Params, random_noise
from drl.engines.numpy.networks import noise_of


class Carry(NamedTuple):
    """Everything that a run is made of between two learning steps."""

    learner: DQNState
    buffer: Buffer
    env: Any
    obs: jax.Array
    stats: RunningEpisodes
    counters: Counters
    key: jax.Array


@dataclass(frozen=True)
class FusedOffPolicy:
    """A constant to the compiler: configuration and pure functions.

    A round is some steps of every environment and the updates that are due for them; a learning step is as many rounds
    as give `updates_per_log` updates. Once the budget is used up steps are not counted any more and nothing is learned.
    """

    env: JaxEnv
    pure: PureDQN
    num_envs: int
    budget: Budget

    def __post_init__(self) -> None:
        every, num_envs = self.config.train_every, self.num_envs
        if every % num_envs and num_envs % every:
            raise BadInput(
                f"train_every is {every} with {num_envs} environments; in one program one must divide the other: "
                f"use --train-every {max(every // num_envs, 1) * num_envs}, or --vectorization sync"
            )
        if self.config.capacity // num_envs <= self.config.n_step:
            raise BadInput(
                f"capacity {self.config.capacity} holds fewer than n_step steps of each of {num_envs} environments"
            )

    @property
    def config(self) -> DQNConfig:
        return self.pure.config

    @property
    def replay(self) -> FusedReplay:
        return FusedReplay(self.config, self.num_envs)

    @property
    def rows_per_round(self) -> int:
        return max(1, self.config.train_every // self.num_envs)

    @property
    def updates_per_round(self) -> int:
        return self.config.gradient_steps * max(1, self.num_envs // self.config.train_every)

    @property
    def rounds(self) -> int:
        return -(-self.config.updates_per_log // self.updates_per_round)

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
        """How often a learning step goes over its rows."""
        return max(1, self.rounds * self.updates_per_round * self.config.batch_size // self.steps)

    @property
    def exploration(self) -> Any:
        """The share of random actions over environment steps."""
        return epsilon_schedule(self.config, self.pure.model.head.sigma > 0)

    def begin(self, params: Params, key: jax.Array) -> Carry:
        key, first = jax.random.split(key)
        state = self.env.reset(self.env.draw(first, (self.num_envs,)).reset)
        buffer = self.replay.begin(self.env.obs_spec, self.env.action_spec)
        learner = self.pure.begin(params)
        learner = learner._replace(target={name: jnp.array(value) for name, value in params.items()})
        return Carry(
            learner, buffer, state, self.env.observe(state), new_running_episodes(self.num_envs), new_counters(), key
        )

    def learn_step(self, carry: Carry) -> tuple[Carry, Report]:
        config, shape = self.config, (self.rounds, self.rows_per_round, self.num_envs)
        before = carry.counters.env_steps
        key, env_key, action_key, draw_key, noise_key = jax.random.split(carry.key, 5)
        rate = value_at(schedule(config.learning_rate, config.learning_rate_end), self.budget.progress(carry.counters))
        draws = (
            self.env.draw(env_key, shape),
            jax.random.uniform(action_key, (*shape, 2)),
            jax.random.uniform(draw_key, (self.rounds, self.updates_per_round, 2, config.batch_size)),
            jax.random.split(noise_key, (self.rounds, self.updates_per_round + self.rows_per_round)),
        )

        def one_round(carry: Carry, draws: Any) -> tuple[Carry, Any]:
            noise, coins, draws, keys = draws
            began = carry.counters.env_steps
            carry, (reward, ends) = jax.lax.scan(self._act, carry, (noise, coins, keys[self.updates_per_round :]))
            updates = (draws, keys[: self.updates_per_round])
            whole = carry.counters.env_steps - began == self.rows_per_round * self.num_envs  # not cut by the budget
            learner, buffer, logs = self._learn(carry, updates, rate, whole)
            return carry._replace(learner=learner, buffer=buffer), (reward.sum(), ends, logs)

        carry, (reward, ends, logs) = jax.lax.scan(one_round, carry, draws)
        ends = Ends(*(column.reshape(self.rows, self.num_envs) for column in ends))
        numbers = {name: values.sum() for name, values in logs.items()}
        updates = numbers.pop("updates")
        numbers |= {"learning_rate": rate * updates}
        report = Report(numbers, updates, carry.counters.env_steps - before, reward.sum(), ends)
        return carry._replace(key=key), report

    def _act(self, carry: Carry, draws: tuple[Noise, jax.Array, jax.Array]) -> tuple[Carry, tuple[jax.Array, Ends]]:
        """One step of every environment, into the buffer."""
        noise, coins, key = draws
        params = carry.learner.params
        params = params | noise_of(params, partial(random_noise, key))
        head = self.pure.model.head
        action = head.q_values(self.pure.model.apply(params, carry.obs)).argmax(axis=-1).astype(jnp.int32)
        random = jnp.int32(coins[:, 1] * self.env.action_spec.sizes[0])
        epsilon = value_at(self.exploration, carry.counters.env_steps)
        action = jnp.where(coins[:, 0] < epsilon, random, action)
        state, step = step_and_reset(self.env, carry.env, action, noise)
        stats, ends = note(carry.stats, step)
        buffer = self.replay.add(carry.buffer, carry.obs, action, step)
        counts = ~self.budget.used(carry.counters)
        ends = ends._replace(how=ends.how * counts)
        episodes = (ends.how > 0).sum(dtype=jnp.int32)
        counters = Counters(carry.counters.env_steps + self.num_envs * counts, carry.counters.episodes + episodes)
        carry = carry._replace(buffer=buffer, env=state, obs=step.obs, stats=stats, counters=counters)
        return carry, (step.reward.sum() * counts, ends)

    def _learn(
        self, carry: Carry, updates: Any, rate: jax.Array, whole: jax.Array
    ) -> tuple[DQNState, Buffer, dict[str, jax.Array]]:
        """The updates of one whole round, once the warm-up is over and there is a batch to draw."""
        config, counters = self.config, carry.counters
        due = whole & (counters.env_steps >= config.warmup + config.train_every)
        due &= self.replay.complete(carry.buffer) * self.num_envs >= config.batch_size

        def update(now: tuple[DQNState, Buffer], draws: Any) -> tuple[tuple[DQNState, Buffer], dict[str, Any]]:
            learner, buffer = now
            buffer, rows, place = self.replay.draw(buffer, draws[0])
            learner, logs = self.pure.step(learner, rows, draws[1], rate)
            return (learner, self.replay.update_priorities(buffer, place, logs.pop("priority"))), logs

        def learn(now: tuple[DQNState, Buffer]) -> tuple[tuple[DQNState, Buffer], dict[str, Any]]:
            now, logs = jax.lax.scan(update, now, updates)
            return now, {name: values.sum() for name, values in logs.items()} | {"updates": jnp.int32(len(updates[1]))}

        now = (carry.learner, carry.buffer)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(learn, now)[1])
        (learner, buffer), logs = jax.lax.cond(due, learn, lambda now: (now, nothing), now)
        return learner, buffer, logs
