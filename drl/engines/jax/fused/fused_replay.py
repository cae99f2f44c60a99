"""The replay buffer inside a compiled program: a ring of single steps `[L, N]`, joined to n steps when sampled.

Every environment writes one row at a time, so consecutive rows are consecutive steps. A row is sampled only once all
its n steps are stored, so no n-step row crosses the write pointer.

Hindsight replay (see `drl.buffers.hindsight_buffer`) looks up to `max_steps` rows ahead of each sampled row for the end
of its episode.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from drl.core.configs import ReplayConfig
from drl.core.errors import BadInput
from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.jax.envs.jax_env import JaxEnv, JaxStep, where_rows
from drl.engines.jax.ops import ReplayRows

Levels = tuple[jax.Array, ...]  # leaves first, the root last


def new_levels(size: int) -> Levels:
    """
    >>> [level.shape for level in new_levels(5)]
    [(8,), (4,), (2,), (1,)]
    """
    depth = max(size - 1, 1).bit_length()
    return tuple(jnp.zeros(1 << (depth - level)) for level in range(depth + 1))


def total(levels: Levels) -> jax.Array:
    """Sum of all weights."""
    return levels[-1][0]


def set_weights(levels: Levels, index: jax.Array, weight: jax.Array) -> Levels:
    """Change weights; if an index appears twice, one of its weights is used."""
    changed = [levels[0].at[index].set(weight)]
    for above in levels[1:]:
        index, below = index >> 1, changed[-1]
        changed.append(above.at[index].set(below[2 * index] + below[2 * index + 1]))
    return tuple(changed)


def find(levels: Levels, mass: jax.Array) -> jax.Array:
    """For each mass in [0, total): the leaf where the running sum of weights passes it; its weight is not zero."""
    node = jnp.zeros(mass.shape, jnp.int32)
    for level in reversed(levels[:-1]):
        node = 2 * node
        left, right = level[node], level[node + 1]
        goes_right = (mass >= left) & (right > 0)  # so that rounding does not lead to an empty leaf
        mass = jnp.where(goes_right, mass - left, mass)
        node = node + goes_right
    return node


class Steps(NamedTuple):
    """Rows `[L, N, …]`."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_obs: jax.Array  # true successors
    next_action_mask: jax.Array | None = None  # legal actions there; None: all
    action_mask: jax.Array | None = None  # legal actions in `obs`


class ReplayState(NamedTuple):
    """The contents of the replay, as arrays of the program."""

    steps: Steps
    written: jax.Array  # int32: rows since the start
    tree: Levels | None  # priorities by slot · N + environment, if sampling is prioritized
    top: jax.Array  # float32: the maximum of |δ| + ε so far
    beta: jax.Array  # float32


Goal = tuple[jax.Array, jax.Array]  # which rows get another goal [B] bool, and goals [B, G]


