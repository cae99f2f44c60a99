"""Gradient steps on the parameters of a model, which lie in one flat tensor; and target networks, which do so too.

All trained parameters lie in one block of memory and all gradients in another; the model's own parameters are views of
the first. Zeroing, clipping, an optimizer's step and a target update are then one kernel each, whatever the number of
layers.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from drl.core.contracts import Loss
from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.core.state_files import StateDict
from drl.engines.torch.compiled_update import CompiledUpdate
from drl.engines.torch.layers import dropout_parts, training_mode
from drl.engines.torch.other_optimizers import MakeOptimizers, OtherOptimizer

if TYPE_CHECKING:
    from drl.engines.torch.learner_group import SharedGradient

LossOf = Callable[..., Loss]  # (model, *inputs) → what to minimize and what to log
Logged = tuple[dict[str, Tensor], Tensor | None, Sequence[Tensor]]  # the first three fields of `GradientStep`
Groups = Sequence[tuple[Iterable[nn.Parameter], float]]  # parameters, and a factor on their learning rate

BETA2 = 0.999  # of Adam: decay of the running mean of squared gradients
RMS_DECAY = 0.99  # of RMSprop
STATE = ("values", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")


class GradientStep(NamedTuple):
    """The result of one gradient step, on the device."""

    metrics: dict[str, Tensor]  # of the loss: scalars, or one number per row `[B]`
    errors: Tensor | None  # [B] the loss's `priority`
    statistics: Sequence[Tensor]  # for batch renormalization
    grad_norm: Tensor  # before clipping

    @property
    def priority(self) -> Array | None:
        """Error of each row, for a prioritized replay buffer."""
        return None if self.errors is None else self.errors.cpu().numpy()

    def log(self, prefix: str = "") -> dict[str, float]:
        """Means of the metrics and of the errors, and the gradient norm, whose name starts with `prefix`."""
        log = {name: _mean(value) for name, value in self.metrics.items()}
        if self.errors is not None:
            log["mean_error"] = _mean(self.errors)
        log[f"{prefix}grad_norm"] = float(self.grad_norm)
        return log


def mean_log(steps: Sequence[GradientStep]) -> dict[str, float]:
    """Means of several steps' logs. Numbers leave the device once per metric."""
    columns = {name: [step.metrics[name] for step in steps] for name in steps[0].metrics}
    columns["grad_norm"] = [step.grad_norm for step in steps]
    log: dict[str, float] = {}
    for name, column in columns.items():
        if isinstance(column[0], Tensor):
            numbers = torch.stack([each.mean() if each.dim() else each for each in column]).cpu().numpy()
        else:
            numbers = np.array(column, np.float32)
        log[name] = float(np.cumsum(numbers)[-1] / np.float32(len(steps)))  # added one after another
    return log


def _mean(value: Tensor | float) -> float:
    return float(value.cpu().numpy().mean() if isinstance(value, Tensor) and value.dim() else value)


