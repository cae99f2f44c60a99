"""A2C (Mnih et al., 2016, synchronous): one gradient step on each short rollout."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from drl.algorithms.a2c import RECORD, A2CConfig
from drl.algorithms.algorithm_record import AlgorithmRecord
from drl.core.contracts import Learned, Loss, PolicyOutputs, Rates, RolloutBatch
from drl.core.specs import Specs
from drl.engines.jax import ops
from drl.engines.jax.devices import split_rows
from drl.engines.jax.layers import Tree, with_dropout
from drl.engines.jax.learner import Learner, Pure, scalars
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.on_policy import (
    LearnerState,
    Rows,
    Window,
    evaluate_rollout,
    normalized,
    policy_outputs,
    weight_of,
    window_of,
)
from drl.engines.jax.optimizer import OptState


@dataclass(frozen=True)
class PureA2C(Pure):
    """A2C as pure functions of a state."""

    config: A2CConfig

    def step(
        self, state: LearnerState, window: Window, key: jax.Array | None, rate: ArrayLike, *rates: ArrayLike
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One learning step on one rollout. `key` is for dropout."""
        config, hooks, weight = self.config, self.hooks, weight_of(window)
        rollout = evaluate_rollout(self.model, state.params, self.dist, window, config.gamma, config.gae_lambda)
        rows = split_rows(rollout)._replace(weight=weight)
        rows = normalized(rows) if config.normalize_advantage else rows

        def loss(params: Tree) -> Loss:
            outputs = policy_outputs(self.model, with_dropout(params, key if self.drops else None), self.dist, rows)
            return hooks.loss(outputs, rows, self.rates(rates))

        params, opt_state, result, norm = self.descend(loss, state.params, state.optimizer, rate)
        fit = ops.explained_variance(rollout.value, rollout.target, weight)
        logs = scalars(result.metrics, weight) | {"grad_norm": norm, "explained_variance": fit}
        return LearnerState(params, opt_state), logs | {"gradient_steps": jnp.int32(1)}


_step = jax.jit(PureA2C.step, static_argnums=0)


class A2C(Learner):
    """Learns from rollouts of its own policy. Needs a model state with a policy-value model."""

    record: ClassVar[AlgorithmRecord] = RECORD
    config: A2CConfig
    PURE: ClassVar[type[Pure]] = PureA2C
    RATES: ClassVar[tuple[str, ...]] = ("entropy_coef",)
    KEYS: ClassVar[Mapping[str, str | None]] = {"opt_state": "optimizer", "rng": None}  # only dropout draws from it

    def __init__(
        self,
        model_state: ModelState,
        specs: Specs,
        config: A2CConfig | None = None,
        rng: np.random.Generator | None = None,  # for dropout
    ):
        super().__init__(model_state, specs, config, rng)
        self.opt_state: OptState = self.pure.optimizer.init(model_state.params)

    def loss(self, outputs: PolicyOutputs, rows: Rows, rates: Rates) -> Loss:
        """Policy gradient with a critic, on the whole rollout. `rates` has `entropy_coef`; `rows.weight` is 0 for rows
        that do not count."""
        config, weight = self.config, rows.weight
        policy_loss, entropy = -ops.mean(rows.advantage * outputs.log_prob, weight), ops.mean(outputs.entropy, weight)
        value_loss = ops.mean(jnp.square(outputs.value - rows.target), weight)
        loss = policy_loss + config.value_coef * value_loss - rates.entropy_coef * entropy
        return Loss(loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy})

    def learn(self, batch: RolloutBatch, progress: float = 0.0) -> Learned:
        settings = self.settings_at(progress)
        inputs = (window_of(batch), self.dropout_key(), *map(np.float32, settings.values()))
        state, logs = _step(self.pure, LearnerState(self.model_state.params, self.opt_state), *inputs)
        self.model_state.params, self.opt_state = state
        return Learned({name: float(value) for name, value in logs.items()} | settings)
