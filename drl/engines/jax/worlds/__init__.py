"""Worlds as pure JAX functions, so that world, rollout and update compile into one program."""

from drl.engines.jax.worlds.action_units import to_world_units
from drl.engines.jax.worlds.hosted_world import HostedWorld
from drl.engines.jax.worlds.stepping import JaxStep, step_and_reset
from drl.engines.jax.worlds.world_contract import JaxWorld, Moved, Noise, State
from drl.engines.jax.worlds.world_table import JAX_WORLDS, has_jax_world, make_jax_world

__all__ = [
    "JAX_WORLDS",
    "HostedWorld",
    "JaxStep",
    "JaxWorld",
    "Moved",
    "Noise",
    "State",
    "has_jax_world",
    "make_jax_world",
    "step_and_reset",
    "to_world_units",
]
