"""What every algorithm of this engine offers besides `learn`."""

import numpy as np

from drl.core.specs import Array
from drl.core.variants import require_variant
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.models import known_variant
from drl.engines.jax.on_policy import fields


class Learner:
    """An algorithm and its model state. `needs` is the variant that the model must have."""

    def __init__(self, model_state: ModelState, needs: str):
        require_variant(type(self).__name__, needs, known_variant(model_state.model))
        self.model_state, self.needs = model_state, needs

    def predict(self, obs: Array) -> Array:
        """What the agent chooses an action from, for encoded and normalized observations `[N, …]`: distribution
        parameters, or action values. `agent.act` is this with an encoder and a normalizer before it and the choice
        after it."""
        answer = self.model_state.model.apply(self.model_state.params, fields(obs))
        return np.asarray(answer[0] if isinstance(answer, tuple) else answer)

    def sync_target(self) -> None:
        """Copy the online network into the target network. Without a target network there is nothing to do."""
