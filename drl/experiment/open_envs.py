"""Open environments by id, including those that only the JAX engine has."""

from typing import TypedDict, Unpack

from drl.core.contracts import VecEnv
from drl.core.errors import BadInput, MissingExtra
from drl.envs.make_vec_env import make_vec_env
from drl.envs.spaces import EnvKwargs

JAX_ONLY = ("brax:", "gymnax:")  # prefixes of ids: environments of these packages, which the JAX engine steps


class EnvOptions(TypedDict, total=False):
    """Options of `make_vec_env`."""

    vectorization: str
    frame_stack: int
    env_kwargs: EnvKwargs | None
    timeout: float


def open_vec_env(
    env: str, num_envs: int, seed: int, *, seeds_stream: str = "world", **options: Unpack[EnvOptions]
) -> VecEnv:
    """`make_vec_env`; the JAX engine steps the environments of `JAX_ONLY`."""
    if not env.startswith(JAX_ONLY):
        return make_vec_env(env, num_envs, seed, seeds_stream=seeds_stream, **options)
    package = env.partition(":")[0]
    if options.get("frame_stack", 1) > 1:
        raise BadInput(f"frame_stack is not for {package}: environments")
    try:
        from drl.engines.jax.envs import HostedVecEnv, make_jax_env
    except ImportError as error:
        raise MissingExtra(env, package, error) from None
    return HostedVecEnv(make_jax_env(env, options.get("env_kwargs")), num_envs, seed, env, seeds_stream)
