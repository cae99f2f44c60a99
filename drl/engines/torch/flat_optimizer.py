"""An optimizer over one flat tensor.

All parameters (and all gradients) are laid out in one block of memory each; the model's own parameters become views
of it. Zeroing, clipping and the fused Adam are then one kernel each instead of one per parameter.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class FlatOptimizer:
    """Adam or RMSprop with global-norm clipping. Each group of parameters has a learning rate of its own."""

    def __init__(
        self,
        groups: Sequence[Iterable[nn.Parameter]],
        max_grad_norm: float | None = None,
        kind: str = "adam",
        eps: float = 1e-5,
    ):
        seen: set[int] = set()
        members = [_unseen(group, seen) for group in groups]
        everything = [parameter for group in members for parameter in group]
        self.values = torch.cat([p.detach().reshape(-1) for p in everything])
        self.gradients = torch.zeros_like(self.values)
        _point_into(everything, self.values, self.gradients)
        sizes = [sum(p.numel() for p in group) for group in members]
        leaves = [piece.detach() for piece in self.values.split(sizes)]
        for leaf, gradient in zip(leaves, self.gradients.split(sizes), strict=True):
            leaf.grad = gradient
        param_groups = [{"params": [leaf], "lr": 0.0} for leaf in leaves if leaf.numel()]
        self.max_grad_norm = max_grad_norm
        self.inner: torch.optim.Optimizer
        if kind == "adam":
            self.inner = torch.optim.Adam(param_groups, eps=eps, fused=True)
        else:
            self.inner = torch.optim.RMSprop(param_groups, alpha=0.99, eps=eps)

    def zero_grad(self) -> None:
        self.gradients.zero_()

    def step(self, learning_rates: Sequence[float]) -> Tensor:
        """Clip, then step. Returns the gradient norm before clipping."""
        norm = torch.linalg.vector_norm(self.gradients)
        if self.max_grad_norm is not None:
            self.gradients.mul_((self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        for group, rate in zip(self.inner.param_groups, learning_rates, strict=False):
            group["lr"] = rate
        self.inner.step()
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Plain NumPy: the parameters and, per group, what the inner optimizer remembers."""
        memory = [{k: _to_numpy(v) for k, v in self.inner.state[leaf].items()} for leaf in self._leaves()]
        return {"values": _to_numpy(self.values), "memory": memory}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values.copy_(torch.from_numpy(state["values"]))
        for leaf, memory in zip(self._leaves(), state["memory"], strict=True):
            # The step counter stays where the optimizer made it; moments live beside the parameters.
            moved = {k: torch.from_numpy(np.array(v)) for k, v in memory.items()}
            self.inner.state[leaf] = {k: v.to(leaf.device) for k, v in moved.items()}

    def _leaves(self) -> list[Tensor]:
        return [group["params"][0] for group in self.inner.param_groups]


def _to_numpy(tensor: Tensor) -> Any:
    return tensor.detach().cpu().numpy().copy()


def _unseen(parameters: Iterable[nn.Parameter], seen: set[int]) -> list[nn.Parameter]:
    """Those not in an earlier group: a shared backbone belongs to the first group that names it."""
    fresh = [p for p in parameters if id(p) not in seen]
    seen.update(id(p) for p in fresh)
    return fresh


def _point_into(parameters: list[nn.Parameter], values: Tensor, gradients: Tensor) -> None:
    offset = 0
    for parameter in parameters:
        window = slice(offset, offset + parameter.numel())
        parameter.data = values[window].view_as(parameter)
        parameter.grad = gradients[window].view_as(parameter)
        offset += parameter.numel()
