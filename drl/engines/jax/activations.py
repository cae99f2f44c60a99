"""Activations in JAX, by their names in a config. `gelu` is its tanh form, as in all engines."""

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp

from drl.core.errors import BadInput, one_line
from drl.core.network_parts import ACTIVATIONS, part_maker

Function = Callable[[jax.Array], jax.Array]

tanh: Function = jnp.tanh
relu: Function = jax.nn.relu
gelu: Function = partial(jax.nn.gelu, approximate=True)
silu: Function = jax.nn.silu
elu: Function = jax.nn.elu
leaky_relu: Function = jax.nn.leaky_relu
selu: Function = jax.nn.selu
mish: Function = jax.nn.mish
softplus: Function = jax.nn.softplus
sigmoid: Function = jax.nn.sigmoid


@cache
def activation_of(name: str) -> Function:
    """The function of an activation by name, checked for its shape."""
    function = part_maker(ACTIVATIONS, name, "jax")
    seen = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    try:
        answer = jax.eval_shape(function, seen)
    except Exception as error:  # it may be a user's
        said = one_line(error, 160)
        raise BadInput(f"activation {name!r} is not a function that JAX can compile: {said}") from error
    if getattr(answer, "shape", None) != seen.shape:
        raise BadInput(f"activation {name!r} turns an array {seen.shape} into {answer}; expected one of the same shape")
    return function
