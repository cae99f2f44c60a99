"""An agent that acts by action values: a q-value model."""

from typing import Any, final

from torch import nn

from drl.core.specs import Array
from drl.core.variants import answered_variant, require_variant
from drl.engines.numpy.acting import QActor
from drl.engines.numpy.networks import QNet
from drl.engines.torch.agents import TorchAgent
from drl.engines.torch.heads import QHead
from drl.engines.torch.layers import noisy_layers, resample
from drl.engines.torch.models import Model, known_variant
from drl.engines.torch.numpy_views import NumpyNet, backbone_views, linear_view


@final
class QAgent(QActor, TorchAgent):
    """Takes the action of the highest value; explores by `epsilon`, or by noise where its layers are noisy."""

    variant = "q_value"

    def __init__(self, model: nn.Module, *arguments: Any, **options: Any):
        super().__init__(model, *arguments, **options)
        require_variant("QAgent", "q_value", known_variant(model))
        if not isinstance(getattr(model, "head", None), QHead):
            answered_variant(self._probe(), self.action_spec, acts_by="q")
        self._noisy = noisy_layers(model)
        self._numpy_net = NumpyNet(model, q_views)

    def q_values(self, obs: Array, noisy: bool = False) -> Array:
        if noisy and self._noisy:
            resample(self._noisy, self.rng)  # new noise at every step, also before the first update
        net: QNet | None = None if noisy and self._noisy else self._numpy_net.views()
        if net is not None:
            return net(self.normalize(obs))
        for layer in self._noisy:
            layer.quiet = not noisy
        answer = self.forward(obs)
        for layer in self._noisy:
            layer.quiet = False
        head = getattr(self.model, "head", None)
        values: Array = (head.q_values(answer) if isinstance(head, QHead) else answer).cpu().numpy()
        return values


def q_views(model: nn.Module) -> QNet | None:
    """An MLP with a q head as views of its parameters; None for other models."""
    if type(model) is not Model or type(model.head) is not QHead:
        return None
    layers = backbone_views(model.backbone)
    if layers is None:
        return None
    head = model.head
    value = None if head.state_value is None else linear_view(head.state_value)
    return QNet(layers, linear_view(head.advantage), value, head.kind, head.support.numpy())