class FlatParameters:
    """The trained parameters of a model in one flat tensor. Frozen ones stay where they are."""

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
        """Make the model's parameters views of `values`, which takes over their current numbers."""
        self.values.copy_(torch.cat([_laid_out(p.detach()) for p in self.parameters]))
        views = zip(self.parameters, self.views(self.values), self.views(self.gradients), strict=True)
        for parameter, value, gradient in views:
            parameter.data, parameter.grad = value, gradient

    def bind_copy(self, copied: nn.Module, values: Tensor) -> None:
        """Make the trained parameters of a copy of the model views of `values`."""
        trained = {name for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        parameters = [parameter for name, parameter in copied.named_parameters() if name in trained]
        for parameter, view in zip(parameters, self.views(values), strict=True):
            parameter.data = view

    def views(self, flat: Tensor) -> list[Tensor]:
        """`flat` cut into the model's parameters."""
        pieces = flat.split([shape.numel() for shape in self.shapes])
        return [
            piece.view(shape[1], shape[0]).t() if len(shape) == 2 else piece.view(shape)
            for piece, shape in zip(pieces, self.shapes, strict=True)
        ]


def _laid_out(parameter: Tensor) -> Tensor:
    """Its numbers in the order of the flat tensor. Weights of linear layers are stored as [in, out]: products with few
    inputs are several times faster."""
    return (parameter.t() if parameter.ndim == 2 else parameter).reshape(-1)


class Target:
    """A copy of a module, without gradients, that follows the trained one."""

    def __init__(self, online: FlatParameters, with_buffers: bool = False):  # whether buffers are copied too
        self.online: FlatParameters = online
        self.module: nn.Module = copy.deepcopy(online.model).requires_grad_(False)
        for parameter in self.module.parameters():
            parameter.grad = None
        # Copies of trained parameters lie in one flat tensor too; frozen parameters never differ.
        self.values: Tensor = online.values.clone()
        online.bind_copy(self.module, self.values)
        pairs = zip(self.module.buffers(), online.model.buffers(), strict=True)
        self.buffers: list[tuple[Tensor, Tensor]] = list(pairs) if with_buffers else []  # own, online

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def move(self, share: float) -> None:
        """Move the parameters this share of the way to the online ones, 1 for a full copy, and copy the buffers."""
        self.values.lerp_(self.online.values, share)
        for own, online in self.buffers:
            own.copy_(online)

    def state_dict(self) -> Array:
        return self.values.cpu().numpy().copy()

    def load_state_dict(self, state: Array) -> None:
        self.values.copy_(torch.from_numpy(np.array(state)))


class FlatRule:
    """Adam, AdamW or RMSprop on a flat tensor."""

    def __init__(
        self,
        flat: FlatParameters,
        kind: str,
        eps: float,
        beta1: float,
        amsgrad: bool,
        weight_decay: float,
        factor_of: dict[int, float],  # id of a parameter → factor on its learning rate
    ):
        self.kind: str = kind
        self.eps: float = eps
        self.beta1: float = beta1
        self.amsgrad: bool = amsgrad
        self.weight_decay: float = weight_decay if kind == "adamw" else 0.0
        self.rate_factors: Tensor | None = None  # of each value; None: the same rate for all
        if factor_of:
            factors = [torch.full_like(p, factor_of.get(id(p), 1.0)).reshape(-1) for p in flat.parameters]
            self.rate_factors = torch.cat(factors).detach()
        self.gradients: Tensor = flat.gradients
        # As named in STATE: the values, running means of gradients (Adam) and of squared gradients, and the largest of
        # the latter so far (amsgrad).
        self.state: tuple[Tensor, ...] = (flat.values, *(torch.zeros_like(flat.values) for _ in range(3)))
        self._steps = torch.zeros((), device=flat.values.device)
        values, exp_avg, exp_avg_sq, largest = ([tensor] for tensor in self.state)
        # The same as `move` by torch's fused kernel: half of the time, for a CNN a tenth. The functional form of
        # `torch.optim` costs 5 % of a small update, its classes with their bookkeeping 15 %.
        self._adamw = partial(
            adamw,
            *(values, [flat.gradients], exp_avg, exp_avg_sq, largest if amsgrad else [], [self._steps]),
            fused=True,
            amsgrad=amsgrad,
            beta1=beta1,
            beta2=BETA2,
            weight_decay=self.weight_decay,
            eps=eps,
            maximize=False,
        )

    def step(self, rate: float, count: int) -> None:
        """Move the values along the gradients; `count` is the number of this step, from 1."""
        if self.kind == "rmsprop" or self.rate_factors is not None:
            self.move(self.state, self.gradients, self.corrections(rate, count))
            return
        self._steps.fill_(count - 1)
        self._adamw(lr=rate)

    def move(self, state: tuple[Tensor, ...], gradient: Tensor, numbers: Sequence[float] | Tensor) -> None:
        """Move the values of `state` along a gradient, in place. `numbers` are those of `corrections`."""
        values, exp_avg, exp_avg_sq, max_exp_avg_sq = state
        step_size, correction, decay = numbers[0], numbers[1], numbers[2]
        with torch.no_grad():
            if self.kind == "rmsprop":
                exp_avg_sq.mul_(RMS_DECAY).addcmul_(gradient, gradient, value=1 - RMS_DECAY)
                direction = gradient / (exp_avg_sq.sqrt() + self.eps)
            else:
                exp_avg.lerp_(gradient, 1 - self.beta1)
                exp_avg_sq.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
                largest = torch.maximum(max_exp_avg_sq, exp_avg_sq, out=max_exp_avg_sq) if self.amsgrad else exp_avg_sq
                direction = exp_avg / (largest.sqrt() * correction + self.eps)
            if self.rate_factors is not None:
                direction = direction * self.rate_factors
            if self.weight_decay:
                values.mul_(decay)
            values.sub_(direction * step_size)

    def corrections(self, rate: float, count: int) -> tuple[float, float, float]:
        """The step size, the factor on the root of the second moment (both with Adam's bias correction), and the share
        of each parameter that its decay leaves."""
        if self.kind == "rmsprop":
            return rate, 1.0, 1.0
        step_size, correction = rate / (1 - self.beta1**count), (1 - BETA2**count) ** -0.5
        return step_size, correction, 1.0 - rate * self.weight_decay

    def state_dict(self) -> StateDict:
        return {name: tensor.cpu().numpy().copy() for name, tensor in zip(STATE, self.state, strict=True)}

    def load_state_dict(self, state: StateDict) -> None:
        for name, tensor in zip(STATE, self.state, strict=True):
            tensor.copy_(torch.from_numpy(np.array(state[name])))


class FlatOptimizer(FlatParameters):
    """Minimizes `loss(model, *inputs)`, one `step` at a time: the gradient, clipping, then the step of a rule.

    `groups` are pairs of parameters and a factor on the learning rate; a parameter belongs to the first that has it.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossOf,
        kind: str | MakeOptimizers = "adam",  # adam · adamw · rmsprop, or a function that makes others
        eps: float = 1e-5,
        max_grad_norm: float | None = None,  # of all gradients together
        max_grad_value: float | None = None,  # of each gradient
        beta1: float = 0.9,  # of Adam: decay of the running mean of gradients
        amsgrad: bool = False,  # divide by the largest second moment so far
        weight_decay: float = 0.0,  # of adamw: share of each parameter that is lost per unit of learning rate
        groups: Groups = (),
        compiled: bool = False,
        dropout_seed: int = 0,
    ):
        super().__init__(model)
        self.loss: LossOf = loss
        self.max_grad_norm: float | None = max_grad_norm
        self.max_grad_value: float | None = max_grad_value
        self.count: int = 0  # steps so far
        self.metrics: tuple[str, ...] | None = None  # names; None before the first step
        self.dropout: list[nn.Module] = dropout_parts(model)
        self.dropout_seed: int = dropout_seed
        factor_of = {id(p): factor for members, factor in reversed(groups) for p in members}
        self.rule: FlatRule | OtherOptimizer = (
            FlatRule(self, kind, eps, beta1, amsgrad, weight_decay, factor_of)
            if isinstance(kind, str)
            else OtherOptimizer(kind, self.parameters, factor_of)
        )
        self.program: CompiledUpdate | None = None
        if compiled:
            self.program = CompiledUpdate(self, self.rule if isinstance(self.rule, FlatRule) else None)
        self.shared: SharedGradient | None = None

    def share(self, shared: "SharedGradient") -> None:
        """Let `shared` compute the gradient from now on: with other processes, each of a part of the inputs."""
        self.shared = shared
        if self.program is not None:
            self.program = CompiledUpdate(self, None)

    def step(self, rate: float, *inputs: object) -> GradientStep:
        """One gradient step."""
        if self.dropout and not self.dropout[0].training:
            # The seed and the step alone decide: a resumed run draws the same numbers.
            with training_mode(self.dropout, self.dropout_seed + self.count, self.values.device):
                return self.step(rate, *inputs)
        self.count += 1
        first = self.parameters[0]
        if first.data_ptr() != self.values.data_ptr() or first.grad is None:
            self.bind()  # the model has moved, or its gradients were cleared
        if self.shared is not None:
            logged = self.shared(self, inputs)
        elif self.program is None:  # as in `gradient`, where one call more is on the way to the loss
            logged = self._backward(self.loss(self.model, *inputs))
        elif (step := self.program.step(rate, self.count, inputs)) is not None:
            return GradientStep(*step)
        else:
            logged = self.gradient(inputs)
        norm = self.clip(self.gradients)
        self.rule.step(rate, self.count)
        return GradientStep(*logged, norm)

    def step_along(self, rate: float, gradient: Tensor) -> None:
        """One step with a known gradient `[P]`."""
        self.count += 1
        self.gradients.copy_(gradient)
        self.clip(self.gradients)
        self.rule.step(rate, self.count)

    def gradient(self, inputs: Sequence[object]) -> Logged:
        """Compute `gradients` without a step; returns what the loss logs."""
        if self.program is not None and (logged := self.program.gradient(inputs)) is not None:
            return logged
        return self._backward(self.loss(self.model, *inputs))

    def _backward(self, loss: Loss) -> Logged:
        """Compute `gradients` of a loss; returns what it logs, without its graph."""
        self.require(loss)
        self.gradients.zero_()
        loss.value.backward()
        metrics = {name: each.detach() if isinstance(each, Tensor) else each for name, each in loss.metrics.items()}
        if tuple(metrics) != self.metrics:
            self.name_metrics(metrics)
        errors = loss.priority if loss.priority is None else loss.priority.detach()
        return metrics, errors, [each.detach() for each in loss.statistics] if loss.statistics else ()

    def require(self, loss: object) -> None:
        """Raise unless this is a `Loss` with a scalar."""
        if type(loss) is not Loss or loss.value.dim():
            method = getattr(self.loss, "func", self.loss)  # of a partial
            Loss.checked(loss, type(getattr(method, "__self__", method)).__name__)

    def name_metrics(self, metrics: dict[str, Tensor]) -> None:
        """Take the names of the first step's metrics, which later steps must have too."""
        if self.metrics is not None and tuple(metrics) != self.metrics:
            before, now = ", ".join(self.metrics), ", ".join(metrics)
            raise BadInput(f"the loss returned the metrics {before} and now {now}; return the same ones every time")
        self.metrics = tuple(metrics)

    def clip(self, gradient: Tensor) -> Tensor:
        """Clip a gradient in place. Returns its norm before."""
        norm = torch.linalg.vector_norm(gradient)
        if self.max_grad_norm is not None:
            gradient.mul_((self.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        if self.max_grad_value is not None:
            gradient.clamp_(-self.max_grad_value, self.max_grad_value)
        return norm

    def state_dict(self) -> StateDict:
        """Plain NumPy."""
        return {"values": self.values.cpu().numpy().copy(), "count": self.count} | self.rule.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        self.values.copy_(torch.from_numpy(np.array(state["values"])))
        self.count = int(state["count"])
        self.rule.load_state_dict(state)
