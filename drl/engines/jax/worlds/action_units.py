"""From the policy's units to the world's, in JAX: the twin of `ActionSpec.to_env`."""

import jax
import jax.numpy as jnp
import numpy as np

from drl.core.specs import ActionSpec


def to_world_units(spec: ActionSpec, action: jax.Array) -> jax.Array:
    """Translate a batch `[N, *policy_shape]`. Gaussian actions are clipped to [−1, 1], which spans the bounds."""
    if spec.kind == "gaussian":
        low, high = np.asarray(spec.low, np.float32), np.asarray(spec.high, np.float32)
        bounded = np.isfinite(low) & np.isfinite(high)
        lower, upper = np.where(bounded, low, 0), np.where(bounded, high, 0)  # no infinity may meet a zero below
        inside = jnp.clip(action, -1.0, 1.0)
        scaled = jnp.where(bounded, upper * (inside + 1) / 2 + lower * (1 - inside) / 2, action)
        limited = jnp.clip(scaled, low, high)  # one-sided bounds are only clipped
        return limited.reshape(len(action), *spec.shape)
    moved = action + np.asarray(spec.starts, np.int32) if spec.starts else action
    return moved.reshape(len(action), *spec.shape)
