"""The replay buffer inside a compiled program: a ring of single steps `[L, N]`, joined to n steps when sampled.

Every environment writes one row at a time, so consecutive rows are consecutive steps. A row is sampled only once all
its n steps are stored, so no n-step row crosses the write pointer.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from drl.core.configs import ReplayConfig
from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.jax.algorithms.dqn import QRows
from drl.engines.jax.envs.stepping import JaxStep
from drl.engines.jax.fused.jax_sum_tree import Levels, find, new_levels, set_weights, total


class Steps(NamedTuple):
    """Rows `[L, N, …]`."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_obs: jax.Array  # true successors
    next_action_mask: jax.Array | None = None  # legal actions there; None: all


class ReplayState(NamedTuple):
    steps: Steps
    written: jax.Array  # int32: rows since the start
    tree: Levels | None  # priorities by slot · N + environment, if sampling is prioritized
    top: jax.Array  # float32: the maximum of |δ| + ε so far
    beta: jax.Array  # float32


@dataclass(frozen=True)
class FusedReplay:
    config: ReplayConfig
    gamma: float
    num_envs: int

    @property
    def length(self) -> int:
        return self.config.capacity // self.num_envs

    def begin(self, obs_spec: ObsSpec, action_spec: ActionSpec, masked: bool = False) -> ReplayState:
        shape = (self.length, self.num_envs)
        obs = jnp.zeros((*shape, *obs_spec.shape), obs_spec.dtype)
        flags = jnp.zeros(shape, bool)
        kind = jnp.float32 if action_spec.kind == "box" else jnp.int32
        action = jnp.zeros((*shape, *action_spec.policy_shape), kind)
        mask = jnp.ones((*shape, action_spec.num_choices), bool) if masked else None
        # Copies: donated buffers must not be shared.
        steps = Steps(obs, action, jnp.zeros(shape), flags, flags.copy(), obs.copy(), mask)
        tree = new_levels(self.length * self.num_envs) if self.config.prioritized else None
        return ReplayState(steps, jnp.int32(0), tree, jnp.float32(1.0), jnp.float32(self.config.priority_beta))

    def complete(self, buffer: ReplayState) -> jax.Array:
        """The number of rows that can be sampled, per environment."""
        return jnp.minimum(buffer.written, self.length) - (self.config.n_step - 1)

    def add(self, buffer: ReplayState, obs: jax.Array, action: jax.Array, step: JaxStep) -> ReplayState:
        slot = buffer.written % self.length
        ends = (step.reward, step.terminated, step.truncated)
        new = Steps(obs, action, *ends, step.next_obs, step.next_action_mask)
        steps = jax.tree.map(lambda column, row: column.at[slot].set(row), buffer.steps, new)
        tree, envs = buffer.tree, jnp.arange(self.num_envs)
        if tree is not None:
            # The row that this step completed gets the highest priority; the overwritten row gets 0.
            ready = buffer.written - (self.config.n_step - 1)
            weight = jnp.where(ready >= 0, buffer.top**self.config.priority_alpha, 0.0)
            if self.config.n_step > 1:
                tree = set_weights(tree, slot * self.num_envs + envs, jnp.zeros(self.num_envs))
            place = ready % self.length * self.num_envs + envs
            tree = set_weights(tree, place, jnp.broadcast_to(weight, (self.num_envs,)))
        return buffer._replace(steps=steps, written=buffer.written + 1, tree=tree)

    def draw(self, buffer: ReplayState, uniform: jax.Array) -> tuple[ReplayState, QRows, jax.Array]:
        """A batch from uniform numbers `[2, B]`, and the positions of its rows."""
        count = uniform.shape[1]
        if buffer.tree is None:
            back = jnp.int32(uniform[0] * self.complete(buffer))  # 0: the newest complete row
            slot = (buffer.written - self.config.n_step - back) % self.length
            place = slot * self.num_envs + jnp.int32(uniform[1] * self.num_envs)
            return buffer, self._joined(buffer.steps, place, None), place
        mass = (jnp.arange(count) + uniform[0]) / count * total(buffer.tree)
        place = find(buffer.tree, mass)
        probability = buffer.tree[0][place] / total(buffer.tree)
        size = self.complete(buffer) * self.num_envs
        weight = (size * probability) ** -buffer.beta
        rows = self._joined(buffer.steps, place, weight / weight.max())
        beta = jnp.minimum(buffer.beta + self.config.priority_beta_step, 1.0)
        return buffer._replace(beta=beta), rows, place

    def update_priorities(self, buffer: ReplayState, place: jax.Array, error: jax.Array) -> ReplayState:
        if buffer.tree is None:
            return buffer
        priority = error + self.config.priority_eps
        tree = set_weights(buffer.tree, place, priority**self.config.priority_alpha)
        return buffer._replace(tree=tree, top=jnp.maximum(buffer.top, priority.max()))

    def _joined(self, steps: Steps, place: jax.Array, weight: jax.Array | None) -> QRows:
        """n steps from each place: rewards summed up to the first episode end, and the successor of the last step."""
        slot, env = place // self.num_envs, place % self.num_envs
        reward, alive, last = jnp.zeros(place.shape), jnp.ones(place.shape, bool), slot
        discount = jnp.ones(place.shape)  # γ^k, k: steps so far
        for k in range(self.config.n_step):
            now = (slot + k) % self.length
            reward = reward + jnp.where(alive, discount * steps.reward[now, env], 0.0)
            discount = jnp.where(alive, discount * self.gamma, discount)
            last = jnp.where(alive, now, last)
            alive = alive & ~(steps.terminated[now, env] | steps.truncated[now, env])
        continues = discount * ~steps.terminated[last, env]
        mask = None if steps.next_action_mask is None else steps.next_action_mask[last, env]
        rows = (steps.obs[slot, env], steps.action[slot, env], reward, continues, steps.next_obs[last, env])
        return QRows(*rows, weight, mask)
