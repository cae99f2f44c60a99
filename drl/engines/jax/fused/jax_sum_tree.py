"""A sum tree in JAX, with one array per level."""

import jax
import jax.numpy as jnp

Levels = tuple[jax.Array, ...]  # leaves first, the root last


def new_levels(size: int) -> Levels:
    """
    >>> [level.shape for level in new_levels(5)]
    [(8,), (4,), (2,), (1,)]
    """
    depth = max(size - 1, 1).bit_length()
    return tuple(jnp.zeros(1 << (depth - level)) for level in range(depth + 1))


def total(levels: Levels) -> jax.Array:
    """Sum of all weights."""
    return levels[-1][0]


def set_weights(levels: Levels, index: jax.Array, weight: jax.Array) -> Levels:
    """Change weights; if an index appears twice, one of its weights is used."""
    changed = [levels[0].at[index].set(weight)]
    for above in levels[1:]:
        index, below = index >> 1, changed[-1]
        changed.append(above.at[index].set(below[2 * index] + below[2 * index + 1]))
    return tuple(changed)


def find(levels: Levels, mass: jax.Array) -> jax.Array:
    """For each mass in [0, total): the leaf where the running sum of weights passes it; its weight is not zero."""
    node = jnp.zeros(mass.shape, jnp.int32)
    for level in reversed(levels[:-1]):
        node = 2 * node
        left, right = level[node], level[node + 1]
        goes_right = (mass >= left) & (right > 0)  # so that rounding does not lead to an empty leaf
        mass = jnp.where(goes_right, mass - left, mass)
        node = node + goes_right
    return node
