"""The parts shared by PPO, A2C and REINFORCE: rollouts with values and advantages, a gradient step, the learner."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.core.configs import Config
from drl.core.contracts import Learned, Loss, PolicyOutputs, Rates, RolloutBatch
from drl.core.specs import AnyArray, Distribution, Specs
from drl.engines.jax import ops
from drl.engines.jax.backbones import Obs, fields
from drl.engines.jax.devices import split_rows
from drl.engines.jax.layers import Tree, with_dropout
from drl.engines.jax.learner import Learner, LearnerState, Pure, scalars
from drl.engines.jax.model_state import ModelState
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


@dataclass(frozen=True)
class PureOnPolicy(Pure):
    """An algorithm that learns from rollouts, as pure functions of a state."""

    def step(
        self, state: LearnerState, window: Window, key: jax.Array, rate: ArrayLike, *rates: ArrayLike
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One learning step with random numbers from `key`: the new state, and numbers to log."""
        return self.update(state, window, self.draw(key, window), rate, *rates)

    def draw(self, key: jax.Array, window: Window) -> Tree:
        """The random numbers of one learning step: a key for dropout; None without it."""
        return key if self.drops else None

    def update(
        self, state: LearnerState, window: Window, draws: Tree, rate: ArrayLike, *rates: ArrayLike
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One learning step with given random numbers. `rates` are those that change."""
        raise NotImplementedError

    def gradient_step(
        self, state: LearnerState, rows: Rows, key: ArrayLike | None, rate: ArrayLike, rates: Rates
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One step of the optimizer on rows: the new state, and the mean metrics. `key` is for dropout."""
        if self.config.normalize_advantage:
            rows = rows._replace(advantage=ops.normalize(rows.advantage, rows.weight))

        def loss(params: Tree) -> Loss:
            answer = self.model.apply(with_dropout(params, key), rows.obs)
            dist_params, value = answer if isinstance(answer, tuple) else (answer, None)
            log_prob, entropy = ops.log_prob_and_entropy(self.dist, dist_params, rows.action, rows.action_mask)
            result: Loss = self.hooks.loss(PolicyOutputs(dist_params, value, log_prob, entropy), rows, rates)
            return result

        params, opt_state, result, norm = self.descend(loss, state.params, state.optimizer, rate)
        state = state._replace(params=params, optimizer=opt_state)
        return state, scalars(result.metrics, rows.weight) | {"grad_norm": norm}


_update = jax.jit(lambda pure, *inputs: pure.update(*inputs), static_argnums=0)


class OnPolicyLearner(Learner):
    """Learns from rollouts of its own policy. A subclass has `loss`."""

    PURE: ClassVar[type[Pure]] = PureOnPolicy
    KEYS: ClassVar[Mapping[str, str | None]] = {"opt_state": "optimizer", "rng": None}  # only dropout draws from it

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        config: Config = None,
        rng: np.random.Generator | None = None,  # shuffles the rollout, or draws dropout
    ):
        super().__init__(model_state, specs, config, rng)
        self.opt_state: OptState
        self.running_mean: AnyArray | None
        _, self.opt_state, self.running_mean = self.pure.begin(model_state.params)

    def loss(self, outputs: PolicyOutputs, rows: Rows, rates: Rates) -> Loss:
        """The loss of the model on these rows. `rows.weight` is 0 for rows that do not count."""
        raise NotImplementedError

    def window(self, batch: RolloutBatch) -> Window:
        """The part of a batch that `update` takes."""
        return window_of(batch)

    def draws(self, batch: RolloutBatch) -> Tree:
        """The random numbers of one learning step; see `PureOnPolicy.draw`."""
        return self.dropout_key()

    def learn(self, batch: RolloutBatch, progress: float = 0.0) -> Learned:
        settings = self.settings_at(progress)
        state = LearnerState(self.model_state.params, self.opt_state, self.running_mean)
        inputs = (self.window(batch), self.draws(batch), *map(np.float32, settings.values()))
        state, logs = _update(self.pure, state, *inputs)
        self.model_state.params, self.opt_state, self.running_mean = state
        return Learned({name: float(value) for name, value in logs.items()} | settings)
