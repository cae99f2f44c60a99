"""Compilation of an update: whether it pays (`--compile auto`), and the program.

The rule reads the configuration and the model built from it, never a clock, a cache or the machine: a compiled update
differs from an eager one in its last bits, and the same command must give the same numbers.
"""

import contextlib
import os
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from drl.core.configs import Config
from drl.core.errors import plural
from drl.core.safe_files import cache_folder
from drl.engines.torch.recurrent import recurrent_parts

# Measured by `python benchmarks/speed_compile.py`, in CPU seconds of one thread (benchmarks/RESULTS.md).
# An update saves calls that a compiled program does not make, more of them with more layers, and passes over memory.
SAVED, SAVED_PER_TENSOR, SAVED_PER_ROW = 400e-6, 80e-6, 0.8e-6
WARM, WARM_PER_TENSOR = 5.5, 0.05  # to build the program if the compiler's cache has it: imports and tracing
COLD, COLD_PER_TENSOR = 8.0, 0.8  # if it has not, once per configuration and machine
LARGEST_WORK = 150_000_000  # rows × weights of an update; above it matrix products take the time, compiled or not


class Work(NamedTuple):
    """What a run computes, as far as its configuration says."""

    updates: int | None  # of the whole run; None: the configuration does not say
    rows: int  # of the batch of one update
    even: bool = True  # whether every batch has that many rows; otherwise two programs are compiled


class Choice(NamedTuple):
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


def choose(work: Work, model: nn.Module) -> Choice:
    """Compile if that saves more time than it costs the first time. With a warm cache this leaves room for errors of
    the estimate: on some machines an update saves half as much."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    tensors, weights = len(trained), sum(parameter.numel() for parameter in trained)
    if obstacle := _obstacle(work, model, weights):
        return Choice("off", obstacle)
    assert work.updates is not None
    saved = work.updates * saved_seconds(tensors, work.rows)
    programs = 1 if work.even else 2
    warm, cold = programs * (WARM + WARM_PER_TENSOR * tensors), programs * (COLD + COLD_PER_TENSOR * tensors)
    what = f"{plural(work.updates, 'update')} of {work.rows:,} rows × {weights:,} weights"
    if saved > cold:
        return Choice("on", f"{what}: saves about {saved:.0f} s, costs about {warm:.0f} s, the first time {cold:.0f} s")
    return Choice("off", f"{what}: would save about {saved:.0f} s and cost {warm:.0f} s, the first time {cold:.0f} s")


def saved_seconds(tensors: int, rows: int) -> float:
    """Of one update with so many trained tensors and rows in its batch."""
    return SAVED + SAVED_PER_TENSOR * tensors + SAVED_PER_ROW * rows


def _obstacle(work: Work, model: nn.Module, weights: int) -> str:
    """Why the estimate does not hold for this run; empty if it does."""
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


def compile_method(method: Any, device: str) -> Callable[..., Any]:
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


def compile_failure(error: Exception) -> str:
    """Warn that the compiler has failed, and return its reason; raise any other error."""
    if not type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
        raise error
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    text = f"the update cannot be compiled on this machine and goes on without: {reason}"
    warnings.warn(text, CompileUnavailable, stacklevel=5)
    return reason
