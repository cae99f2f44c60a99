"""Compilation of an update: whether it pays (`--compile auto`), and the program.

The rule reads the configuration and the model built from it, never a clock, a cache or the machine: a compiled update
differs from an eager one in its last bits, and the same command must give the same numbers.
"""

import contextlib
import os
import time
import types
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from drl.core.configs import Config
from drl.core.errors import BadInput, plural
from drl.core.safe_files import cache_folder
from drl.engines.torch.recurrent import recurrent_parts

if TYPE_CHECKING:
    from drl.engines.torch.flat_optimizer import FlatOptimizer, FlatRule

# Measured by `python benchmarks/speed_compile.py`, in CPU seconds of one thread (benchmarks/RESULTS.md).
# An update saves calls that a compiled program does not make, more of them with more layers, and passes over memory.
SAVED, SAVED_PER_TENSOR, SAVED_PER_ROW = 400e-6, 80e-6, 0.8e-6
WARM, WARM_PER_TENSOR = 5.5, 0.05  # to build the program if the compiler's cache has it: imports and tracing
COLD, COLD_PER_TENSOR = 8.0, 0.8  # if it has not, once per configuration and machine
LARGEST_WORK = 150_000_000  # rows × weights of an update; above it matrix products take the time, compiled or not


class Work(NamedTuple):
    """The work of a run, as far as its configuration determines it."""

    updates: int | None  # of the whole run; None: unknown
    rows: int  # of the batch of one update
    even: bool = True  # whether every batch has that many rows; otherwise two programs are compiled


class CompileChoice(NamedTuple):
    """Whether to compile, and why."""

    choice: str  # on · off
    reason: str

    @property
    def on(self) -> bool:
        """Whether to compile."""
        return self.choice == "on"


