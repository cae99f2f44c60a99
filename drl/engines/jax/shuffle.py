"""Random orders of a rollout's rows and their minibatches, in static shapes."""

import jax
import jax.numpy as jnp

from drl.core.specs import AnyArray


def random_orders(key: jax.Array, epochs: int, valid: AnyArray | None, count: int) -> jax.Array:
    """`epochs` random orders of `count` rows `[epochs, count]`, rows that are not `valid` (None: all are) at the end.

    Sorts single numbers: random bits above the bits of the row number. This is faster than sorting pairs. In long
    rollouts too few of the 32 bits are random, so pairs are sorted.
    """
    width = max(count - 1, 1).bit_length()
    index = jnp.arange(count, dtype=jnp.uint32)
    random = jax.random.bits(key, (epochs, count), jnp.uint32) >> 1
    last = jnp.uint32(0) if valid is None else jnp.where(jnp.reshape(valid, -1), jnp.uint32(0), jnp.uint32(1 << 31))
    if width > 16:
        rows = jnp.broadcast_to(index, random.shape)
        return jax.lax.sort((random | last, rows), dimension=1, num_keys=1)[1].astype(jnp.int32)
    keyed = (random >> width << width) | index | last
    return (jax.lax.sort(keyed, dimension=1) & jnp.uint32((1 << width) - 1)).astype(jnp.int32)


def minibatch_rows(order: jax.Array, parts: int, valid: AnyArray | None) -> tuple[jax.Array, jax.Array | None]:
    """Split every epoch's order `[epochs, B]` into nearly equal parts of the valid rows, as `torch.tensor_split` does.

    Returns rows `[epochs, parts, width]` and the weight `[parts, width]` of each: 0 beyond the end of a shorter part
    (None: all 1).
    """
    epochs, count = order.shape
    if valid is None and count % parts == 0:
        return order.reshape(epochs, parts, -1), None
    total = count if valid is None else jnp.sum(valid)
    width, number = -(-count // parts), jnp.arange(parts)
    size = total // parts + (number < total % parts)  # [parts]
    start = number * (total // parts) + jnp.minimum(number, total % parts)
    place = jnp.minimum(start[:, None] + jnp.arange(width), count - 1)  # [parts, width]
    weight = (jnp.arange(width) < size[:, None]).astype(jnp.float32)
    return order[:, place], weight
