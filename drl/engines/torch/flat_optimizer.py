"""Gradient steps on flat parameters: loss, gradient, clipping, then Adam, AdamW or RMSprop, one kernel each.

The whole step is a function of a few tensors, so `compiled=True` fuses it into one program. Every other optimizer of
PyTorch steps on the same parameters, after the same gradient and clipping.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.optim.adamw import adamw

from drl.core.contracts import Loss
from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.core.state_files import StateDict
from drl.engines.torch.compiled_update import compile_failure, compile_method
from drl.engines.torch.flat_parameters import FlatParameters, Groups
from drl.engines.torch.other_optimizers import MakeOptimizers, OtherOptimizer
from drl.engines.torch.recurrent import recurrent_parts

if TYPE_CHECKING:
    from drl.engines.torch.learner_group import SharedGradient

LossOf = Callable[..., Loss]  # (model, *inputs) → what to minimize and what to log
Logged = tuple[dict[str, Tensor], Tensor | None, Sequence[Tensor]]  # the first three fields of `GradientStep`

BETA2 = 0.999  # of Adam: decay of the running mean of squared gradients
RMS_DECAY = 0.99  # of RMSprop
STATE = ("values", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")  # tensors that make up the optimizer's state


class GradientStep(NamedTuple):
    """The result of one gradient step, on the device."""

    metrics: dict[str, Tensor]  # of the loss: scalars, or one number per row `[B]`
    errors: Tensor | None  # [B] the loss's `priority`
    statistics: Sequence[Tensor]  # for batch renormalization
    grad_norm: Tensor  # before clipping

    @property
    def priority(self) -> Array | None:
        """Error of each row, for a prioritized replay buffer."""
        if self.errors is None:
            return None
        errors: Array = self.errors.cpu().numpy()
        return errors

    def log(self, prefix: str = "") -> dict[str, float]:
        """The means of metrics and errors, and the gradient norm, in whose name `prefix` stands first."""
        log = {name: _mean(value) for name, value in self.metrics.items()}
        if self.errors is not None:
            log["mean_error"] = _mean(self.errors)
        log[f"{prefix}grad_norm"] = float(self.grad_norm)
        return log


def mean_log(steps: Sequence[GradientStep]) -> dict[str, float]:
    """The means of several steps' logs. Numbers leave the device once per metric."""
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
    if isinstance(value, Tensor) and value.dim():
        return float(value.cpu().numpy().mean())
    return float(value)


