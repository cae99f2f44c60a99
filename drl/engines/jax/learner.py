"""The base class of this engine's algorithms."""

import numpy as np

from drl.core.schedules import ScaledRate
from drl.core.specs import Array
from drl.core.variants import require_variant
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.models import known_variant
from drl.engines.jax.on_policy import fields


class Learner(ScaledRate):
    """An algorithm and its model state. `needs` is the variant that the model must have."""

    def __init__(self, model_state: ModelState, needs: str):
        require_variant(type(self).__name__, needs, known_variant(model_state.model))
        self.model_state: ModelState = model_state
        self.needs: str = needs

    def predict(self, obs: Array) -> Array:
        """Distribution parameters or action values, for encoded and normalized observations `[N, …]`. `agent.act`
        encodes and normalizes first, and then chooses an action from them."""
        answer = self.model_state.model.apply(self.model_state.params, fields(obs))
        return np.asarray(answer[0] if isinstance(answer, tuple) else answer)

    def sync_target(self) -> None:
        """Copy the online network into the target network, if there is one."""
