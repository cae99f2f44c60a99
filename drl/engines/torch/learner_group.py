"""Several processes that share every update: each computes the gradient of its part, all take the same mean of them.

Every process has the same weights, the same random streams and the whole batch. So it computes alone whatever belongs
to a whole minibatch (orders, advantages and their normalization, clipping, the optimizer's step, target networks), and
weights stay equal without being sent. Only gradients, logged means and the errors of rows travel: one sum per step.
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
TIMEOUT = timedelta(minutes=5)  # for one answer of the others, who may be compiling; one that dies is noticed at once


class Meeting(NamedTuple):
    """Where the processes find each other."""

    host: str  # of the first learner
    port: int
    backend: str  # gloo · nccl
    only_loopback: bool  # no process listens on another interface


def host_meeting(host: str, device: torch.device, only_loopback: bool) -> tuple[Meeting, Any]:
    """Of the first learner: listen on `host` only, at a free port. Also what it keeps of the meeting."""
    if not dist.is_available():
        raise BadInput("this PyTorch was built without torch.distributed; use --num-learners 1")
    listening = socket.create_server((host, 0))
    port = listening.getsockname()[1]
    make_store: Any = dist.TCPStore  # type: ignore[attr-defined]
    store = make_store(host, port, None, True, TIMEOUT, wait_for_workers=False, master_listen_fd=listening.detach())
    return Meeting(host, port, "nccl" if device.type == "cuda" else "gloo", only_loopback), store


class LearnerGroup:
    """This process among the learners of a run. The first one (rank 0) goes on alone where the others fail."""

    def __init__(self, meeting: Meeting, rank: int, size: int, store: Any = None):
        self.rank: int = rank
        self.size: int = size
        self.broken: str | None = None  # why there are no others any more
        store = store or dist.TCPStore(meeting.host, meeting.port, None, False, TIMEOUT)  # type: ignore[attr-defined]
        with _on_loopback() if meeting.only_loopback else contextlib.nullcontext():
            dist.init_process_group(meeting.backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)

    def sum(self, numbers: Tensor) -> None:
        """Of all processes, in place; the same bits in each."""
        try:
            dist.all_reduce(numbers)
        except RuntimeError as error:
            self.broken = " ".join(str(error).split())[:200]
            raise LearnerFailed(f"the other learners cannot be reached: {self.broken}") from error

    def leave(self) -> None:
        """Close the connections, which ends what others wait for."""
        if dist.is_initialized():
            dist.destroy_process_group()


class Part(NamedTuple):
    """What one learner computes of the inputs of a loss."""

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
        self._example: Logged | None = None  # of the loss, whose names and shapes all learners must know

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
        if self._example is None:  # without rows, what the loss logs is unknown
            self._example = logged or _logged_of(optimizer, whole)
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


def _logged_of(optimizer: FlatOptimizer, inputs: tuple[object, ...]) -> Logged:
    with torch.no_grad():
        loss = optimizer.loss(optimizer.model, *inputs)
    return loss.metrics, loss.priority, ()


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
    """Of `Rows` and numbers; whole environments of a recurrent rollout. Advantages are normalized over all rows."""
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
    """Of `ReplayRows`, the random numbers of their actions if there are any, and rates."""
    rows, others = inputs[0], inputs[1:]
    assert isinstance(rows, ReplayRows)
    total = len(rows.reward)
    cut = _cut(total, rank, size)
    mine = ReplayRows(*(None if column is None else _of(column, cut) for column in rows))  # type: ignore[arg-type]
    drawn = [
        each._replace(next_noise=each.next_noise[cut], noise=each.noise[cut]) if isinstance(each, UpdateDraws) else each
        for each in others
    ]
    return Part((mine, *drawn), cut.start, cut.stop - cut.start, total)


def _cut(total: int, rank: int, size: int) -> slice:
    """As `tensor_split` cuts."""
    least, more = divmod(total, size)
    start = rank * least + min(rank, more)
    return slice(start, start + least + (rank < more))


def _of(column: Obs, cut: slice) -> Obs:
    return column[cut] if isinstance(column, Tensor) else {name: part[cut] for name, part in column.items()}


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let gloo use the interface of 127.0.0.1 only; it reads the name once, as the group is made."""
    name, before = "GLOO_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ[name] = next(interface for _, interface in socket.if_nameindex() if interface in ("lo", "lo0"))
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
