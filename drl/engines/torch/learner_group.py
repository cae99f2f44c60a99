"""Several processes that share every update: each computes the gradient of its part, and all take the same mean.

Every process has the same weights, random streams and batches. So each one computes by itself whatever belongs to a
whole minibatch (orders, advantages, clipping, the optimizer's step, target networks), and weights stay equal without
being sent. Only gradients, logged means and the errors of rows are exchanged: one sum per step.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from drl.core.errors import BadInput, LearnerFailed
from drl.engines.numpy.distributions import UpdateDraws
from drl.engines.torch.flat_optimizer import FlatOptimizer, Logged
from drl.engines.torch.on_policy import Rows, normalized
from drl.engines.torch.ops import Obs, ReplayRows
from drl.engines.torch.recurrent import Sequences

ERRORS = "errors of rows"  # name of the priorities beside those of metrics
TIMEOUT = timedelta(minutes=5)  # for one sum, since others may be compiling; a dead process is noticed immediately


class Meeting(NamedTuple):
    """Address at which the processes connect."""

    host: str  # of the first learner
    port: int
    backend: str  # gloo · nccl
    only_loopback: bool  # no process listens on another interface


def host_meeting(host: str, device: torch.device, only_loopback: bool) -> tuple[Meeting, Any]:
    """Listen at a free port of `host`, as the first learner. Returns the address and the open store."""
    if not dist.is_available():
        raise BadInput("this PyTorch was built without torch.distributed; use --num-learners 1")
    listening = socket.create_server((host, 0))
    port = listening.getsockname()[1]
    make_store: Any = dist.TCPStore  # type: ignore[attr-defined]
    store = make_store(host, port, None, True, TIMEOUT, wait_for_workers=False, master_listen_fd=listening.detach())
    return Meeting(host, port, "nccl" if device.type == "cuda" else "gloo", only_loopback), store


class LearnerGroup:
    """This process among the learners of a run. The first one (rank 0) goes on alone if the others fail."""

    def __init__(self, meeting: Meeting, rank: int, size: int, store: Any = None):
        self.rank: int = rank
        self.size: int = size
        self.broken: str | None = None  # why the others cannot be reached
        store = store or dist.TCPStore(meeting.host, meeting.port, None, False, TIMEOUT)  # type: ignore[attr-defined]
        with _on_loopback() if meeting.only_loopback else contextlib.nullcontext():
            dist.init_process_group(meeting.backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)

    def sum(self, numbers: Tensor) -> None:
        """Sum over all processes, in place; the same bits in each."""
        try:
            dist.all_reduce(numbers)
        except RuntimeError as error:
            self.broken = " ".join(str(error).split())[:200]
            raise LearnerFailed(f"the other learners cannot be reached: {self.broken}") from error

    def leave(self) -> None:
        """Close the connections, so that no process waits for this one."""
        if dist.is_initialized():
            dist.destroy_process_group()


class Part(NamedTuple):
    """One learner's part of the inputs of a loss."""

    inputs: tuple[object, ...]
    first: int | None  # number of its first row; None if rows do not stay in their order
    rows: int
    total: int  # rows of all learners


PartOf = Callable[[tuple[object, ...], int, int], Part]  # (inputs, rank, size): parts are nearly equal, or empty


