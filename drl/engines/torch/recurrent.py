"""Memory between a backbone and a head: a GRU or an LSTM that runs over packed pieces of episodes."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from drl.core.errors import BadInput
from drl.engines.numpy.networks import CARRIED
from drl.engines.torch.packing import Sequences
from drl.engines.torch.recurrent_scan import gru_scan, lstm_scan


class Recurrent(nn.Module):
    """A backbone and a memory of its features; itself a backbone, for sequences.

    >>> from drl.engines.torch.backbones import MLP
    >>> model = Recurrent(MLP((4,), hidden_sizes=(8,)), "gru", 16)
    >>> model(Sequences(torch.zeros(5, 4), [2, 2, 1], torch.zeros(2, model.rnn_state_size))).shape
    torch.Size([5, 16])
    """

    def __init__(self, backbone: nn.Module, kind: str, size: int, generator: torch.Generator | None = None):
        super().__init__()
        self.backbone: nn.Module = backbone
        self.kind: str = kind
        self.features: int = size
        self.cell: nn.GRUCell | nn.LSTMCell = CELLS[kind](backbone.features, size)  # type: ignore[arg-type]
        for name, parameter in self.cell.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter, generator=generator)
            else:
                nn.init.zeros_(parameter)
        self.rnn_state_size: int = CARRIED[kind] * size
        self.offset = 0  # where its part begins in the agent's rnn_state; see `arrange`

    def forward(self, seen: Sequences) -> Tensor:
        if not isinstance(seen, Sequences):
            raise BadInput(
                "a recurrent model sees sequences, not single observations; act through its agent, and learn from a "
                "RolloutBuffer that a Trainer fills"
            )
        part = slice(self.offset, self.offset + self.rnn_state_size)
        out, after = SCANS[self.kind](self.cell, self.backbone(seen.obs), seen.sizes, seen.rnn_state[:, part])
        if seen.after is not None:
            seen.after[:, part] = after
        return out


def arrange(model: nn.Module) -> int:
    """Give every recurrent part of the model its place in one rnn_state. Returns its width; 0: nothing is recurrent."""
    width = 0
    for part in recurrent_parts(model):
        part.offset = width
        width += part.rnn_state_size
    return width


def recurrent_parts(model: nn.Module) -> list[Recurrent]:
    """All recurrent layers of a model."""
    return [module for module in model.modules() if isinstance(module, Recurrent)]


# The one place where a kind's name becomes its parameters and its computation.
CELLS: dict[str, type[nn.GRUCell] | type[nn.LSTMCell]] = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}
SCANS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {"gru": gru_scan, "lstm": lstm_scan}
