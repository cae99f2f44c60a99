"""An agent that acts by action values: a q-value model."""

from functools import partial
from typing import Any, final

import jax
import numpy as np

from drl.core.configs import QModelConfig
from drl.core.specs import Array
from drl.core.variants import answered_variant, require_variant
from drl.engines.jax.agents import JaxAgent, activation_of, is_mlp
from drl.engines.jax.heads import QHead
from drl.engines.jax.layers import Params
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.models import known_variant
from drl.engines.numpy.acting import QActor
from drl.engines.numpy.networks import noise_of, q_net


@final
class QAgent(QActor, JaxAgent):
    """Takes the action of the highest value; explores by `epsilon`, or by noise where its layers are noisy."""

    variant = "q_value"

    def __init__(self, model_state: ModelState, *arguments: Any, **options: Any):
        super().__init__(model_state, *arguments, **options)
        require_variant("QAgent", "q_value", known_variant(model_state.model))
        if not isinstance(getattr(model_state.model, "head", None), QHead):
            answered_variant(self.probe(), self.action_spec, acts_by="q")
        self._config = _numpy_config(model_state.model)
        self._mean = model_state.derived(
            lambda model_state: q_net(model_state.host, self._config) if self._config else None
        )

    def q_values(self, obs: Array, noisy: bool = False) -> Array:
        noise = noise_of(self.model_state.params, partial(self.rng.standard_normal, dtype=np.float32)) if noisy else {}
        seen = self.normalize(obs)
        if self._config is None:
            return np.asarray(_q_values(self.model, self.model_state.params | noise, seen))
        if noise:
            return q_net(self.model_state.host | noise, self._config)(seen)
        answer: Array = self._mean()(seen)
        return answer


def _numpy_config(model: Any) -> QModelConfig | None:
    """What `q_net` wants to know of an MLP's head; None for other models."""
    if not is_mlp(model) or type(model.head) is not QHead:
        return None
    return QModelConfig(activation=activation_of(model), **model.head.shape)


@partial(jax.jit, static_argnums=0)
def _q_values(model: Any, params: Params, obs: Any) -> jax.Array:
    answer: jax.Array = model.apply(params, obs)
    head = getattr(model, "head", None)
    return head.q_values(answer) if isinstance(head, QHead) else answer
