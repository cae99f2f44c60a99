"""Activations in PyTorch, by their names in a config. `gelu` is its tanh form, as in all engines."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from drl.core.errors import BadInput, one_line
from drl.core.network_parts import ACTIVATIONS, part_maker

tanh = nn.Tanh
relu: partial[nn.ReLU] = partial(nn.ReLU, inplace=True)
gelu: partial[nn.GELU] = partial(nn.GELU, approximate="tanh")
silu = nn.SiLU
elu = nn.ELU
leaky_relu = nn.LeakyReLU
selu = nn.SELU
mish = nn.Mish
softplus = nn.Softplus
sigmoid = nn.Sigmoid


class FunctionLayer(nn.Module):
    """A registered function as a layer."""

    def __init__(self, name: str, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.name: str = name
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return self.name


def make_activation(name: str) -> nn.Module:
    """A new layer of this activation."""
    made = part_maker(ACTIVATIONS, name, "torch")
    seen = torch.zeros(2, 3)
    try:
        # A class, or a partial one of ours, makes a module; anything else is the function itself.
        layer: nn.Module = made() if isinstance(made, type | partial) else FunctionLayer(name, made)
        answer = layer(seen.clone())
    except Exception as error:  # it may be a user's
        said = one_line(error, 160)
        raise BadInput(f"activation {name!r} is not a function or module of PyTorch tensors: {said}") from error
    if not isinstance(answer, Tensor) or answer.shape != seen.shape:
        raise BadInput(f"activation {name!r} turns a tensor {tuple(seen.shape)} into another shape; expected the same")
    return layer
