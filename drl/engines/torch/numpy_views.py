"""Networks as NumPy arrays that share memory with torch: acting without the framework's overhead.

Training changes parameters in place, so the views follow it. When parameters move (into a flat tensor, to another
device) the views are made again.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from drl.engines.numpy.networks import Layer
from drl.engines.torch.backbones import ACTIVATIONS, MLP
from drl.engines.torch.layers import NoisyLinear


class NumpyNet:
    """Views of a model, made by `make` and made again whenever a part was replaced or parameters have moved."""

    def __init__(self, model: nn.Module, make: Callable[[nn.Module], Any]):
        self.model, self.make = model, make
        self._parts: list[tuple[dict[str, Any], str, Any]] = []  # (where a part is registered, its name, the part)
        self._place = -1  # of the first parameter
        self._views: Any = None

    def views(self) -> Any:
        """What `make` gave, or None where the model has no NumPy form."""
        if not self._parts or not self._unchanged():
            modules = list(self.model.modules())
            tables: list[dict[str, Any]] = [m._modules for m in modules] + [m._parameters for m in modules]
            self._parts = [(table, name, part) for table in tables for name, part in table.items()]
            self._first = next(self.model.parameters())
            self._place = self._first.data_ptr()
            on_cpu = all(p.device.type == "cpu" for p in self.model.parameters())
            self._views = self.make(self.model) if on_cpu else None
        return self._views

    def _unchanged(self) -> bool:
        return self._first.data_ptr() == self._place and all(table[name] is part for table, name, part in self._parts)


def backbone_views(backbone: nn.Module) -> list[Layer] | None:
    """The layers of an MLP over vectors; None for other backbones, also for an MLP with other layers put in."""
    if type(backbone) is not MLP:
        return None
    layers, activations = list(backbone)[0::2], list(backbone)[1::2]
    if any(type(layer) not in (nn.Linear, NoisyLinear) for layer in layers) or len(layers) != len(activations):
        return None
    if any(type(activation) is not ACTIVATIONS[backbone.activation] for activation in activations):
        return None
    return [linear_view(layer, backbone.activation) for layer in layers]


def linear_view(layer: Any, activation: str = "identity") -> Layer:
    """Weight `[in, out]`, bias and activation. Of a noisy layer this is its mean."""
    return layer.weight.detach().numpy().T, layer.bias.detach().numpy(), activation
