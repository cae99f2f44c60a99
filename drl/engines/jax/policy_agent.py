"""An agent that acts by a policy: a policy-value or a policy-only model."""

from pathlib import Path
from typing import Any, final

import numpy as np

from drl.core.errors import BadInput
from drl.core.pth_files import write_pth
from drl.core.specs import Array
from drl.core.variants import answered_variant, require_variant
from drl.engines.jax.agents import JaxAgent, activation_of, forward, is_mlp
from drl.engines.jax.heads import GaussianHead, LogitsHead, ValueHead
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.models import PolicyValueModel, critic_params, known_variant
from drl.engines.numpy.acting import PolicyActor
from drl.engines.numpy.networks import as_rows, mlp_forward, policy_net, value_layers


@final
class PolicyAgent(PolicyActor, JaxAgent):
    """Samples from its policy when it explores, takes the most likely action when it does not."""

    def __init__(self, model_state: ModelState, *arguments: Any, **options: Any):
        super().__init__(model_state, *arguments, **options)
        if known_variant(model_state.model) == "q_value":
            require_variant("PolicyAgent", "policy_value", "q_value")
        self.variant = answered_variant(self.probe(), self.action_spec, acts_by="policy")
        self.has_value = self.variant == "policy_value"
        self._policy = model_state.derived(_numpy_policy)
        self._critic = model_state.derived(_numpy_critic)

    def policy_params(self, obs: Array) -> Array:
        net, seen = self._policy(), self.normalize(obs)
        return net(seen) if net else np.asarray(forward(self.model, "policy", self.model_state.params, seen))

    def critic(self, obs: Array) -> Array:
        layers, seen = self._critic(), self.normalize(obs)
        if layers:
            return mlp_forward(layers, as_rows(seen))[:, 0]
        return np.asarray(forward(self.model, "value", self.model_state.params, seen))

    def save_value_net(self, path: str | Path) -> None:
        """The critic as a plain state dict."""
        if not self.has_value:
            raise BadInput("this agent has a policy-only model; there is no value net to save")
        whole = type(self.model) is not PolicyValueModel
        write_pth(path, self.model_state.host if whole else critic_params(self.model, self.model_state.host))


def _numpy_policy(model_state: ModelState) -> Any:
    actor = model_state.model.actor if type(model_state.model) is PolicyValueModel else model_state.model
    if not is_mlp(actor) or type(actor.head) not in (LogitsHead, GaussianHead):
        return None
    return policy_net(model_state.host, activation_of(actor))


def _numpy_critic(model_state: ModelState) -> Any:
    if type(model_state.model) is not PolicyValueModel:
        return None
    critic = model_state.model.critic
    known = is_mlp(critic) and type(critic.head) is ValueHead
    return value_layers(model_state.host, activation_of(critic)) if known else None
