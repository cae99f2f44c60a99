"""Environments as pure JAX functions, so that environment, rollout and update compile into one program."""

from drl.engines.jax.envs.env_table import JAX_ENVS, has_jax_env, make_jax_env
from drl.engines.jax.envs.jax_env import (
    EnvStep,
    HostedVecEnv,
    JaxEnv,
    JaxStep,
    Noise,
    State,
    step_and_reset,
    to_env_units,
)

__all__ = [
    "JAX_ENVS",
    "EnvStep",
    "HostedVecEnv",
    "JaxEnv",
    "JaxStep",
    "Noise",
    "State",
    "has_jax_env",
    "make_jax_env",
    "step_and_reset",
    "to_env_units",
]
