"""Recurrent models: a GRU or an LSTM between a backbone and a head, which runs over packed pieces of episodes.

In a packing the longest piece comes first: all first steps, then all second steps, and so on. Step k is one block of
rows: there is no padding, there are no masks, and nothing leaks from one episode into the next.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from drl.core.contracts import RolloutBatch
from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.engines.numpy.networks import CARRIED
from drl.engines.torch.ops import Obs, take_rows, to_tensors


class Packing(NamedTuple):
    """Positions of the rows of P pieces. A piece is the part of one environment's episode that lies in the window."""

    row: Array  # [B] position t · N + n of each packed row; rows that are not valid are left out
    step: Array  # [B] its step within its piece
    env: Array  # [B] its environment
    piece_env: Array  # [P]
    carried: Array  # [P] bool; True where the piece began before the window did, or with it
    last: Array  # [P] position of its last row


class Sequences(NamedTuple):
    """P pieces in B rows, packed."""

    obs: Obs  # [B, …]
    sizes: list[int]  # number of pieces with a step k: the first is P, and they never increase
    rnn_state: Tensor  # [P, S] hidden state at the start of each piece
    after: Tensor | None = None  # [P, S], to be filled with the hidden state at its end
    packing: Packing | None = None  # of a rollout, or of some of its environments

    def of_envs(self, envs: Array) -> tuple["Sequences", Tensor]:
        """The pieces of these environments, and the indices of their rows. Packed rows stay packed when others are
        left out."""
        assert self.packing is not None
        chosen = np.zeros(self.packing.env.max() + 1, bool)
        chosen[envs] = True
        keep = np.flatnonzero(chosen[self.packing.env])
        sizes = np.bincount(self.packing.step[keep]).tolist()
        ours = np.flatnonzero(chosen[self.packing.piece_env])
        rows, pieces = (torch.from_numpy(index).to(self.rnn_state.device) for index in (keep, ours))
        of_rows, of_pieces = self.packing[:3], self.packing[3:]
        packing = Packing(*(column[keep] for column in of_rows), *(column[ours] for column in of_pieces))
        seen = Sequences(take_rows(self.obs, rows), sizes, self.rnn_state.index_select(0, pieces), packing=packing)
        return seen, rows


def one_step(obs: Obs, rnn_state: Tensor, after: Tensor | None = None) -> Sequences:
    """A single step of each environment, or of each piece."""
    return Sequences(obs, [len(rnn_state)], rnn_state, after)


def pack(batch: RolloutBatch) -> Packing:
    """Cut a rollout at every episode's end, without the rows in which an environment only reset itself."""
    edge = np.ones_like(batch.valid[:1])
    fresh = np.concatenate([edge, (batch.terminated | batch.truncated | ~batch.valid)[:-1]])
    first = batch.valid & fresh
    last = batch.valid & np.concatenate([(fresh | ~batch.valid)[1:], edge])
    env, begin = np.nonzero(first.T)  # environment by environment, in order of time
    lengths = np.nonzero(last.T)[1] - begin + 1
    order = np.argsort(-lengths, kind="stable")
    env, begin, lengths = env[order], begin[order], lengths[order]
    step, piece = np.nonzero(np.arange(lengths.max())[:, None] < lengths)
    num_envs = batch.valid.shape[1]
    return Packing(
        row=(begin[piece] + step) * num_envs + env[piece],
        step=step,
        env=env[piece],
        piece_env=env,
        carried=begin == 0,
        last=(begin + lengths - 1) * num_envs + env,
    )


def sequences(batch: RolloutBatch, device: torch.device) -> Sequences:
    """A whole rollout, packed. A piece starts from the agent's hidden state at the window's first row, or from zeros at
    an episode's start."""
    assert batch.rnn_state is not None
    packing = pack(batch)
    obs = batch.obs.reshape(-1, *batch.obs.shape[2:])[packing.row]
    rnn_state = np.where(packing.carried[:, None], batch.rnn_state[packing.piece_env], np.float32(0.0))
    start = torch.from_numpy(rnn_state).to(device)
    sizes = np.bincount(packing.step).tolist()
    return Sequences(to_tensors(obs, device), sizes, start, torch.empty_like(start), packing)


def successors(batch: RolloutBatch, packing: Packing) -> Array:
    """The observation after each piece's last row `[P, …]`: its episode's final one, or the window's last one."""
    obs = batch.last_obs[packing.piece_env]
    ended = (batch.terminated | batch.truncated).reshape(-1)[packing.last]
    obs[ended] = batch.final_obs[np.searchsorted(batch.final_index, packing.last[ended])]
    return obs


MANY = 256  # number of pieces from which `nn.GRU` is used


def gru_scan(cell: nn.GRUCell, features: Tensor, sizes: list[int], rnn_state: Tensor) -> tuple[Tensor, Tensor]:
    """r = σ(W_r x + U_r h), z = σ(W_z x + U_z h), n = tanh(W_n x + r ⊙ U_n h), h ← (1 − z) ⊙ n + z ⊙ h.

    Takes features `[B, F]` in steps of `sizes` rows; returns h of all rows `[B, H]` and at each piece's end `[P, H]`.
    No gradient flows into `rnn_state`, from which the pieces start.
    """
    if sizes[0] >= MANY:
        return _library_gru(cell, features, sizes, rnn_state)
    projected = F.linear(features, cell.weight_ih, cell.bias_ih)
    out: Tensor = _GRU.apply(projected, rnn_state, cell.weight_hh, cell.bias_hh, sizes)
    return out, out.detach()[_last_rows(sizes)]


