"""Actions from a policy's parameters and noise that was drawn before: a rollout draws all of it at once."""

import jax
import jax.numpy as jnp

from drl.core.specs import ActionSpec


def random_draws(spec: ActionSpec, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Noise for `shape` decisions, `[*shape, entries]`: normal for a Gaussian policy, else uniform."""
    draw = jax.random.normal if spec.kind == "gaussian" else jax.random.uniform
    return draw(key, (*shape, max(spec.entries, 1)))


def choose(spec: ActionSpec, params: jax.Array, draws: jax.Array) -> jax.Array:
    """Sampled actions in the policy's units, from parameters `[N, P]` and chance `[N, entries]`."""
    if spec.kind == "gaussian":
        mean, log_std = jnp.split(params, 2, axis=-1)
        return mean + jnp.exp(log_std) * draws
    if spec.kind == "bernoulli":
        return (draws < jax.nn.sigmoid(params)).astype(jnp.int32)
    if spec.kind == "categorical":
        return _category(params, draws[:, 0])
    ends = [sum(spec.sizes[: i + 1]) for i in range(len(spec.sizes) - 1)]
    parts = jnp.split(params, ends, axis=-1)
    return jnp.stack([_category(part, draws[:, i]) for i, part in enumerate(parts)], axis=1)


def _category(logits: jax.Array, uniform: jax.Array) -> jax.Array:
    """Where the running sum of probabilities passes `uniform`: one draw for each decision, whatever its choices."""
    passed = jnp.cumsum(jax.nn.softmax(logits, axis=-1), axis=-1)[:, :-1]
    return (uniform[:, None] >= passed).sum(axis=-1, dtype=jnp.int32)