class FlatOptimizer(FlatParameters):
    """Minimizes `loss(model, *inputs)`, one `step` at a time.

    `groups` are pairs of parameters and a factor on the learning rate; a parameter belongs to the first that names it.
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
        if compiled and recurrent_parts(model):
            raise BadInput("compile takes no recurrent model: it would unroll the loop over time; use --compile off")
        super().__init__(model)
        self.loss: LossOf = loss
        self.metrics: tuple[str, ...] | None = None  # names; None before the first step
        self.dropout: list[nn.Module] = dropout_parts(model)
        self.dropout_seed: int = dropout_seed
        self.kind: str | MakeOptimizers = kind
        self.eps: float = eps
        self.max_grad_norm: float | None = max_grad_norm
        self.max_grad_value: float | None = max_grad_value
        self.beta1: float = beta1
        self.amsgrad: bool = amsgrad
        self.weight_decay: float = weight_decay if kind == "adamw" else 0.0
        groups = [(list(members), factor) for members, factor in groups]
        self.rate_factors: Tensor | None = self.factors(groups)  # None: the same rate for all
        self.exp_avg: Tensor = torch.zeros_like(self.values)  # running mean of gradients (Adam)
        self.exp_avg_sq: Tensor = torch.zeros_like(self.values)  # running mean of squared gradients
        self.max_exp_avg_sq: Tensor = torch.zeros_like(self.values)  # the largest of these so far (amsgrad)
        self.count: int = 0  # steps taken
        self._steps = torch.zeros((), device=self.values.device)  # the same for torch's kernel
        self.other: OtherOptimizer | None = None
        if not isinstance(kind, str):
            self.other = OtherOptimizer(kind, self.parameters, groups)
        self.compiled = compiled
        self.compile_seconds: float = 0.0  # of the first compiled step
        self.compile_error: str | None = None  # why compilation failed
        fused = self._fused if self.other is None else self._fused_gradient
        self._program = compile_method(fused, self.values.device.type) if compiled else None
        self._shared: SharedGradient | None = None

    def share(self, shared: "SharedGradient") -> None:
        """Let `shared` compute the gradient from now on: with other processes, each of a part of the inputs."""
        self._shared = shared
        if self.compiled:
            self._program = compile_method(self._fused_gradient, self.values.device.type)

    def step(self, rate: float, *inputs: object) -> GradientStep:
        """One gradient step."""
        if self.dropout and not self.dropout[0].training:
            with self._training_mode():
                return self.step(rate, *inputs)
        self.count += 1
        first = self.parameters[0]
        if first.data_ptr() != self.values.data_ptr() or first.grad is None:
            self.bind()  # the model has moved, or its gradients were cleared
        if self._shared is not None:
            logged = self._shared(self, inputs)
        elif self.other is not None:
            logged = self.gradient(inputs)
        elif self._program is not None:
            state = (self.values, self.exp_avg, self.exp_avg_sq, self.max_exp_avg_sq)
            result = self._compiled(state, self._corrections(rate), inputs)
            if result is not None:
                return GradientStep(*result)
            logged = self.gradient(inputs)
        else:  # as in `gradient`, where one call more is on the way to the loss
            self.gradients.zero_()
            loss = self.loss(self.model, *inputs)
            if type(loss) is not Loss or loss.value.dim():
                self._refuse(loss)
            loss.value.backward()
            logged = self._logged(loss)
        return GradientStep(*logged, self._apply(rate))

    def step_along(self, rate: float, gradient: Tensor) -> None:
        """One step with a gradient `[P]` that is known without a loss."""
        self.count += 1
        self.gradients.copy_(gradient)
        self._apply(rate)

    def gradient(self, inputs: Sequence[object]) -> Logged:
        """Compute `gradients` without a step; returns what the loss logs."""
        if self._program is not None and (result := self._compiled((self.values,), (), inputs)) is not None:
            self.gradients.copy_(result[3])
            return result[:3]
        self.gradients.zero_()
        loss = self.loss(self.model, *inputs)
        if type(loss) is not Loss or loss.value.dim():
            self._refuse(loss)
        loss.value.backward()
        return self._logged(loss)

    def _refuse(self, loss: object) -> None:
        method = getattr(self.loss, "func", self.loss)
        Loss.checked(loss, type(getattr(method, "__self__", method)).__name__)

    def _logged(self, loss: Loss) -> Logged:
        """What a loss logs, without its graph."""
        metrics = {name: each.detach() if isinstance(each, Tensor) else each for name, each in loss.metrics.items()}
        self._check_names(metrics)
        errors = loss.priority if loss.priority is None else loss.priority.detach()
        return metrics, errors, [each.detach() for each in loss.statistics] if loss.statistics else ()

    def _check_names(self, metrics: dict[str, Tensor]) -> None:
        names = tuple(metrics)
        if names != self.metrics:
            if self.metrics is not None:
                before, now = ", ".join(self.metrics), ", ".join(names)
                raise BadInput(f"the loss returned the metrics {before} and now {now}; return the same ones every time")
            self.metrics = names

    def _apply(self, rate: float) -> Tensor:
        """Clip `gradients` and move the parameters along them. Returns the norm before clipping."""
        norm = self._clip(self.gradients)
        if self.other is not None:
            self.other.step(rate)
        elif self.kind == "rmsprop" or self.rate_factors is not None:
            state = (self.values, self.exp_avg, self.exp_avg_sq, self.max_exp_avg_sq)
            self._move(state, self.gradients, self._corrections(rate))
        else:
            self._adam(rate)
        return norm

    def _clip(self, gradient: Tensor) -> Tensor:
        """In place. Returns the norm before clipping."""
        norm = torch.linalg.vector_norm(gradient)
        if self.max_grad_norm is not None:
            gradient.mul_((self.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        if self.max_grad_value is not None:
            gradient.clamp_(-self.max_grad_value, self.max_grad_value)
        return norm

    def _adam(self, rate: float) -> None:
        """What `_move` does for Adam and AdamW, by torch's fused kernel: half of the time, for a CNN a tenth. The
        functional form of `torch.optim` costs 5 % of a small update, its classes with their bookkeeping 15 %."""
        adamw(
            [self.values],
            [self.gradients],
            [self.exp_avg],
            [self.exp_avg_sq],
            [self.max_exp_avg_sq] if self.amsgrad else [],
            [self._steps.fill_(self.count - 1)],
            fused=True,
            amsgrad=self.amsgrad,
            beta1=self.beta1,
            beta2=BETA2,
            lr=rate,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=False,
        )

    def _move(self, state: tuple[Tensor, ...], gradient: Tensor, numbers: Sequence[float] | Tensor) -> None:
        """Move the parameters, in place."""
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

    def _corrections(self, rate: float) -> tuple[float, float, float]:
        """The step size, the factor on the root of the second moment (Adam's bias corrections in both), and what is
        left of each parameter after its decay."""
        if self.kind == "rmsprop":
            return rate, 1.0, 1.0
        step_size, correction = rate / (1 - self.beta1**self.count), (1 - BETA2**self.count) ** -0.5
        return step_size, correction, 1.0 - rate * self.weight_decay

    # ── compiled ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _compiled(
        self, state: tuple[Tensor, ...], numbers: Sequence[float], inputs: Sequence[object]
    ) -> tuple[dict[str, Tensor], Tensor | None, list[Tensor], Tensor] | None:
        """One call of the compiled program; None if it cannot be built on this machine: from then on steps are eager.
        The compiler fails before anything has changed."""
        assert self._program is not None
        started = time.perf_counter()
        try:
            # A tensor, not floats: a new number must not need a new program.
            result = self._program(state, torch.tensor(numbers, device=self.values.device), *inputs)
        except Exception as error:
            self._program, self.compile_error = None, compile_failure(error)
            return None
        if not self.compile_seconds:
            self.compile_seconds = time.perf_counter() - started
            self._check_names(result[0])
        return result

    def _fused(
        self, state: tuple[Tensor, ...], numbers: Tensor, *inputs: object
    ) -> tuple[dict[str, Tensor], Tensor | None, list[Tensor], Tensor]:
        """`step` as one function of tensors, for the compiler."""
        gradient, (metrics, errors, statistics) = self._gradient_and_logged(state[0], inputs)
        norm = self._clip(gradient)
        self._move(state, gradient, numbers)
        scalars = {name: value for name, value in metrics.items() if not value.dim()} | {"": norm}
        scalars = dict(zip(scalars, torch.stack(list(scalars.values())).unbind(), strict=True))  # one kernel for all
        norm = scalars.pop("")
        return metrics | scalars, errors[0] if errors else None, statistics, norm

    def _fused_gradient(
        self, state: tuple[Tensor, ...], numbers: Tensor, *inputs: object
    ) -> tuple[dict[str, Tensor], Tensor | None, list[Tensor], Tensor]:
        """The gradient alone, for an update that is shared and for other optimizers."""
        gradient, (metrics, errors, statistics) = self._gradient_and_logged(state[0], inputs)
        return metrics, errors[0] if errors else None, statistics, gradient

    def _gradient_and_logged(
        self, values: Tensor, inputs: Sequence[object]
    ) -> tuple[Tensor, tuple[dict[str, Tensor], list[Tensor], list[Tensor]]]:
        def loss_of(flat: Tensor) -> tuple[Tensor, tuple[dict[str, Tensor], list[Tensor], list[Tensor]]]:
            views = self.views(flat)
            parameters = {name: views[position] for name, position in self.places.items()}
            loss = self.loss(
                lambda *args, **options: functional_call(self.model, parameters, args, options, tie_weights=False),
                *inputs,
            )
            if type(loss) is not Loss or loss.value.dim():
                self._refuse(loss)
            metrics = {
                name: each if isinstance(each, Tensor) else values.new_tensor(each)
                for name, each in loss.metrics.items()
            }
            return loss.value, (metrics, [] if loss.priority is None else [loss.priority], list(loss.statistics))

        gradient, (_, logged) = grad_and_value(loss_of, has_aux=True)(values)
        return gradient, logged

    @contextlib.contextmanager
    def _training_mode(self) -> Iterator[None]:
        """Dropout on. Random numbers depend on the seed and the step only: a resumed run draws the same ones, and the
        global stream is untouched."""
        device = self.values.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.dropout_seed + self.count)
            for part in self.dropout:
                part.training = True
            try:
                yield
            finally:
                for part in self.dropout:
                    part.training = False

    def state_dict(self) -> StateDict:
        """Plain NumPy."""
        tensors = {name: getattr(self, name) for name in STATE}
        state = {name: tensor.cpu().numpy().copy() for name, tensor in tensors.items()} | {"count": self.count}
        return state if self.other is None else state | {"other": self.other.state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        for name in STATE:
            getattr(self, name).copy_(torch.from_numpy(np.array(state[name])))
        self.count = int(state["count"])
        if self.other is not None:
            self.other.load_state_dict(state["other"])


def dropout_parts(model: nn.Module) -> list[nn.Module]:
    """The parts of a model that are different in training; from now on they are in evaluation mode."""
    kind = nn.modules.dropout._DropoutNd
    parts = [part for part in model.modules() if isinstance(part, kind) or bool(getattr(part, "dropout", False))]
    for part in parts:
        part.training = False
    return parts
