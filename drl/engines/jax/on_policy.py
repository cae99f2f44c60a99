"""The first part of every on-policy update: values, log-probabilities and advantages of a rollout."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.contracts import PolicyOutputs, RolloutBatch
from drl.core.specs import AnyArray, Distribution
from drl.engines.jax import ops
from drl.engines.jax.backbones import Obs, fields
from drl.engines.jax.devices import split_rows
from drl.engines.jax.layers import Tree
from drl.engines.jax.models import AnyModel, value_of
from drl.engines.jax.optimizer import OptState


def random_orders(key: jax.Array, epochs: int, valid: AnyArray | None, count: int) -> jax.Array:
    """`epochs` random orders of `count` rows `[epochs, count]`, rows that are not `valid` (None: all are) at the end.

    Sorts single numbers: random bits above the bits of the row number. This is faster than sorting pairs. In long
    rollouts too few of the 32 bits are random, so pairs are sorted.
    """
    width = max(count - 1, 1).bit_length()
    index = jnp.arange(count, dtype=jnp.uint32)
    random = jax.random.bits(key, (epochs, count), jnp.uint32) >> 1
    last = jnp.uint32(0) if valid is None else jnp.where(jnp.reshape(valid, -1), jnp.uint32(0), jnp.uint32(1 << 31))
    if width > 16:
        rows = jnp.broadcast_to(index, random.shape)
        return jax.lax.sort((random | last, rows), dimension=1, num_keys=1)[1].astype(jnp.int32)
    keyed = (random >> width << width) | index | last
    return (jax.lax.sort(keyed, dimension=1) & jnp.uint32((1 << width) - 1)).astype(jnp.int32)


def minibatch_rows(order: jax.Array, parts: int, valid: AnyArray | None) -> tuple[jax.Array, jax.Array | None]:
    """Split every epoch's order `[epochs, B]` into nearly equal parts of the valid rows, as `torch.tensor_split` does.

    Returns rows `[epochs, parts, width]` and the weight `[parts, width]` of each: 0 beyond the end of a shorter part
    (None: all 1).
    """
    epochs, count = order.shape
    if valid is None and count % parts == 0:
        return order.reshape(epochs, parts, -1), None
    total = count if valid is None else jnp.sum(valid)
    width, number = -(-count // parts), jnp.arange(parts)
    size = total // parts + (number < total % parts)  # [parts]
    start = number * (total // parts) + jnp.minimum(number, total % parts)
    place = jnp.minimum(start[:, None] + jnp.arange(width), count - 1)  # [parts, width]
    weight = (jnp.arange(width) < size[:, None]).astype(jnp.float32)
    return order[:, place], weight


CHUNK = 4096  # rows per forward pass; limits the memory of image rollouts


class LearnerState(NamedTuple):
    """The state that PPO and A2C update."""

    params: Tree
    optimizer: OptState


class Window(NamedTuple):
    """A rollout with dense successors, time-major."""

    obs: Obs  # [T, N, …]
    action: AnyArray  # [T, N, …] in the policy's units
    reward: AnyArray  # [T, N]
    terminated: AnyArray  # [T, N] bool
    truncated: AnyArray  # [T, N] bool
    valid: AnyArray | None  # [T, N] bool: rows that count; None: all
    last_obs: Obs  # [N, …] successors of the last row
    next_obs: Obs  # [T, N, …] true successors; read only where `truncated`
    action_mask: AnyArray | None = None  # [T, N, choices] bool: legal actions; None: all


class Rows(NamedTuple):
    """A rollout flattened to rows `[B, …]`, ready for a loss."""

    obs: Obs
    action: jax.Array
    log_prob: jax.Array | None  # under the policy that collected the rollout; None for REINFORCE
    value: jax.Array  # by the critic before this learning step
    advantage: jax.Array
    target: jax.Array  # target of the value
    action_mask: jax.Array | None = None  # legal actions; None: all
    weight: jax.Array | None = None  # 1 for rows that count, 0 for the others; None: all count

    def take(self, index: jax.Array) -> "Rows":
        rows: Rows = jax.tree.map(lambda column: column[index], self)
        return rows


def window_of(batch: RolloutBatch) -> Window:
    """A batch from the buffer as a Window, with its final observations in `next_obs`."""
    next_obs = np.zeros_like(batch.obs)
    next_obs.reshape(-1, *batch.obs.shape[2:])[batch.final_index] = batch.final_obs
    rows = (fields(batch.obs), batch.action, batch.reward, batch.terminated, batch.truncated, batch.valid)
    return Window(*rows, fields(batch.last_obs), fields(next_obs), batch.action_mask)


def flat(array: Tree) -> Tree:
    """`[T, N, …]` → `[T · N, …]`, for each array of a tree."""
    return jax.tree.map(lambda leaf: jnp.reshape(leaf, (-1, *leaf.shape[2:])), array)


def weight_of(window: Window) -> jax.Array | None:
    """1 for rows that count, 0 for the others `[T · N]`; None: all count."""
    return None if window.valid is None else flat(window.valid).astype(jnp.float32)


def evaluate_rollout(
    model: AnyModel, params: Tree, dist: Distribution, window: Window, gamma: float, lam: float
) -> Rows:
    """One forward pass over the rollout, bootstrap values at truncations, and advantages by GAE(λ)."""
    obs, action, mask = flat(window.obs), flat(window.action), flat(window.action_mask)
    dist_params, value = in_chunks(lambda rows: model.apply(params, split_rows(rows)), obs)
    log_prob, _ = ops.log_prob_and_entropy(dist, dist_params, action, mask)
    values = value.reshape(window.reward.shape)  # [T, N]
    ends = (window.terminated, window.truncated)
    advantage = ops.gae(window.reward, values, successor_values(model, params, window, values), *ends, gamma, lam)
    advantages = advantage.reshape(-1)
    return Rows(obs, action, log_prob, value, advantages, advantages + value, mask)


def successor_values(model: AnyModel, params: Tree, window: Window, values: jax.Array) -> jax.Array:
    """V of every row's true successor `[T, N]`: the value of the next row, or of the final observation at a truncation.

    Truncations are rare: the values of final observations are computed only in rollouts that have one.
    """
    following = jnp.concatenate([values[1:], value_of(model, params, window.last_obs)[None]])

    def with_final_values() -> jax.Array:
        final = in_chunks(lambda rows: value_of(model, params, rows), flat(window.next_obs))
        return jnp.where(window.truncated, final.reshape(values.shape), following)

    return jax.lax.cond(jnp.any(window.truncated), with_final_values, lambda: following)


def policy_outputs(model: AnyModel, params: Tree, dist: Distribution, rows: Rows) -> PolicyOutputs:
    """What the model gives for these rows in one forward pass."""
    answer = model.apply(params, rows.obs)
    dist_params, value = answer if isinstance(answer, tuple) else (answer, None)
    log_prob, entropy = ops.log_prob_and_entropy(dist, dist_params, rows.action, rows.action_mask)
    return PolicyOutputs(dist_params, value, log_prob, entropy)


def normalized(rows: Rows) -> Rows:
    """The same rows with advantages of mean 0 and deviation 1."""
    return rows._replace(advantage=ops.normalize(rows.advantage, rows.weight))


def in_chunks(forward: Callable[[Obs], Tree], obs: Obs) -> Tree:
    """`forward` over all rows; many rows are processed in chunks, one after another."""
    count = len(jax.tree.leaves(obs)[0])
    if count <= CHUNK:
        return forward(obs)
    whole = count // CHUNK * CHUNK
    cut = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, CHUNK, *leaf.shape[1:]), obs)
    joined = jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), jax.lax.map(forward, cut))
    if whole == count:
        return joined
    rest = forward(jax.tree.map(lambda leaf: leaf[whole:], obs))
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), joined, rest)
