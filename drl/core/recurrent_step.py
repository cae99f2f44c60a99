"""One step of a GRU or an LSTM in NumPy, next to `mlp_forward`: acting without a framework's overhead.

Gates are laid out as PyTorch lays them out: reset, update, new (GRU); input, forget, new, output (LSTM).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from drl.core.specs import Array


class Cell(NamedTuple):
    """Weights of one cell; views of an engine's parameters, or arrays from a file."""

    kind: str  # gru · lstm
    weight_in: Array  # [features, gates · size]
    weight_hidden: Array  # [size, gates · size]
    bias_in: Array
    bias_hidden: Array


def recurrent_step(cell: Cell, features: Array, hidden: Array) -> tuple[Array, Array]:
    """What the cell gives for `features` [N, F] and what it remembers afterwards, from `hidden` [N, S] before."""
    return STEPS[cell.kind](cell, features, hidden)


def _gru(cell: Cell, features: Array, hidden: Array) -> tuple[Array, Array]:
    size = hidden.shape[1]
    from_in = features @ cell.weight_in + cell.bias_in
    from_hidden = hidden @ cell.weight_hidden + cell.bias_hidden
    gates = _sigmoid(from_in[:, : 2 * size] + from_hidden[:, : 2 * size])
    reset, update = gates[:, :size], gates[:, size:]
    new = np.tanh(from_in[:, 2 * size :] + reset * from_hidden[:, 2 * size :])
    after = new + update * (hidden - new)
    return after, after


def _lstm(cell: Cell, features: Array, hidden: Array) -> tuple[Array, Array]:
    size = hidden.shape[1] // 2
    out, content = hidden[:, :size], hidden[:, size:]
    gates = features @ cell.weight_in + cell.bias_in + out @ cell.weight_hidden + cell.bias_hidden
    write, keep = _sigmoid(gates[:, :size]), _sigmoid(gates[:, size : 2 * size])
    content = keep * content + write * np.tanh(gates[:, 2 * size : 3 * size])
    out = _sigmoid(gates[:, 3 * size :]) * np.tanh(content)
    return out, np.concatenate([out, content], axis=1)


def _sigmoid(x: Array) -> Array:
    """By tanh, which cannot overflow."""
    answer: Array = 0.5 * np.tanh(0.5 * x) + 0.5
    return answer


STEPS: dict[str, Callable[[Cell, Array, Array], tuple[Array, Array]]] = {"gru": _gru, "lstm": _lstm}
