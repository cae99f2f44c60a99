"""A recurrent policy as NumPy views, for acting: MLP backbones with a GRU or an LSTM behind them."""

from typing import Any, NamedTuple

import numpy as np
from torch import nn

from drl.core.specs import Array
from drl.engines.numpy.networks import Cell, Layer, mlp_forward, recurrent_step
from drl.engines.torch.heads import GaussianHead, LogitsHead
from drl.engines.torch.models import Model, PolicyValueModel
from drl.engines.torch.numpy_views import backbone_views, linear_view
from drl.engines.torch.recurrent import CELLS, Recurrent, recurrent_parts


class Part(NamedTuple):
    """One recurrent backbone and its place in the hidden state."""

    layers: list[Layer]
    cell: Cell
    place: slice


class RecurrentViews(NamedTuple):
    """All that is needed to act, and to remember for the critic what it will have to know when the agent learns."""

    parts: list[Part]  # the actor's first
    head: Layer
    log_std: Array | None

    def step(self, obs: Array, rnn_state: Array) -> tuple[Array, Array]:
        """Policy parameters `[N, P]` for normalized observations, and the hidden state afterwards `[N, S]`."""
        steps = [
            recurrent_step(part.cell, mlp_forward(part.layers, obs), rnn_state[:, part.place]) for part in self.parts
        ]
        params = mlp_forward([self.head], steps[0][0])
        if self.log_std is not None:
            params = np.concatenate([params, np.broadcast_to(self.log_std, params.shape)], axis=1)
        return params, steps[0][1] if len(steps) == 1 else np.concatenate([after for _, after in steps], axis=1)


def recurrent_views(model: nn.Module) -> RecurrentViews | None:
    """None for models that have other parts than ours, or something else than an MLP in front of the buffer."""
    members = [model.actor, model.critic] if type(model) is PolicyValueModel else [model]
    if any(type(member) is not Model or type(member.backbone) is not Recurrent for member in members):
        return None
    parts = [_part(recurrent) for recurrent in recurrent_parts(model)]
    head: Any = members[0].head
    if any(part is None for part in parts) or type(head) not in (LogitsHead, GaussianHead):
        return None
    if isinstance(head, GaussianHead):
        return RecurrentViews(parts, linear_view(head.mean), head.log_std.detach().numpy())  # type: ignore[arg-type]
    return RecurrentViews(parts, linear_view(head), None)  # type: ignore[arg-type]


def _part(recurrent: Recurrent) -> Part | None:
    layers, cell = backbone_views(recurrent.backbone), recurrent.cell
    if layers is None or type(cell) is not CELLS[recurrent.kind]:
        return None
    views = [p.detach().numpy() for p in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)]
    weights = Cell(recurrent.kind, views[0].T, views[1].T, views[2], views[3])
    return Part(layers, weights, slice(recurrent.offset, recurrent.offset + recurrent.rnn_state_size))
