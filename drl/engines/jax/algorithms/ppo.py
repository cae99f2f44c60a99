"""PPO-clip (Schulman et al., 2017): several epochs of minibatches on each rollout, with a clipped ratio."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.algorithms.ppo import RECORD, PPOConfig
from drl.core.contracts import Loss, PolicyOutputs, Rates, RolloutBatch
from drl.core.errors import BadInput
from drl.core.schedules import Schedule, schedule_of
from drl.core.specs import Specs
from drl.engines.jax import ops
from drl.engines.jax.devices import split_rows
from drl.engines.jax.learner import LearnerState, Metrics, Pure
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.on_policy import (
    OnPolicyLearner,
    PureOnPolicy,
    Rows,
    Window,
    evaluate_rollout,
    minibatch_rows,
    random_orders,
    weight_of,
)
from drl.engines.jax.optimizer import AnyOptimizer, optimizer_of

Draws = tuple[ArrayLike, ArrayLike | None]  # orders of rows `[epochs, T · N]`, invalid ones at the end; dropout's key
Minibatch = tuple[jax.Array, jax.Array | None, jax.Array | None]  # numbers of rows, their weights, a key for dropout
Epoch = tuple[jax.Array, jax.Array | None]  # numbers of rows and keys, for each minibatch
KLCarry = tuple[LearnerState, Metrics, jax.Array, jax.Array]  # state, sums of metrics, epochs, whether to stop


@dataclass(frozen=True)
class PurePPO(PureOnPolicy):
    """PPO as pure functions of a state."""

    config: PPOConfig

    @property
    def optimizer(self) -> AnyOptimizer:
        config = self.config
        if config.critic_learning_rate is None:
            return super().optimizer
        factor = config.critic_learning_rate / config.learning_rate
        return optimizer_of(config, (("critic.", factor),))

    @property
    def schedules(self) -> dict[str, Schedule]:
        always = {rate: schedule_of(self.config, rate) for rate in ("learning_rate", "clip_range")}
        return always | super().schedules

    def draw(self, key: jax.Array, window: Window) -> Draws:
        order = random_orders(key, self.config.epochs, window.valid, window.reward.size)
        return order, jax.random.fold_in(key, 1) if self.drops else None

    def update(
        self, state: LearnerState, window: Window, draws: Draws, rate: ArrayLike, *rates: ArrayLike
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        config, named_rates, (order, key) = self.config, self.rates(rates), draws
        rows = evaluate_rollout(self.model, state.params, self.dist, window, config.gamma, config.gae_lambda)
        index, weight = minibatch_rows(jnp.asarray(order), config.minibatches, window.valid)
        keys = None if key is None else jax.random.split(jnp.asarray(key), (config.epochs, config.minibatches))

        def descend(state: LearnerState, part: Minibatch) -> tuple[LearnerState, Metrics]:
            minibatch = split_rows(rows.take(part[0]))._replace(weight=part[1])
            state, metrics = self.gradient_step(state, minibatch, part[2], rate, named_rates)
            return state, Metrics.of(metrics)

        def epoch(state: LearnerState, rows: Epoch) -> tuple[LearnerState, Metrics]:
            return jax.lax.scan(descend, state, (rows[0], weight, rows[1]))  # metrics: [minibatches, names]

        if config.target_kl is None:
            state, metrics = jax.lax.scan(epoch, state, (index, keys))
            total, epochs = jax.tree.map(lambda values: values.sum(axis=(0, 1)), metrics), jnp.int32(config.epochs)
        else:
            state, total, epochs = _until_too_far(epoch, state, (index, keys), 1.5 * config.target_kl)
        updates = epochs * config.minibatches
        logs = jax.tree.map(lambda values: values / updates, total).named() | {"gradient_steps": updates}
        fit = ops.explained_variance(rows.value, rows.target, weight_of(window))
        return state, logs | {"explained_variance": fit}


def _until_too_far(
    epoch: Callable[[LearnerState, Epoch], tuple[LearnerState, Metrics]],
    state: LearnerState,
    epochs: Epoch,
    limit: float,
) -> tuple[LearnerState, Metrics, jax.Array]:
    """Run epochs until `approx_kl` of the last minibatch of one exceeds `limit`; the remaining epochs do nothing."""

    def run(carry: KLCarry, rows: Epoch) -> KLCarry:
        state, total, count, _ = carry
        state, metrics = epoch(state, rows)
        too_far = metrics.values[-1, metrics.names.index("approx_kl")] > limit
        return state, jax.tree.map(lambda a, b: a + b.sum(axis=0), total, metrics), count + 1, too_far

    def maybe(carry: KLCarry, rows: Epoch) -> tuple[KLCarry, None]:
        return jax.lax.cond(carry[-1], lambda carry, _: carry, run, carry, rows), None

    shapes = jax.eval_shape(epoch, state, jax.tree.map(lambda leaf: leaf[0], epochs))[1]
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), shapes)
    start = (state, nothing, jnp.int32(0), jnp.bool_(False))
    (state, total, count, _), _ = jax.lax.scan(maybe, start, epochs)
    return state, total, count


class PPO(OnPolicyLearner):
    """Learns from rollouts of its own policy. Needs a model state with a policy-value model."""

    record: ClassVar[AlgorithmRecord] = RECORD
    config: PPOConfig
    PURE: ClassVar[type[Pure]] = PurePPO
    RATES: ClassVar[tuple[str, ...]] = ("clip_range", "entropy_coef")
    KEYS: ClassVar[Mapping[str, str | None]] = {"opt_state": "optimizer"}

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        config: PPOConfig | None = None,
        rng: np.random.Generator | None = None,  # shuffles the rollout
    ):
        super().__init__(model_state, specs, config, rng)
        if self.config.critic_learning_rate is not None and getattr(model_state.model, "shared", True):
            raise BadInput("critic_learning_rate needs a critic of its own: a PolicyValueModel with shared off")

    def loss(self, outputs: PolicyOutputs, rows: Rows, rates: Rates) -> Loss:
        """The loss of one minibatch. `rates` has `clip_range` and `entropy_coef`; `rows.weight` is 0 for rows that do
        not count."""
        config, weight = self.config, rows.weight
        log_ratio = outputs.log_prob - rows.log_prob  # [B]
        ratio = jnp.exp(log_ratio)
        surrogate = ops.clipped_surrogate(ratio, rows.advantage, rates.clip_range)
        if config.value_clip is None:
            value_error = jnp.square(outputs.value - rows.target)
        else:
            value_error = ops.clipped_value_error(outputs.value, rows.value, rows.target, config.value_clip)

        policy_loss, value_loss = -ops.mean(surrogate, weight), ops.mean(value_error, weight)
        entropy = ops.mean(outputs.entropy, weight)
        loss = policy_loss + config.value_coef * value_loss - rates.entropy_coef * entropy

        clipped = jnp.clip(ratio, 1 - rates.clip_range, 1 + rates.clip_range)
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": ops.mean((ratio - 1) - log_ratio, weight),  # the low-variance estimate of KL(old ‖ new)
            "clip_fraction": ops.mean((ratio != clipped).astype(jnp.float32), weight),
            "mean_clipped_ratio": ops.mean(clipped, weight),
        }
        return Loss(loss, metrics)

    def draws(self, batch: RolloutBatch) -> Draws:
        """A new random order of the valid rows for every epoch, followed by the invalid ones, and dropout's key."""
        keep, others = np.flatnonzero(batch.valid), np.flatnonzero(~batch.valid)
        orders = [keep[self.rng.permutation(len(keep))] for _ in range(self.config.epochs)]
        return np.array([np.concatenate([order, others]) for order in orders], np.int32), self.dropout_key()
