"""The state of a moving body under a time limit, shared by the classic-control worlds."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Timed(NamedTuple):
    """A body's coordinates and the clock."""

    body: jax.Array  # [N, coordinates] float32
    steps: jax.Array  # [N] int32, since the episode began


def begin(body: jax.Array) -> Timed:
    return Timed(body, jnp.zeros(len(body), jnp.int32))


def out_of_time(steps: jax.Array, max_steps: int | None) -> jax.Array:
    return jnp.zeros(steps.shape, bool) if max_steps is None else steps >= max_steps
