"""Gradient descent on one flat tensor.

All parameters lie in one block of memory, all gradients in another; the model's own parameters are views of the first.
Zeroing, clipping and Adam are then one kernel each, whatever the number of layers. And because the whole step is a
function of a few tensors, `compiled=True` can fuse loss, gradient, clipping and Adam into one program. Every other
optimizer of PyTorch steps on the same parameters, after the same gradient and clipping.
"""

import contextlib
import copy
import os
import time
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.optim.adamw import adamw

from drl.core.contracts import Loss
from drl.core.errors import BadInput
from drl.core.safe_files import cache_folder
from drl.core.specs import Array
from drl.core.state_files import StateDict
from drl.engines.torch.other_optimizers import MakeOptimizers, OtherOptimizer
from drl.engines.torch.recurrent import recurrent_parts

if TYPE_CHECKING:
    from drl.engines.torch.learner_group import SharedGradient

LossOf = Callable[..., Loss]  # (model, *inputs) → what to minimize and what to log

BETA2 = 0.999  # of Adam: decay of the running mean of squared gradients
RMS_DECAY = 0.99  # of RMSprop
STATE = ("values", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")  # tensors that make up the optimizer's state


class CompileUnavailable(UserWarning):
    """There is no compiler that can build the update; it is computed eagerly."""


class Layout(NamedTuple):
    """What the numbers that `descend` returns are, in order."""

    scalars: tuple[str, ...]  # metrics with one number
    columns: tuple[str, ...]  # metrics with a number for each row
    priority: bool  # whether each row's priority follows
    statistics: int  # how many numbers for batch renormalization follow

    @property
    def row_columns(self) -> int:
        """Columns with a number for each row."""
        return len(self.columns) + self.priority


class Step(NamedTuple):
    """One gradient step in plain numbers."""

    metrics: dict[str, float]  # by name; of metrics with a number for each row the mean
    grad_norm: float  # before clipping
    priority: Array | None  # [B]
    statistics: Array  # for batch renormalization

    def log(self, prefix: str = "") -> dict[str, float]:
        """The metrics, the mean error and the gradient norm; `prefix` is of the last."""
        error = {} if self.priority is None else {"mean_error": float(self.priority.mean())}
        return self.metrics | error | {f"{prefix}grad_norm": self.grad_norm}


class FlatOptimizer:
    """Minimizes `loss(model, *inputs)`, one `descend` at a time.

    `groups` are pairs of parameters and a factor on the learning rate; a parameter belongs to the first that names it.
    `rows` keeps the numbers of each row, such as priorities, of a batch that always has the same size; without it
    metrics with a number for each row become their mean at once.
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
        groups: Sequence[tuple[Iterable[nn.Parameter], float]] = (),
        compiled: bool = False,
        rows: bool = False,
        dropout_seed: int = 0,
    ):
        if compiled and recurrent_parts(model):
            raise BadInput("compile takes no recurrent model: it would unroll the loop over time; use --compile off")
        self.model: nn.Module = model
        self.loss: LossOf = loss
        self.rows: bool = rows
        self.layout: Layout | None = None  # known after the first step
        self._found: tuple[tuple[str, ...], list[str], bool] | None = None  # metrics, those by row, no priority
        self.dropout: list[nn.Module] = dropout_parts(model)
        self.dropout_seed: int = dropout_seed
        self.kind: str | MakeOptimizers = kind
        self.eps: float = eps
        self.max_grad_norm: float | None = max_grad_norm
        self.max_grad_value: float | None = max_grad_value
        self.beta1: float = beta1
        self.amsgrad: bool = amsgrad
        self.weight_decay: float = weight_decay if kind == "adamw" else 0.0
        # Frozen ones stay as they are.
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
        groups = [(list(members), factor) for members, factor in groups]
        self.factors: Tensor | None = _factors(self.parameters, groups)  # None: the same rate for all
        self._bind()
        self.exp_avg: Tensor = torch.zeros_like(self.values)  # running mean of gradients (Adam)
        self.exp_avg_sq: Tensor = torch.zeros_like(self.values)  # running mean of squared gradients
        self.max_exp_avg_sq: Tensor = torch.zeros_like(self.values)  # the largest of these so far (amsgrad)
        self.count: int = 0  # steps taken
        self._steps = torch.zeros((), device=self.values.device)  # the same for torch's kernel
        self.other: OtherOptimizer | None = None
        if not isinstance(kind, str):
            self.other = OtherOptimizer(kind, self.parameters, groups)
        self.compiled = compiled
        self.compile_seconds: float = 0.0  # what the first compiled step took
        self.compile_error: str | None = None  # why there is no compiled step although one was wanted
        fused = self._fused if self.other is None else self._fused_gradient
        self._program = _compile(fused, self.values.device.type) if compiled else None
        self._shared: SharedGradient | None = None

    def share(self, shared: "SharedGradient") -> None:
        """Let `shared` compute the gradient from now on: with other processes, each of a part of the inputs."""
        self._shared = shared
        if self.compiled:
            self._program = _compile(self._fused_gradient, self.values.device.type)

    def descend(self, rate: float, *inputs: object) -> Tensor:
        """One gradient step. Returns what the loss logs, as `layout` says, followed by the gradient norm before
        clipping; `read` gives these names."""
        if self.dropout:
            return self._with_dropout(rate, inputs)
        return self._descend(rate, inputs)

    def _descend(self, rate: float, inputs: tuple[object, ...]) -> Tensor:
        self.count += 1
        numbers = self._corrections(rate)
        first = self.parameters[0]
        if first.data_ptr() != self.values.data_ptr() or first.grad is None:
            self._bind()  # the model has moved, or its gradients were cleared
        state = (self.values, self.exp_avg, self.exp_avg_sq, self.max_exp_avg_sq)
        if self._shared is not None:
            logged = self._shared(self, inputs)
        elif self.other is not None:
            logged = self.gradient(inputs)
        elif self._program is not None and (fused := self._compiled(state, numbers, inputs)) is not None:
            return fused
        else:
            self.gradients.zero_()
            loss = self._checked(self.loss(self.model, *inputs))
            loss.value.backward()
            logged = self._packed(loss)
        norm = self._clip(self.gradients)
        if self.other is not None:
            self.other.step(rate)
        elif self.kind == "rmsprop" or self.factors is not None:
            self._step(state, self.gradients, numbers)
        else:
            self._adam(rate)
        return torch.cat([logged, norm[None]])

    def gradient(self, inputs: Sequence[object]) -> Tensor:
        """Into `gradients`, for an update that is shared; returns what the loss logs."""
        if self._program is not None and (both := self._compiled((self.values,), (), inputs)) is not None:
            self.gradients.copy_(both[: len(self.gradients)])
            return both[len(self.gradients) :]
        # As in `descend`, where one call less is on the way to the loss.
        self.gradients.zero_()
        loss = self._checked(self.loss(self.model, *inputs))
        loss.value.backward()
        return self._packed(loss)

    def find_layout(self, inputs: Sequence[object]) -> Layout:
        """What the loss logs, without a step."""
        if self.layout is None:
            with torch.no_grad():
                self._packed(self.loss(self.model, *inputs))
        assert self.layout is not None
        return self.layout

    def read(self, logged: Tensor | Array, rows: int = 0) -> Step:
        """What `descend` has returned for a batch of so many rows, or a mean of such vectors."""
        assert self.layout is not None
        scalars, by_row, has_priority, _ = self.layout
        numbers = logged.cpu().numpy() if isinstance(logged, Tensor) else logged
        first, count = len(scalars), len(by_row) + has_priority
        metrics = dict(zip(scalars, numbers[:first].tolist(), strict=True))
        if not count:
            return Step(metrics, float(numbers[-1]), None, numbers[first:-1])
        columns = numbers[first : first + count * rows].reshape(count, rows)
        metrics |= {name: float(column.mean()) for name, column in zip(by_row, columns, strict=False)}
        priority = columns[-1] if has_priority else None
        return Step(metrics, float(numbers[-1]), priority, numbers[first + count * rows : -1])

    def _checked(self, loss: Loss) -> Loss:
        if type(loss) is Loss and loss.value.dim() == 0:
            return loss
        method = getattr(self.loss, "func", self.loss)
        return Loss.checked(loss, type(getattr(method, "__self__", method)).__name__)

    def _packed(self, loss: Loss) -> Tensor:
        """What a loss logs as one vector."""
        scalars: list[Tensor] = []
        columns: list[Tensor] = []
        by_row: list[str] = []  # names of the columns
        for name, given in loss.metrics.items():
            number = given if isinstance(given, Tensor) else self.values.new_tensor(given)
            if number.dim() == 0:
                scalars.append(number)
            elif self.rows:
                columns.append(number)
                by_row.append(name)
            else:
                scalars.append(number.mean())
        found = (tuple(loss.metrics), by_row, loss.priority is None)
        if found != self._found:
            self._note(found, sum(each.numel() for each in loss.statistics) if self.rows else 0)
        if not self.rows:
            return torch.stack(scalars).detach() if scalars else self.values.new_zeros(0)
        if loss.priority is not None:
            columns.append(loss.priority)
        return torch.cat([*(number.unsqueeze(0) for number in scalars), *columns, *loss.statistics]).detach()

    def _note(self, found: tuple[tuple[str, ...], list[str], bool], statistics: int) -> None:
        """Keep what the first loss logs; that of another one is an error."""
        names, by_row, plain = found
        if self._found is not None:
            before, now = ", ".join(self._found[0]), ", ".join(names)
            raise BadInput(f"the loss returned the metrics {before} and now {now}; return the same ones every time")
        scalars = tuple(name for name in names if name not in by_row)
        self._found = found
        self.layout = Layout(scalars, tuple(by_row), self.rows and not plain, statistics)

    def _with_dropout(self, rate: float, inputs: tuple[object, ...]) -> Tensor:
        """A step in training mode. Its random numbers depend on the seed and the step only, so that a resumed run draws
        the same, and the global stream stays as it was."""
        device = self.values.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.dropout_seed + self.count)
            for part in self.dropout:
                part.training = True
            try:
                return self._descend(rate, inputs)
            finally:
                for part in self.dropout:
                    part.training = False

    def _compiled(self, state: tuple[Tensor, ...], numbers: Sequence[float], inputs: Sequence[object]) -> Tensor | None:
        """One call of the compiled program; None where it cannot be built on this machine: from then on steps are
        eager. The compiler fails before anything was changed."""
        assert self._program is not None
        started = time.perf_counter()
        try:
            # A tensor, not floats: a new number must not mean a new program.
            logged = self._program(state, torch.tensor(numbers, device=self.values.device), *inputs)
        except Exception as error:
            if not type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
                raise
            self._program, self.compile_error = None, _first_line(error)
            text = f"the update cannot be compiled on this machine and goes on without: {self.compile_error}"
            warnings.warn(text, CompileUnavailable, stacklevel=4)
            return None
        self.compile_seconds = self.compile_seconds or time.perf_counter() - started
        return logged

    def _fused(self, state: tuple[Tensor, ...], numbers: Tensor, *inputs: object) -> Tensor:
        """`descend` as one function of tensors, for the compiler."""
        gradient, logged = self._gradient_and_logged(state[0], inputs)
        norm = self._clip(gradient)
        self._step(state, gradient, numbers)
        return torch.cat([logged, norm[None]])

    def _fused_gradient(self, state: tuple[Tensor, ...], numbers: Tensor, *inputs: object) -> Tensor:
        """The part of `_fused` before the learners' gradients meet."""
        return torch.cat(self._gradient_and_logged(state[0], inputs))

    def _gradient_and_logged(self, values: Tensor, inputs: Sequence[object]) -> tuple[Tensor, Tensor]:
        def loss_of(flat: Tensor) -> tuple[Tensor, Tensor]:
            views = self.views(flat)
            parameters = {name: views[position] for name, position in self.places.items()}
            loss = self.loss(
                lambda *args, **options: functional_call(self.model, parameters, args, options, tie_weights=False),
                *inputs,
            )
            return self._checked(loss).value, self._packed(loss)

        gradient, (_, logged) = grad_and_value(loss_of, has_aux=True)(values)
        return gradient, logged

    def _clip(self, gradient: Tensor) -> Tensor:
        """In place. Returns the norm before clipping."""
        norm = torch.linalg.vector_norm(gradient)
        if self.max_grad_norm is not None:
            gradient.mul_((self.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        if self.max_grad_value is not None:
            gradient.clamp_(-self.max_grad_value, self.max_grad_value)
        return norm

    def _step(self, state: tuple[Tensor, ...], gradient: Tensor, numbers: Sequence[float] | Tensor) -> None:
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
            if self.factors is not None:
                direction = direction * self.factors
            if self.weight_decay:
                values.mul_(decay)
            values.sub_(direction * step_size)

    def _adam(self, rate: float) -> None:
        """What `_step` does for Adam and AdamW, by torch's fused kernel: half of the time, for a CNN a tenth. The
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

    def _corrections(self, rate: float) -> tuple[float, float, float]:
        """The step size, the factor on the root of the second moment (Adam's bias corrections in both), and what is
        left of each parameter after its decay."""
        if self.kind == "rmsprop":
            return rate, 1.0, 1.0
        step_size, correction = rate / (1 - self.beta1**self.count), (1 - BETA2**self.count) ** -0.5
        return step_size, correction, 1.0 - rate * self.weight_decay

    def _bind(self) -> None:
        """Make the model's parameters views of `values`, keeping what they hold."""
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


class Target:
    """A copy of a module, without gradients, that follows what an optimizer trains."""

    def __init__(self, optimizer: FlatOptimizer):
        self.optimizer: FlatOptimizer = optimizer
        self.module: nn.Module = copy.deepcopy(optimizer.model).requires_grad_(False)
        for parameter in self.module.parameters():
            parameter.grad = None
        # Its copies of what is trained lie in one flat tensor too; frozen parameters are equal for good.
        self.values: Tensor = optimizer.bind_copy(self.module, optimizer.values.clone())

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def move(self, share: float) -> None:
        """Towards the online network: by this share of the way, 1 for a full copy."""
        self.values.lerp_(self.optimizer.values, share)

    def state_dict(self) -> Array:
        return self.values.cpu().numpy().copy()

    def load_state_dict(self, state: Array) -> None:
        self.values.copy_(torch.from_numpy(np.array(state)))


def dropout_parts(model: nn.Module) -> list[nn.Module]:
    """The parts of a model that are different in training; from now on they are in evaluation mode."""
    kind = nn.modules.dropout._DropoutNd
    parts = [part for part in model.modules() if isinstance(part, kind) or bool(getattr(part, "dropout", False))]
    for part in parts:
        part.training = False
    return parts


def _laid_out(parameter: Tensor) -> Tensor:
    """Its numbers in the order of the flat tensor. Weights of linear layers are there as [in, out]: products with few
    inputs are several times faster."""
    return (parameter.t() if parameter.ndim == 2 else parameter).reshape(-1)


def _compile(method: Any, device: str) -> Callable[..., Tensor]:
    """A bound method as a program of its own.

    Before each call the compiler checks whatever the program depends on. Of these hundreds of checks we keep those on
    the arguments, whose shapes may change; the object stays as it was built. That saves a tenth of a small update.
    A copy of the code, because the compiler keeps its programs by code: another object must not be given this one's.
    """
    _keep_programs()
    own = types.FunctionType(method.__func__.__code__.replace(), method.__globals__)

    def on_arguments(checks: Sequence[Any]) -> list[bool]:
        return [not check.name.startswith("self") for check in checks]

    options: dict[str, Any] = {"guard_filter_fn": on_arguments}
    if device == "cpu":
        options["cpp_wrapper"] = True  # C++ calls the kernels, not Python: a small update is a tenth faster
    return torch.compile(types.MethodType(own, method.__self__), options=options)


def _keep_programs() -> None:
    """Let the compiler keep its programs in the user's cache folder: by default they are in a temporary one and gone
    after the next restart. A folder that the user has set stays."""
    with contextlib.suppress(OSError):  # a home that cannot be written to
        folder = cache_folder("inductor")
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


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