class SharedGradient:
    """The mean gradient of a loss over all rows, computed by a group. Metrics are means over all rows too; a number
    per row comes from the learner that has the row."""

    def __init__(self, group: LearnerGroup, part_of: PartOf):
        self.group: LearnerGroup = group
        self.part_of: PartOf = part_of
        self._example: Logged | None = None  # output of the loss: learners without rows need its names and shapes

    def __call__(self, optimizer: FlatOptimizer, inputs: tuple[object, ...]) -> Logged:
        """Compute the optimizer's `gradients`; returns what the loss logs of all rows."""
        group, size = self.group, len(optimizer.gradients)
        if group.broken is None:
            part = self.part_of(inputs, group.rank, group.size)
            message = self._message(optimizer, part, inputs)
            try:
                group.sum(message)
            except LearnerFailed:
                if group.rank:
                    raise
            else:
                optimizer.gradients.copy_(message[:size])
                return self._unpacked(message[size:], part)
        return optimizer.gradient(self.part_of(inputs, 0, 1).inputs)

    def _message(self, optimizer: FlatOptimizer, part: Part, whole: tuple[object, ...]) -> Tensor:
        """The gradient, then metrics and errors, weighted so that the sum over the learners is the mean over all
        rows."""
        size, share = len(optimizer.gradients), part.rows / part.total
        logged = optimizer.gradient(part.inputs) if part.rows else None
        if self._example is None and logged is None:
            with torch.no_grad():
                loss = optimizer.loss(optimizer.model, *whole)
            self._example = loss.metrics, loss.priority, ()
        self._example = self._example or logged
        assert self._example is not None
        scalars, columns = _scalars_and_columns(logged or self._example, part)
        message = optimizer.gradients.new_zeros(size + len(scalars) + len(columns) * part.total)
        if logged is not None:
            torch.mul(optimizer.gradients, share, out=message[:size])
            for place, value in enumerate(scalars.values(), size):
                message[place] = share * value
            rows = message[size + len(scalars) :].view(len(columns), part.total)
            for row, column in zip(rows, columns.values(), strict=True):
                assert part.first is not None
                row[part.first : part.first + part.rows] = column
        return message

    def _unpacked(self, message: Tensor, part: Part) -> Logged:
        assert self._example is not None
        scalars, columns = _scalars_and_columns(self._example, part)
        rows = message[len(scalars) :].view(len(columns), part.total)
        named = dict(zip(columns, rows, strict=True))
        means = dict(zip(scalars, message, strict=False))
        return {name: named[name] if name in named else means[name] for name in self._example[0]}, named.get(ERRORS), ()


def _scalars_and_columns(logged: Logged, part: Part) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Metrics with one number, and metrics and errors with a number for each row. If rows do not stay in their order,
    their means are taken."""
    metrics, errors, _ = logged
    values = {name: torch.as_tensor(value) for name, value in metrics.items()}
    values |= {} if errors is None else {ERRORS: errors}
    if part.first is None:
        values = {name: value.mean() for name, value in values.items()}
    scalars = {name: value for name, value in values.items() if not value.dim()}
    return scalars, {name: value for name, value in values.items() if value.dim()}


def part_of_rollout(inputs: tuple[object, ...], rank: int, size: int, normalize: bool) -> Part:
    """A part of `Rows`, in whole environments of a recurrent rollout. Advantages are normalized over all rows."""
    rows, others = inputs[0], inputs[1:]
    assert isinstance(rows, Rows)
    total = len(rows.advantage)
    rows = normalized(rows) if normalize else rows
    if isinstance(rows.obs, Sequences):
        assert rows.obs.packing is not None
        envs = np.array_split(np.unique(rows.obs.packing.env), size)[rank]
        seen, keep = rows.obs.of_envs(envs)
        mine = Rows(seen, *rows.columns(keep))  # type: ignore[arg-type]
    else:
        mine = list(rows.split(size))[rank]
    return Part((mine, *others), None, len(mine.advantage), total)


def part_of_replay(inputs: tuple[object, ...], rank: int, size: int) -> Part:
    """A part of `ReplayRows` and of the random numbers of their actions, if there are any."""
    rows, others = inputs[0], inputs[1:]
    assert isinstance(rows, ReplayRows)
    total = len(rows.reward)
    least, more = divmod(total, size)  # as `tensor_split` cuts
    start = rank * least + min(rank, more)
    cut = slice(start, start + least + (rank < more))
    mine = ReplayRows(*(None if column is None else _of(column, cut) for column in rows))  # type: ignore[arg-type]
    drawn = [
        each._replace(next_noise=each.next_noise[cut], noise=each.noise[cut]) if isinstance(each, UpdateDraws) else each
        for each in others
    ]
    return Part((mine, *drawn), cut.start, cut.stop - cut.start, total)


def _of(column: Obs, cut: slice) -> Obs:
    return column[cut] if isinstance(column, Tensor) else {name: part[cut] for name, part in column.items()}


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let gloo use the interface of 127.0.0.1 only; it reads the name when the group is made."""
    name, before = "GLOO_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ[name] = next(interface for _, interface in socket.if_nameindex() if interface in ("lo", "lo0"))
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
