"""A2C (Mnih et al., 2016, synchronous): one gradient step on each short rollout."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from drl.algorithms.a2c import RECORD, A2CConfig
from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.core.contracts import Loss, PolicyOutputs, Rates
from drl.core.specs import AnyArray
from drl.engines.jax import ops
from drl.engines.jax.devices import split_rows
from drl.engines.jax.learner import LearnerState, Pure
from drl.engines.jax.on_policy import OnPolicyLearner, PureOnPolicy, Rows, Window, evaluate_rollout, weight_of


@dataclass(frozen=True)
class PureA2C(PureOnPolicy):
    """A2C as pure functions of a state."""

    config: A2CConfig

    def update(
        self, state: LearnerState, window: Window, draws: AnyArray | None, rate: ArrayLike, *rates: ArrayLike
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        config = self.config
        rollout = evaluate_rollout(self.model, state.params, self.dist, window, config.gamma, config.gae_lambda)
        rows = split_rows(rollout)._replace(weight=weight_of(window))
        state, logs = self.gradient_step(state, rows, draws, rate, self.rates(rates))
        fit = ops.explained_variance(rollout.value, rollout.target, rows.weight)
        return state, logs | {"explained_variance": fit, "gradient_steps": jnp.int32(1)}


class A2C(OnPolicyLearner):
    """Learns from rollouts of its own policy. Needs a model state with a policy-value model."""

    record: ClassVar[AlgorithmRecord] = RECORD
    config: A2CConfig
    PURE: ClassVar[type[Pure]] = PureA2C
    RATES: ClassVar[tuple[str, ...]] = ("entropy_coef",)

    def loss(self, outputs: PolicyOutputs, rows: Rows, rates: Rates) -> Loss:
        """Policy gradient with a critic, on the whole rollout. `rates` has `entropy_coef`; `rows.weight` is 0 for rows
        that do not count."""
        config, weight = self.config, rows.weight
        policy_loss, entropy = -ops.mean(rows.advantage * outputs.log_prob, weight), ops.mean(outputs.entropy, weight)
        value_loss = ops.mean(jnp.square(outputs.value - rows.target), weight)
        loss = policy_loss + config.value_coef * value_loss - rates.entropy_coef * entropy
        return Loss(loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy})
