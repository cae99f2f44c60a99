"""An agent that acts by a policy: a policy-value or a policy-only model."""

from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.core.variants import answered_variant, require_variant
from drl.engines.numpy.acting import PolicyActor
from drl.engines.numpy.networks import PolicyNet
from drl.engines.torch.agents import TorchAgent, write_state_dict
from drl.engines.torch.heads import GaussianHead, LogitsHead
from drl.engines.torch.models import Model, PolicyValueModel, known_variant
from drl.engines.torch.numpy_views import NumpyNet, backbone_views, linear_view
from drl.engines.torch.recurrent_views import recurrent_views


@final
class PolicyAgent(PolicyActor, TorchAgent):
    """Samples from its policy when it explores, takes the most likely action when it does not.

    With a recurrent model `decide` and `act` move its memory on; `explain` and `value` only look, as if the observation
    came next.
    """

    def __init__(self, model: nn.Module, *arguments: Any, **options: Any):
        super().__init__(model, *arguments, **options)
        if known_variant(model) == "q_value":
            require_variant("PolicyAgent", "policy_value", "q_value")
        self.variant = answered_variant(self._probe(), self.action_spec, acts_by="policy")
        self.has_value = self.variant == "policy_value"
        self._numpy_net = NumpyNet(model, recurrent_views if self.recurrent else policy_views)

    def decide(self, obs: Array, explore: bool = False) -> Array:
        if not self.recurrent:
            return super().decide(obs, explore)
        params, self.rnn_state = self._step(obs)
        return self.choose(params, explore)

    def policy_params(self, obs: Array) -> Array:
        if self.recurrent:
            return self._step(obs)[0]
        net: PolicyNet | None = self._numpy_net.views()
        if net is not None:
            return net(self.normalize(obs))
        policy = self.model.actor if type(self.model) is PolicyValueModel else self.model
        answer = self.forward(obs, policy)
        params: Array = (answer[0] if isinstance(answer, tuple) else answer).cpu().numpy()
        return params

    def _step(self, obs: Array) -> tuple[Array, Array]:
        """Policy parameters of a recurrent model, and what it remembers after these observations."""
        rnn_state, views = self.recall(len(obs)), self._numpy_net.views()
        if views is not None:
            answer: tuple[Array, Array] = views.step(self.normalize(obs), rnn_state)
            return answer
        after = torch.empty(rnn_state.shape, device=self.device)
        params = self.forward(obs, after=after)
        return (params[0] if self.has_value else params).cpu().numpy(), after.cpu().numpy()

    def critic(self, obs: Array) -> Array:
        answer: Array = self.forward(obs)[1].cpu().numpy()
        return answer

    def save_value_net(self, path: str | Path) -> None:
        """The critic as a plain state dict."""
        if not self.has_value:
            raise BadInput("this agent has a policy-only model; there is no value net to save")
        write_state_dict(getattr(self.model, "critic", self.model), path)


def policy_views(model: nn.Module) -> PolicyNet | None:
    """An MLP policy as views of its parameters; None for other models."""
    actor = model.actor if type(model) is PolicyValueModel else model
    if type(actor) is not Model or type(actor.head) not in (LogitsHead, GaussianHead):
        return None
    layers, head = backbone_views(actor.backbone), actor.head
    if layers is None:
        return None
    if isinstance(head, GaussianHead):
        return PolicyNet([*layers, linear_view(head.mean)], head.log_std.detach().numpy())
    return PolicyNet([*layers, linear_view(head)], None)
