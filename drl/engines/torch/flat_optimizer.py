"""Gradient descent on one flat tensor.

All parameters lie in one block of memory, all gradients in another; the model's own parameters are views of the first.
Zeroing, clipping and each line of Adam are then one kernel, whatever the number of layers. And because the whole step
is a function of a few tensors, `compiled=True` can fuse loss, gradient, clipping and Adam into one program.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

Loss = Callable[..., tuple[Tensor, Tensor]]  # (model, *inputs) → (scalar to minimise, vector of numbers to log)

BETAS = (0.9, 0.999)  # of Adam
RMS_DECAY = 0.99  # of RMSprop


class FlatOptimizer:
    """Minimises `loss(model, *inputs)`, one `descend` at a time.

    `groups` are pairs of parameters and a factor on the learning rate; a parameter belongs to the first that names it.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        kind: str = "adam",  # adam · rmsprop
        eps: float = 1e-5,
        max_grad_norm: float | None = None,  # of all gradients together
        groups: Sequence[tuple[Iterable[nn.Parameter], float]] = (),
        compiled: bool = False,
    ):
        self.model, self.loss = model, loss
        self.kind, self.eps, self.max_grad_norm = kind, eps, max_grad_norm
        self.parameters = [p for p in model.parameters() if p.requires_grad]  # frozen ones stay as they are
        position = {id(p): i for i, p in enumerate(self.parameters)}
        # Every trained parameter of every module once, by name: a tied one has several names and one position.
        self.places = {
            f"{prefix}.{name}" if prefix else name: position[id(p)]
            for prefix, module in model.named_modules()
            for name, p in module.named_parameters(recurse=False)
            if p.requires_grad
        }
        self.shapes = [p.shape for p in self.parameters]
        self.values = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.gradients = torch.zeros_like(self.values)
        self.factors = _factors(self.parameters, groups)  # None: the same rate for all
        self._bind()
        self.first = torch.zeros_like(self.values)  # running mean of gradients (Adam)
        self.second = torch.zeros_like(self.values)  # running mean of squared gradients
        self.count = 0  # steps taken
        self.compile_seconds = 0.0  # what the first compiled step took
        self._program = torch.compile(self._fused) if compiled else None

    def descend(self, rate: float, *inputs: Any) -> Tensor:
        """One gradient step. Returns what the loss logs, followed by the gradient norm before clipping."""
        self.count += 1
        step_size, correction = self._corrections(rate)
        first = self.parameters[0]
        if first.data_ptr() != self.values.data_ptr() or first.grad is None:
            self._bind()  # someone moved the model, or cleared its gradients, since
        if self._program is not None:
            # Tensors, not floats: a new number must not mean a new program.
            scalars = torch.tensor([step_size, correction], device=self.values.device)
            started = time.perf_counter()
            logged: Tensor = self._program(self.values, self.first, self.second, scalars, *inputs)
            self.compile_seconds = self.compile_seconds or time.perf_counter() - started
            return logged
        self.gradients.zero_()
        loss, logged = self.loss(self.model, *inputs)
        loss.backward()
        norm = self._move(self.values, self.gradients, self.first, self.second, step_size, correction)
        return torch.cat([logged, norm[None]])

    def _fused(self, values: Tensor, first: Tensor, second: Tensor, scalars: Tensor, *inputs: Any) -> Tensor:
        """`descend` as one function of tensors, for the compiler."""

        def loss_of(flat: Tensor) -> tuple[Tensor, Tensor]:
            views = self._views(flat)
            parameters = {name: views[position] for name, position in self.places.items()}
            return self.loss(lambda obs: functional_call(self.model, parameters, (obs,), tie_weights=False), *inputs)

        gradient, (_, logged) = grad_and_value(loss_of, has_aux=True)(values)
        norm = self._move(values, gradient, first, second, scalars[0], scalars[1])
        return torch.cat([logged, norm[None]])

    def _move(
        self,
        values: Tensor,
        gradient: Tensor,
        first: Tensor,
        second: Tensor,
        step_size: float | Tensor,
        correction: float | Tensor,
    ) -> Tensor:
        """Clip, then step, in place. Returns the norm before clipping."""
        with torch.no_grad():
            norm = torch.linalg.vector_norm(gradient)
            if self.max_grad_norm is not None:
                gradient = gradient * (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            if self.kind == "adam":
                first.lerp_(gradient, 1 - BETAS[0])
                second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
                direction = first / (second.sqrt() * correction + self.eps)
            else:
                second.mul_(RMS_DECAY).addcmul_(gradient, gradient, value=1 - RMS_DECAY)
                direction = gradient / (second.sqrt() + self.eps)
            if self.factors is not None:
                direction = direction * self.factors
            values.sub_(direction * step_size)
        return norm

    def _corrections(self, rate: float) -> tuple[float, float]:
        """Adam's bias corrections, folded into the rate and into the root of the second moment."""
        if self.kind != "adam":
            return rate, 1.0
        return rate / (1 - BETAS[0] ** self.count), (1 - BETAS[1] ** self.count) ** -0.5

    def _bind(self) -> None:
        """Make the model's parameters views of `values`, keeping what they hold."""
        self.values.copy_(torch.cat([p.detach().reshape(-1) for p in self.parameters]))
        views = zip(self._views(self.values), self._views(self.gradients), strict=True)
        for parameter, (value, gradient) in zip(self.parameters, views, strict=True):
            parameter.data, parameter.grad = value, gradient

    def _views(self, flat: Tensor) -> list[Tensor]:
        """`flat` cut into the model's parameters."""
        sizes = [shape.numel() for shape in self.shapes]
        return [piece.view(shape) for piece, shape in zip(flat.split(sizes), self.shapes, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Plain NumPy."""
        tensors = {"values": self.values, "first": self.first, "second": self.second}
        return {name: tensor.cpu().numpy().copy() for name, tensor in tensors.items()} | {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("values", "first", "second"):
            getattr(self, name).copy_(torch.from_numpy(np.array(state[name])))
        self.count = int(state["count"])


def _factors(
    parameters: Sequence[nn.Parameter], groups: Sequence[tuple[Iterable[nn.Parameter], float]]
) -> Tensor | None:
    if not groups:
        return None
    factor_of: dict[int, float] = {}
    for members, factor in groups:
        for parameter in members:
            factor_of.setdefault(id(parameter), factor)
    return torch.cat([torch.full((p.numel(),), factor_of.get(id(p), 1.0), device=p.device) for p in parameters])