@dataclass(frozen=True)
class FusedReplay:
    """A replay buffer inside a compiled program."""

    config: ReplayConfig
    gamma: float
    num_envs: int
    env: JaxEnv | None = None  # whose goal functions hindsight replay asks

    def __post_init__(self) -> None:
        if self.hindsight and not hasattr(self.env, "compute_reward"):
            raise BadInput(
                f"her is {self.config.her!r} on {self.env}, which has no goals; expected a JAX environment with "
                "compute_reward(achieved_goal, desired_goal); use --her none, or --vectorization sync"
            )
        if self.env is not None and self.hindsight and self.env.max_steps is None:
            raise BadInput(
                f"her is {self.config.her!r} on {self.env} without a time limit, which one program needs to find the "
                "ends of episodes; give it one with --env-kwargs max_episode_steps=N, or use --vectorization sync"
            )

    @property
    def hindsight(self) -> bool:
        """Whether goals are replaced."""
        return self.config.her != "none"

    @property
    def num_draws(self) -> int:
        """Uniform numbers per sampled row."""
        return 4 if self.hindsight else 2

    @property
    def length(self) -> int:
        """Steps of every environment that fit."""
        return self.config.capacity // self.num_envs

    def begin(self, obs_spec: ObsSpec, action_spec: ActionSpec, masked: bool = False) -> ReplayState:
        shape = (self.length, self.num_envs)
        obs = jnp.zeros((*shape, *obs_spec.shape), obs_spec.dtype)
        flags = jnp.zeros(shape, bool)
        kind = jnp.float32 if action_spec.kind == "box" else jnp.int32
        action = jnp.zeros((*shape, *action_spec.policy_shape), kind)
        masks = [jnp.ones((*shape, action_spec.num_choices), bool) if masked else None for _ in range(2)]
        # Copies: donated buffers must not be shared.
        steps = Steps(obs, action, jnp.zeros(shape), flags, flags.copy(), obs.copy(), *masks)
        tree = new_levels(self.length * self.num_envs) if self.config.prioritized else None
        return ReplayState(steps, jnp.int32(0), tree, jnp.float32(1.0), jnp.float32(self.config.priority_beta))

    def complete(self, buffer: ReplayState) -> jax.Array:
        """The number of rows that can be sampled, per environment."""
        return jnp.minimum(buffer.written, self.length) - (self.config.n_step - 1)

    def add(
        self,
        buffer: ReplayState,
        obs: jax.Array,
        action: jax.Array,
        step: JaxStep,
        action_mask: jax.Array | None = None,  # legal actions in `obs`
    ) -> ReplayState:
        slot = buffer.written % self.length
        ends = (step.reward, step.terminated, step.truncated)
        new = Steps(obs, action, *ends, step.next_obs, step.next_action_mask, action_mask)
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

    def draw(self, buffer: ReplayState, uniform: jax.Array) -> tuple[ReplayState, ReplayRows, jax.Array]:
        """A batch from uniform numbers `[num_draws, B]`, and the positions of its rows."""
        count = uniform.shape[1]
        if buffer.tree is None:
            back = jnp.int32(uniform[0] * self.complete(buffer))  # 0: the newest complete row
            slot = (buffer.written - self.config.n_step - back) % self.length
            place = slot * self.num_envs + jnp.int32(uniform[1] * self.num_envs)
            return buffer, self._joined(buffer, place, None, uniform[2:]), place
        mass = (jnp.arange(count) + uniform[0]) / count * total(buffer.tree)
        place = find(buffer.tree, mass)
        probability = buffer.tree[0][place] / total(buffer.tree)
        size = self.complete(buffer) * self.num_envs
        weight = (size * probability) ** -buffer.beta
        rows = self._joined(buffer, place, weight / weight.max(), uniform[2:])
        beta = jnp.minimum(buffer.beta + self.config.priority_beta_step, 1.0)
        return buffer._replace(beta=beta), rows, place

    def update_priorities(self, buffer: ReplayState, place: jax.Array, error: jax.Array) -> ReplayState:
        if buffer.tree is None:
            return buffer
        priority = error + self.config.priority_eps
        tree = set_weights(buffer.tree, place, priority**self.config.priority_alpha)
        return buffer._replace(tree=tree, top=jnp.maximum(buffer.top, priority.max()))

    def _joined(
        self, buffer: ReplayState, place: jax.Array, weight: jax.Array | None, uniform: jax.Array
    ) -> ReplayRows:
        """n steps from each place: rewards summed up to the first episode end, and the successor of the last step."""
        steps, slot, env = buffer.steps, place // self.num_envs, place % self.num_envs
        goal = self._choose_goals(buffer, slot, env, uniform) if self.hindsight else None
        reward, alive, last = jnp.zeros(place.shape), jnp.ones(place.shape, bool), slot
        discount = jnp.ones(place.shape)  # γ^k, k: steps so far
        ended = jnp.zeros(place.shape, bool)  # whether the last of these steps was a termination
        for k in range(self.config.n_step):
            now = (slot + k) % self.length
            now_reward, now_terminated = self._outcome(steps, now, env, goal)
            reward = reward + jnp.where(alive, discount * now_reward, 0.0)
            discount = jnp.where(alive, discount * self.gamma, discount)
            last = jnp.where(alive, now, last)
            ended = jnp.where(alive, now_terminated, ended)
            alive = alive & ~(now_terminated | steps.terminated[now, env] | steps.truncated[now, env])
        next_mask = None if steps.next_action_mask is None else steps.next_action_mask[last, env]
        mask = None if steps.action_mask is None else steps.action_mask[slot, env]
        obs, next_obs = self._with_goal(steps.obs[slot, env], goal), self._with_goal(steps.next_obs[last, env], goal)
        return ReplayRows(obs, steps.action[slot, env], reward, discount * ~ended, next_obs, weight, next_mask, mask)

    # ── hindsight ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _choose_goals(self, buffer: ReplayState, slot: jax.Array, env: jax.Array, uniform: jax.Array) -> Goal:
        """Another goal for a share of the rows whose episode has ended."""
        assert self.env is not None
        assert self.env.max_steps is not None
        steps, reach = buffer.steps, jnp.arange(min(self.env.max_steps, self.length))
        newer = (buffer.written - 1 - slot) % self.length  # rows written after this one

        def ends(rows: jax.Array) -> jax.Array:
            at = (rows % self.length, env[:, None])
            return steps.terminated[at] | steps.truncated[at]

        ahead = ends(slot[:, None] + reach) & (reach <= newer[:, None])
        last = ahead.argmax(axis=1)  # steps until the episode's end
        first = jnp.zeros_like(last)
        if self.config.her == "final":
            first = last
        elif self.config.her == "episode":
            older = jnp.minimum(buffer.written, self.length) - 1 - newer  # rows written before this one that are left
            behind = ends(slot[:, None] - 1 - reach) | (reach >= older[:, None])
            first = -behind.argmax(axis=1)
        chosen = jnp.minimum(first + jnp.int32(uniform[1] * (last - first + 1)), last)
        goal = steps.next_obs[(slot + chosen) % self.length, env][:, self._columns("achieved_goal")]
        return (uniform[0] < self.config.her_ratio) & ahead.any(axis=1), goal

    def _outcome(self, steps: Steps, slot: jax.Array, env: jax.Array, goal: Goal | None) -> tuple[jax.Array, jax.Array]:
        """Reward and termination of single steps, some under another goal."""
        reward, terminated = steps.reward[slot, env], steps.terminated[slot, env]
        if goal is None:
            return reward, terminated
        replaced, desired = goal
        achieved = steps.next_obs[slot, env][:, self._columns("achieved_goal")]
        reward = jnp.where(replaced, self.env.compute_reward(achieved, desired), reward)  # type: ignore[union-attr]
        compute_terminated = getattr(self.env, "compute_terminated", None)
        if compute_terminated is not None:
            terminated = jnp.where(replaced, compute_terminated(achieved, desired), terminated)
        return reward, terminated

    def _with_goal(self, obs: jax.Array, goal: Goal | None) -> jax.Array:
        if goal is None:
            return obs
        replaced, desired = goal
        return where_rows(replaced, obs.at[:, self._columns("desired_goal")].set(desired), obs)

    def _columns(self, key: str) -> slice:
        assert self.env is not None
        return self.env.obs_spec.columns(key)