def _library_gru(cell: nn.GRUCell, features: Tensor, sizes: list[int], rnn_state: Tensor) -> tuple[Tensor, Tensor]:
    """The same with `nn.GRU` and the cell's parameters."""
    with torch.device("meta"):
        gru = nn.GRU(cell.input_size, cell.hidden_size)  # no allocation: the parameters come from the cell
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    parameters = {f"{name}_l0": getattr(cell, name) for name in names}
    packed = PackedSequence(features, torch.tensor(sizes))
    out, last = functional_call(gru, parameters, (packed, rnn_state.unsqueeze(0)))
    return out.data, last.detach().squeeze(0)


def lstm_scan(cell: nn.LSTMCell, features: Tensor, sizes: list[int], rnn_state: Tensor) -> tuple[Tensor, Tensor]:
    """c ← σ(f) ⊙ c + σ(i) ⊙ tanh(n), h ← σ(o) ⊙ tanh(c), each gate W x + U h. The hidden state is (h, c)."""
    weight = cell.weight_hh.t()
    out, content = rnn_state.chunk(2, dim=1)
    outputs, contents = [], []
    for projected in F.linear(features, cell.weight_ih, cell.bias_ih + cell.bias_hh).split(sizes):
        count = len(projected)
        write, keep, new, show = torch.addmm(projected, out[:count], weight).chunk(4, dim=1)
        content = torch.sigmoid(keep) * content[:count] + torch.sigmoid(write) * torch.tanh(new)
        out = torch.sigmoid(show) * torch.tanh(content)
        outputs.append(out)
        contents.append(content)
    out = torch.cat(outputs)
    return out, torch.cat([out, torch.cat(contents)], dim=1).detach()[_last_rows(sizes)]


def _last_rows(sizes: list[int]) -> list[int]:
    """The last row of each piece, the longest first: rows of a step beyond the next step's size."""
    ends = [*accumulate(sizes)]
    following = [*sizes[1:], 0]
    spans = [range(end - size + left, end) for end, size, left in zip(ends, sizes, following, strict=True)]
    return [row for span in reversed(spans) for row in span]


class _GRU(Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, rnn_state: Tensor, weight: Tensor, bias: Tensor, sizes: list[int]
    ) -> Tensor:
        size, transposed = weight.shape[1], weight.t()
        gates, recalled = torch.empty_like(projected), torch.empty_like(projected)  # [B, 3H] σ, σ, tanh; U h
        out = projected.new_empty(len(projected), size)
        both, new = gates[:, : 2 * size], gates[:, 2 * size :]
        steps = zip(
            *(projected[:, : 2 * size].split(sizes), projected[:, 2 * size :].split(sizes)),
            *(both.split(sizes), new.split(sizes), recalled.split(sizes), out.split(sizes)),
            strict=True,
        )
        before = []
        for in_both, in_new, both_now, new_now, recalled_now, out_now in steps:
            rnn_state = rnn_state[: len(out_now)]
            before.append(rnn_state)
            torch.addmm(bias, rnn_state, transposed, out=recalled_now)
            torch.add(in_both, recalled_now[:, : 2 * size], out=both_now).sigmoid_()
            torch.addcmul(in_new, both_now[:, :size], recalled_now[:, 2 * size :], out=new_now).tanh_()
            rnn_state = torch.lerp(new_now, rnn_state, both_now[:, size:], out=out_now)
        ctx.save_for_backward(gates, recalled[:, 2 * size :], torch.cat(before), weight)
        ctx.sizes = sizes
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gates, recalled, before, weight = ctx.saved_tensors
        size, sizes = weight.shape[1], ctx.sizes
        reset, update, new = gates.split(size, dim=1)
        to_new = (1 - update) * (1 - new * new)  # of h by the argument of each gate
        to_update = (before - new) * update * (1 - update)
        to_reset = to_new * recalled * reset * (1 - reset)
        slopes = torch.stack([to_reset, to_update, to_new * reset], dim=1)  # [B, 3, H] of h by U h
        by_recalled = torch.empty_like(slopes)
        by_hidden = torch.empty_like(before)
        steps = zip(
            *(gradients[0].split(sizes), slopes.split(sizes), update.split(sizes)),
            *(by_recalled.split(sizes), by_hidden.split(sizes)),
            strict=True,
        )
        running = before.new_zeros(sizes[0], size)  # of the loss by h, from all later steps
        for later, slope, keep, by_recalled_now, by_hidden_now in reversed([*steps]):
            count = len(later)
            torch.add(running[:count], later, out=by_hidden_now)
            torch.mul(slope, by_hidden_now.unsqueeze(1), out=by_recalled_now)
            running[:count] = torch.addmm(by_hidden_now * keep, by_recalled_now.view(count, -1), weight)
        by_gates = by_recalled.view(len(before), -1)
        by_projected = by_gates.clone()
        torch.mul(by_hidden, to_new, out=by_projected[:, 2 * size :])
        return by_projected, None, by_gates.t() @ before, by_gates.sum(dim=0), None


class Recurrent(nn.Module):
    """A backbone with a recurrent layer behind it; itself a backbone, for sequences.

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
        self.offset = 0  # of its part in the agent's rnn_state; see `arrange`

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
    """Assign each recurrent part of a model its slice of one rnn_state. Returns the width; 0: not recurrent."""
    width = 0
    for part in recurrent_parts(model):
        part.offset = width
        width += part.rnn_state_size
    return width


def recurrent_parts(model: nn.Module) -> list[Recurrent]:
    """All recurrent layers of a model."""
    return [module for module in model.modules() if isinstance(module, Recurrent)]


CELLS: dict[str, type[nn.GRUCell] | type[nn.LSTMCell]] = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}
SCANS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {"gru": gru_scan, "lstm": lstm_scan}
