"""Exploration inside a compiled program: `drl.engines.numpy.exploration` as pure functions."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from drl.core.configs import ActionNoiseConfig, EpsilonGreedyConfig, RandomStartConfig
from drl.core.errors import BadInput
from drl.core.schedules import Schedule, epsilon_schedule, schedule_of
from drl.core.specs import ActionSpec
from drl.engines.jax import ops
from drl.engines.jax.algorithms.dqn import PureDQN, q_head, q_values_of, with_noise
from drl.engines.jax.fused.counters import value_at
from drl.engines.jax.layers import Tree, noise_for, random_noise
from drl.engines.jax.off_policy import PureOffPolicy

ExplorationConfig = EpsilonGreedyConfig | RandomStartConfig


class Situation(NamedTuple):
    """What N environments show before a step."""

    obs: jax.Array  # [N, …] normalized
    action_mask: jax.Array | None  # [N, choices] bool: legal actions; None: all
    env_steps: jax.Array  # int32: so far
    noise: jax.Array  # [N, entries] of a process within each episode; see `begin`


class Acting(Protocol):
    """How an algorithm acts while it trains. Configuration only."""

    def begin(self, num_envs: int) -> jax.Array:
        """The state of a noise process, 0 where an episode begins."""
        ...

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> Tree:
        """Random numbers for `shape` actions."""
        ...

    def act(self, params: Tree, now: Situation, draws: Tree, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Actions `[N, …]` in the policy's units, and the noise process after them."""
        ...


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
        draws: dict[str, Any] = {"start": jax.random.uniform(start, entries)}
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


def make_acting(
    pure: PureDQN | PureOffPolicy, config: ExplorationConfig, spec: ActionSpec, first_update: int
) -> Acting:
    """How a program explores."""
    if isinstance(config, EpsilonGreedyConfig):
        assert isinstance(pure, PureDQN)
        return ActEpsilonGreedy(pure, config, spec, first_update)
    assert isinstance(pure, PureOffPolicy)
    return ActByPolicy(pure, config, spec, first_update)
