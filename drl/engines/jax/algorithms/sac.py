"""SAC (Haarnoja et al., 2018), and three algorithms that are settings of it: TQC, CrossQ and normalized SAC.

The actor maximizes the expected Q(s, a) − α log π(a | s): the action value plus α times the policy's entropy. The
temperature α is constant, or learned so that the entropy stays near `target_entropy`. With Discrete actions,
expectations over actions are exact sums (Christodoulou, 2019). TQC (Kuznetsov et al., 2020) has critics of quantiles
and drops the largest from the target. CrossQ (Bhatt et al., 2024) has batch renormalization in its critics and no
target network. Normalized SAC is CrossQ with C51 critics whose hidden weights are scaled to norm 1 after every update.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.algorithms.sac import LIKELY, SAC_RECORD, SACConfig
from drl.core.contracts import ActorOutputs, CriticOutputs, Loss, Rates
from drl.core.specs import AnyArray
from drl.engines.jax import ops
from drl.engines.jax.layers import Tree
from drl.engines.jax.learner import Pure
from drl.engines.jax.off_policy import (
    Actions,
    OffPolicyLearner,
    OffPolicyState,
    PureOffPolicy,
    critic_target,
    reduced,
)
from drl.engines.jax.ops import ReplayRows
from drl.engines.jax.optimizer import Optimizer


@dataclass(frozen=True)
class PureSAC(PureOffPolicy):
    """SAC as pure functions of a state: an actor-critic and the temperature α."""

    config: SACConfig

    @property
    def temperature_optimizer(self) -> Optimizer:
        """Adam with its usual decay rates."""
        return Optimizer("adam", self.config.adam_eps)

    def begin(self, params: Tree) -> OffPolicyState:
        temperature = {"log_alpha": np.full(1, math.log(self.config.temperature), np.float32)}
        state = super().begin(params)
        return state._replace(
            temperature=temperature, temperature_optimizer=self.temperature_optimizer.init(temperature)
        )

    def update_temperature(
        self, state: OffPolicyState, rows: ReplayRows, rate: ArrayLike, logs: dict[str, jax.Array]
    ) -> tuple[OffPolicyState, dict[str, jax.Array]]:
        """The temperature falls where there is more entropy than the target."""
        config = self.config
        if config.learn_temperature:
            gradient = {"log_alpha": (logs["entropy"] - self._entropy_goal(rows))[None]}
            rate = rate * np.float32((config.temperature_learning_rate or config.learning_rate) / config.learning_rate)
            now = (state.temperature, state.temperature_optimizer)
            temperature, optimizer, _ = self.temperature_optimizer.descend(*now, gradient, rate)
            state = state._replace(temperature=temperature, temperature_optimizer=optimizer)
        return state, logs | {"temperature": jnp.exp(state.temperature["log_alpha"][0])}

    def _entropy_goal(self, rows: ReplayRows) -> ArrayLike:
        if rows.action_mask is None or self.config.target_entropy is not None:
            return self.config.entropy_goal(self.action_spec)
        return LIKELY * jnp.log(rows.action_mask.sum(axis=1)).mean()


class SAC(OffPolicyLearner):
    """Needs a model state with an actor-critic model, and Box or Discrete actions. `rates.temperature` is α."""

    record: ClassVar[AlgorithmRecord] = SAC_RECORD
    config: SACConfig
    PURE: ClassVar[type[Pure]] = PureSAC

    @property
    def discrete(self) -> bool:
        """Whether actions are Discrete."""
        return self.action_spec.kind == "discrete"

    def action(self, dist_params: jax.Array, noise: jax.Array, mask: AnyArray | None) -> Actions:
        """A sample and its log-probability `[B]`; with Discrete actions None and those of all actions `[B, A]`."""
        if self.discrete:
            return None, jax.nn.log_softmax(ops.masked(self.dist, dist_params, mask), axis=-1)
        return ops.sample_with_log_prob(self.dist, dist_params, noise)

    def target(self, outputs: CriticOutputs, rows: ReplayRows, rates: Rates) -> jax.Array:
        """The next values and −α · log π; with Discrete actions their expectation under the policy."""
        config, log_prob = self.config, outputs.next_log_prob
        if self.discrete:
            next_q = reduced(outputs.next_q, config.target_q)
            value = (jnp.exp(log_prob) * (next_q - rates.temperature * log_prob)).sum(axis=-1)
            return ops.q_target(rows.reward, rows.discount, value)
        bonus, drop = -rates.temperature * log_prob, config.quantiles_to_drop
        return critic_target(self.model.critic.head, outputs.next_q, bonus, rows, config, drop)

    def actor_loss(self, outputs: ActorOutputs, rows: ReplayRows, rates: Rates) -> Loss:
        """α · log π − Q; with Discrete actions the expectation of it."""
        log_prob, q = outputs.log_prob, reduced(outputs.q, self.config.actor_q)
        if self.discrete:
            log_prob, q = ((jnp.exp(log_prob) * each).sum(axis=-1) for each in (log_prob, q))
        loss = (rates.temperature * log_prob - q).mean()
        return Loss(loss, {"actor_loss": loss, "entropy": -log_prob.mean()})