def planned_work(config: Config, buffer: Config, num_envs: int, timesteps: int | None, even: bool = True) -> Work:
    """The work of a run with these configs of its algorithm and buffer. `timesteps` is None for a budget in episodes,
    `even` False if rollouts differ in their number of rows."""
    if hasattr(config, "rollout_length"):
        rollout, parts = config.rollout_length * num_envs, getattr(config, "minibatches", 1)
        rounds, per_round = timesteps and -(-timesteps // rollout), getattr(config, "epochs", 1) * parts
        return Work(rounds and rounds * per_round, rollout // parts, even and rollout % parts == 0)
    if hasattr(buffer, "train_every"):
        start = max(buffer.warmup, buffer.batch_size)
        rounds = timesteps and max(timesteps - start, 0) // buffer.train_every
        return Work(rounds if rounds is None else rounds * buffer.gradient_steps, buffer.batch_size)
    return Work(None, 1, even=False)


def choose(work: Work, model: nn.Module) -> CompileChoice:
    """Compile if that saves more time than it costs the first time. With a warm cache this leaves room for errors of
    the estimate: on some machines an update saves half as much."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    tensors, weights = len(trained), sum(parameter.numel() for parameter in trained)
    if obstacle := _obstacle(work, model, weights):
        return CompileChoice("off", obstacle)
    assert work.updates is not None
    saved = work.updates * saved_seconds(tensors, work.rows)
    programs = 1 if work.even else 2
    warm, cold = programs * (WARM + WARM_PER_TENSOR * tensors), programs * (COLD + COLD_PER_TENSOR * tensors)
    what = f"{plural(work.updates, 'update')} of {work.rows:,} rows × {weights:,} weights"
    if saved > cold:
        return CompileChoice(
            "on", f"{what}: saves about {saved:.0f} s, costs about {warm:.0f} s, the first time {cold:.0f} s"
        )
    return CompileChoice(
        "off", f"{what}: would save about {saved:.0f} s and cost {warm:.0f} s, the first time {cold:.0f} s"
    )


def saved_seconds(tensors: int, rows: int) -> float:
    """Seconds saved by one update with this number of trained tensors and rows."""
    return SAVED + SAVED_PER_TENSOR * tensors + SAVED_PER_ROW * rows


def _obstacle(work: Work, model: nn.Module, weights: int) -> str:
    """The reason why the estimate does not hold for this run; empty if it does."""
    parts = list(model.modules())
    device = next(model.parameters()).device.type
    if recurrent_parts(model):
        return "a recurrent model would be unrolled over time"
    if device != "cpu":
        return f"measured on the CPU only, not on {device}"
    if own := [type(part).__name__ for part in parts if not type(part).__module__.startswith(("drl.", "torch."))]:
        return f"not measured for networks of your own ({own[0]})"
    if any(isinstance(part, nn.Conv1d | nn.Conv2d) for part in parts):
        return "convolutions take as long in a compiled update"
    if work.updates is None:
        return "the budget does not say how many updates there will be"
    if work.rows * weights > LARGEST_WORK:
        return f"{work.rows:,} rows × {weights:,} weights: matrix products take as long in a compiled update"
    return ""


class CompileUnavailable(UserWarning):
    """The machine has no compiler that can build the update; updates are eager."""


Result = tuple[dict[str, Tensor], Tensor | None, list[Tensor], Tensor]  # metrics, errors, statistics; norm or gradient


class CompiledUpdate:
    """The step of an optimizer as one program: loss, gradient, clipping and the rule's step. Without a rule it is the
    gradient alone, for updates that are shared and for other optimizers."""

    def __init__(self, optimizer: "FlatOptimizer", rule: "FlatRule | None"):
        if recurrent_parts(optimizer.model):
            raise BadInput("compile takes no recurrent model: it would unroll the loop over time; use --compile off")
        self.optimizer: FlatOptimizer = optimizer
        self.rule: FlatRule | None = rule
        self.seconds: float = 0.0  # of the first call, which compiles
        self.error: str | None = None  # why compilation failed; then steps are eager
        fused = self._gradient if rule is None else self._step
        self._program = compile_method(fused, optimizer.values.device.type)

    def step(self, rate: float, count: int, inputs: Sequence[object]) -> Result | None:
        """Make a whole step; None if there is no program for it."""
        if self.rule is None:
            return None
        return self._call(self.rule.state, self.rule.corrections(rate, count), inputs)

    def gradient(self, inputs: Sequence[object]) -> tuple[dict[str, Tensor], Tensor | None, list[Tensor]] | None:
        """Compute the optimizer's `gradients` and return what the loss logs; None if there is no program for it."""
        if self.rule is not None or (result := self._call((self.optimizer.values,), (), inputs)) is None:
            return None
        self.optimizer.gradients.copy_(result[3])
        return result[:3]

    def _call(self, state: tuple[Tensor, ...], numbers: Sequence[float], inputs: Sequence[object]) -> Result | None:
        """One call of the program; None if this machine cannot build it. The compiler fails before anything changes."""
        if self.error is not None:
            return None
        started = time.perf_counter()
        try:
            # A tensor, not floats: a new number must not need a new program.
            result: Result = self._program(state, torch.tensor(numbers, device=self.optimizer.values.device), *inputs)
        except Exception as error:
            self.error = compile_failure(error)
            return None
        if not self.seconds:
            self.seconds = time.perf_counter() - started
            self.optimizer.name_metrics(result[0])
        return result

    def _step(self, state: tuple[Tensor, ...], numbers: Tensor, *inputs: object) -> Result:
        """A whole step as one function of tensors, for the compiler."""
        assert self.rule is not None
        metrics, errors, statistics, gradient = self._gradient(state, numbers, *inputs)
        norm = self.optimizer.clip(gradient)
        self.rule.move(state, gradient, numbers)
        scalars = {name: value for name, value in metrics.items() if not value.dim()} | {"": norm}
        scalars = dict(zip(scalars, torch.stack(list(scalars.values())).unbind(), strict=True))  # one kernel for all
        norm = scalars.pop("")
        return metrics | scalars, errors, statistics, norm

    def _gradient(self, state: tuple[Tensor, ...], numbers: Tensor, *inputs: object) -> Result:
        """The gradient alone."""
        optimizer, values = self.optimizer, state[0]

        def loss_of(flat: Tensor) -> tuple[Tensor, tuple[dict[str, Tensor], list[Tensor], list[Tensor]]]:
            views = optimizer.views(flat)
            parameters = {name: views[position] for name, position in optimizer.places.items()}
            loss = optimizer.loss(
                lambda *args, **options: functional_call(optimizer.model, parameters, args, options, tie_weights=False),
                *inputs,
            )
            optimizer.require(loss)
            metrics = {
                name: each if isinstance(each, Tensor) else values.new_tensor(each)
                for name, each in loss.metrics.items()
            }
            return loss.value, (metrics, [] if loss.priority is None else [loss.priority], list(loss.statistics))

        gradient, (_, (metrics, errors, statistics)) = grad_and_value(loss_of, has_aux=True)(values)
        return metrics, errors[0] if errors else None, statistics, gradient


def compile_method(method: Any, device: str) -> Callable[..., Any]:
    """A bound method as a program of its own.

    Before each call the compiler checks everything that the program depends on. Of these hundreds of checks only those
    on the arguments are needed, whose shapes may change; the object stays as it was built. That saves a tenth of a
    small update. The code is copied because the compiler keeps its programs by code, and each object needs its own.
    """
    # The compiler's default folder is a temporary one, gone after the next restart. A folder set by the user stays.
    with contextlib.suppress(OSError):  # a home that cannot be written to
        folder = cache_folder("inductor")
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    own = types.FunctionType(method.__func__.__code__.replace(), method.__globals__)

    def on_arguments(checks: Sequence[Any]) -> list[bool]:
        return [not check.name.startswith("self") for check in checks]

    options: dict[str, Any] = {"guard_filter_fn": on_arguments}
    if device == "cpu":
        options["cpp_wrapper"] = True  # C++ calls the kernels, not Python: a small update is a tenth faster
    return torch.compile(types.MethodType(own, method.__self__), options=options)


def compile_failure(error: Exception) -> str:
    """Warn that the compiler has failed, and return its reason; raise any other error."""
    if not type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
        raise error
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    text = f"the update cannot be compiled on this machine and goes on without: {reason}"
    warnings.warn(text, CompileUnavailable, stacklevel=6)
    return reason
