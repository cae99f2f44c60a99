"""Opening worlds by id, those included that only an engine knows."""

from typing import Any

from drl.core.errors import BadInput, MissingExtra
from drl.envs.make import make_world

GYMNAX = "gymnax:"  # in front of an id: an environment of gymnax, which the JAX engine steps


def open_world(env: str, num_envs: int, seed: int, *, seeds_stream: str = "world", **options: Any) -> Any:
    """`make_world`, and for `gymnax:` ids the JAX engine's own stepping."""
    if not env.startswith(GYMNAX):
        return make_world(env, num_envs, seed, seeds_stream=seeds_stream, **options)
    if options.get("frame_stack", 1) > 1:
        raise BadInput(f"frame_stack is not for {GYMNAX} environments")
    try:
        from drl.engines.jax.worlds import HostedWorld, make_jax_world
    except ImportError as error:
        raise MissingExtra(f"{env}", "gymnax", error) from None
    return HostedWorld(make_jax_world(env, options.get("env_kwargs")), num_envs, seed, env, seeds_stream)
