"""REINFORCE (Williams, 1992): whole episodes, true returns, and a choice of baseline."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.algorithms.reinforce import RECORD, ReinforceConfig
from drl.core.contracts import Loss, PolicyOutputs, Rates, RolloutBatch
from drl.core.specs import AnyArray, Array
from drl.engines.jax import ops
from drl.engines.jax.devices import split_rows
from drl.engines.jax.layers import Tree
from drl.engines.jax.learner import LearnerState, Pure
from drl.engines.jax.models import value_of
from drl.engines.jax.on_policy import (
    OnPolicyLearner,
    PureOnPolicy,
    Rows,
    Window,
    flat,
    in_chunks,
    successor_values,
    weight_of,
    window_of,
)

SHORTEST = 256  # smallest number of rows after padding


@dataclass(frozen=True)
class PureReinforce(PureOnPolicy):
    """REINFORCE as pure functions of a state.

    The rest of a truncated episode has a value: V(final observation) with baseline `value`, the running mean with
    baseline `mean`, and 0 with baseline `none`.
    """

    config: ReinforceConfig

    def begin(self, params: Tree) -> LearnerState:
        return LearnerState(params, self.optimizer.init(params), np.float32(np.nan))

    def update(
        self, state: LearnerState, window: Window, draws: AnyArray | None, rate: ArrayLike, *rates: ArrayLike
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        returns, baseline, running_mean = self.returns_and_baseline(state, window)
        advantage, target = (returns - baseline).reshape(-1), returns.reshape(-1)
        obs, action, mask = split_rows(flat(window.obs)), flat(window.action), flat(window.action_mask)
        rows = Rows(obs, action, None, baseline.reshape(-1), advantage, target, mask, weight_of(window))
        state, logs = self.gradient_step(state, rows, draws, rate, self.rates(rates))
        if self.config.baseline == "value":
            logs["explained_variance"] = ops.explained_variance(rows.value, target, rows.weight)
        return state._replace(running_mean=running_mean), logs | {"gradient_steps": jnp.int32(1)}

    def returns_and_baseline(self, state: LearnerState, window: Window) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns `[T, N]` with an estimate for the rest of truncated episodes, the baseline, the running mean."""
        config, ends = self.config, (window.terminated, window.truncated, self.config.gamma)
        old = jnp.asarray(state.running_mean)
        if config.baseline == "value":
            value = in_chunks(lambda rows: value_of(self.model, state.params, rows), flat(window.obs))
            values = value.reshape(window.reward.shape)
            tails = successor_values(self.model, state.params, window, values)
            return ops.discounted_returns(window.reward, tails, *ends), values, old
        first = jnp.isnan(old)
        tail = jnp.where(first, 0.0, old) if config.baseline == "mean" else jnp.float32(0.0)
        returns = ops.discounted_returns(window.reward, tail, *ends)
        if config.baseline == "none":
            return returns, jnp.zeros_like(returns), old
        keep, fresh = config.mean_momentum, ops.mean(returns.reshape(-1), weight_of(window))
        running_mean = jnp.where(first, fresh, keep * old + (1 - keep) * fresh)
        return returns, jnp.broadcast_to(running_mean, returns.shape), running_mean


class Reinforce(OnPolicyLearner):
    """Learns from whole episodes of its own policy: a policy-only model, or policy-value with baseline `value`."""

    record: ClassVar[AlgorithmRecord] = RECORD
    config: ReinforceConfig
    PURE: ClassVar[type[Pure]] = PureReinforce
    RATES: ClassVar[tuple[str, ...]] = ("entropy_coef",)

    def loss(self, outputs: PolicyOutputs, rows: Rows, rates: Rates) -> Loss:
        """−A · log π(a|s), an entropy bonus and, with a critic, its error. `rows.target` is the return; `rows.weight`
        is 0 for rows that do not count."""
        weight = rows.weight
        policy_loss, entropy = -ops.mean(rows.advantage * outputs.log_prob, weight), ops.mean(outputs.entropy, weight)
        loss = Loss(policy_loss - rates.entropy_coef * entropy, {"policy_loss": policy_loss, "entropy": entropy})
        if outputs.value is None:
            return loss
        value_loss = ops.mean(jnp.square(outputs.value - rows.target), weight)
        return loss.plus(self.config.value_coef * value_loss, value_loss=value_loss)

    def window(self, batch: RolloutBatch) -> Window:
        return padded(window_of(batch))


def padded(window: Window) -> Window:
    """Pad a window to a power of two with rows that do not count: every new length would compile a new program."""
    length = len(window.reward)
    missing = max(SHORTEST, 1 << (length - 1).bit_length()) - length

    def stretch(array: Array, value: bool | int = 0) -> Array:
        return np.concatenate([array, np.full((missing, *array.shape[1:]), value, array.dtype)])

    rows = {
        n: jax.tree.map(stretch, getattr(window, n)) for n in window._fields if n not in ("last_obs", "action_mask")
    }
    # Padding rows are terminated, so that they do not affect the returns, and have all actions legal.
    mask = None if window.action_mask is None else stretch(window.action_mask, True)
    return window._replace(**rows | {"terminated": stretch(window.terminated, True), "action_mask": mask})
