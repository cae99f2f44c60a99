"""Parameters of a model in one flat tensor, and target networks.

All trained parameters lie in one block of memory and all gradients in another; the model's own parameters are views of
the first. Zeroing, clipping, an optimizer's step and a target update are then one kernel each, whatever the number of
layers.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drl.core.errors import BadInput
from drl.core.specs import Array

Groups = Sequence[tuple[Iterable[nn.Parameter], float]]  # parameters, and a factor on their learning rate


class FlatParameters:
    """The trained parameters of a model. Frozen ones stay where they are."""

    def __init__(self, model: nn.Module):
        self.model: nn.Module = model
        self.parameters: list[nn.Parameter] = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise BadInput(f"all parameters of {type(model).__name__} are frozen; leave some of them out of freeze")
        position = {id(p): i for i, p in enumerate(self.parameters)}
        # Every trained parameter of every module once, by name: a tied one has several names and one position.
        self.places: dict[str, int] = {
            f"{prefix}.{name}" if prefix else name: position[id(p)]
            for prefix, module in model.named_modules()
            for name, p in module.named_parameters(recurse=False)
            if p.requires_grad
        }
        self.shapes: list[torch.Size] = [p.shape for p in self.parameters]
        self.values: Tensor = torch.cat([_laid_out(p.detach()) for p in self.parameters])
        self.gradients: Tensor = torch.zeros_like(self.values)
        self.bind()

    def bind(self) -> None:
        """Make the model's parameters views of `values`, with the numbers that they have now."""
        self.values.copy_(torch.cat([_laid_out(p.detach()) for p in self.parameters]))
        views = zip(self.views(self.values), self.views(self.gradients), strict=True)
        for parameter, (value, gradient) in zip(self.parameters, views, strict=True):
            parameter.data, parameter.grad = value, gradient

    def bind_copy(self, copied: nn.Module, values: Tensor) -> Tensor:
        """Make the trained parameters of a copy of the model views of `values`, laid out as our own; returns these."""
        trained = {name for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        parameters = [parameter for name, parameter in copied.named_parameters() if name in trained]
        for parameter, view in zip(parameters, self.views(values), strict=True):
            parameter.data = view
        return values

    def views(self, flat: Tensor) -> list[Tensor]:
        """`flat` cut into the model's parameters."""
        sizes = [shape.numel() for shape in self.shapes]
        return [
            piece.view(shape[1], shape[0]).t() if len(shape) == 2 else piece.view(shape)
            for piece, shape in zip(flat.split(sizes), self.shapes, strict=True)
        ]

    def factors(self, groups: Groups) -> Tensor | None:
        """A factor for each entry of `values`; None without groups. A parameter belongs to the first that has it."""
        if not groups:
            return None
        factor_of: dict[int, float] = {}
        for members, factor in groups:
            for parameter in members:
                factor_of.setdefault(id(parameter), factor)
        return torch.cat(
            [torch.full((p.numel(),), factor_of.get(id(p), 1.0), device=p.device) for p in self.parameters]
        )


class Target:
    """A copy of a module, without gradients, that follows the trained one."""

    def __init__(self, online: FlatParameters):
        self.online: FlatParameters = online
        self.module: nn.Module = copy.deepcopy(online.model).requires_grad_(False)
        for parameter in self.module.parameters():
            parameter.grad = None
        # Copies of trained parameters lie in one flat tensor too; frozen parameters never differ.
        self.values: Tensor = online.bind_copy(self.module, online.values.clone())

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def move(self, share: float) -> None:
        """Towards the online network: by this share of the way, 1 for a full copy."""
        self.values.lerp_(self.online.values, share)

    def state_dict(self) -> Array:
        return self.values.cpu().numpy().copy()

    def load_state_dict(self, state: Array) -> None:
        self.values.copy_(torch.from_numpy(np.array(state)))


def _laid_out(parameter: Tensor) -> Tensor:
    """Its numbers in the order of the flat tensor. Weights of linear layers are stored as [in, out]: products with few
    inputs are several times faster."""
    return (parameter.t() if parameter.ndim == 2 else parameter).reshape(-1)
