"""A GRU and an LSTM over packed rows: the loops over time.

The GRU's gradient is written out by hand: autograd would record a dozen operations for every step, but only three
depend on the step after; all else, the weights' gradients too, is computed for all rows at once. With few pieces that
takes half the time of `nn.GRU` with packed sequences; with hundreds of them `nn.GRU` is as fast or faster, and is used.
For the LSTM a gradient by hand would save a quarter: too little.
"""

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

MANY = 256  # pieces from which `nn.GRU` is used


def gru_scan(cell: nn.GRUCell, features: Tensor, sizes: list[int], rnn_state: Tensor) -> tuple[Tensor, Tensor]:
    """r = σ(W_r x + U_r h), z = σ(W_z x + U_z h), n = tanh(W_n x + r ⊙ U_n h), h ← (1 − z) ⊙ n + z ⊙ h.

    Takes features `[B, F]` in steps of `sizes` rows; gives h of all rows `[B, H]` and where each piece ended `[P, H]`.
    `rnn_state`, where the pieces begin, is data: no gradient flows into it.
    """
    if sizes[0] >= MANY:
        return _library_gru(cell, features, sizes, rnn_state)
    projected = F.linear(features, cell.weight_ih, cell.bias_ih)
    out: Tensor = _GRU.apply(projected, rnn_state, cell.weight_hh, cell.bias_hh, sizes)
    return out, out.detach()[_last_rows(sizes)]


def _library_gru(cell: nn.GRUCell, features: Tensor, sizes: list[int], rnn_state: Tensor) -> tuple[Tensor, Tensor]:
    """The same by `nn.GRU`, with the cell's parameters."""
    with torch.device("meta"):
        gru = nn.GRU(cell.input_size, cell.hidden_size)  # without memory: the parameters come from the cell
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
    """Of each piece, the longest first: a step's rows beyond the next step's size are some pieces' last."""
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
