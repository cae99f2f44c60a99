"""Opening environments by id, those included that only an engine knows."""

from typing import Any

from drl.core.errors import BadInput, MissingExtra
from drl.envs.make_vec_env import make_vec_env

GYMNAX = "gymnax:"  # in front of an id: an environment of gymnax, which the JAX engine steps


def open_vec_env(env: str, num_envs: int, seed: int, *, seeds_stream: str = "world", **options: Any) -> Any:
    """`make_vec_env`, and for `gymnax:` ids the JAX engine's own stepping."""
    if not env.startswith(GYMNAX):
        return make_vec_env(env, num_envs, seed, seeds_stream=seeds_stream, **options)
    if options.get("frame_stack", 1) > 1:
        raise BadInput(f"frame_stack is not for {GYMNAX} environments")
    try:
        from drl.engines.jax.envs import HostedVecEnv, make_jax_env
    except ImportError as error:
        raise MissingExtra(f"{env}", "gymnax", error) from None
    return HostedVecEnv(make_jax_env(env, options.get("env_kwargs")), num_envs, seed, env, seeds_stream)
