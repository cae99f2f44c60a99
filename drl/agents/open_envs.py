"""Open environments by id, including those that only the JAX engine has."""

from typing import TypedDict, Unpack

from drl.core.contracts import VecEnv
from drl.core.errors import BadInput, MissingExtra
from drl.envs.env_config import EnvConfig
from drl.envs.make_vec_env import make_vec_env

JAX_ONLY = ("brax:", "gymnax:")  # prefixes of ids: environments of these packages, which the JAX engine steps


class EnvOptions(TypedDict, total=False):
    """How `make_vec_env` steps environments."""

    vectorization: str
    timeout: float


def open_vec_env(
    config: EnvConfig, num_envs: int, seed: int, *, seeds_stream: str = "world", **options: Unpack[EnvOptions]
) -> VecEnv:
    """`make_vec_env`; the JAX engine steps the environments of `JAX_ONLY`."""
    env = config.env
    if not env.startswith(JAX_ONLY):
        return make_vec_env(config, num_envs, seed, seeds_stream=seeds_stream, **options)
    package = env.partition(":")[0]
    if config.frame_stack > 1 or config.wrappers:
        raise BadInput(f"{'wrappers are' if config.wrappers else 'frame_stack is'} not for {package}: environments")
    try:
        from drl.engines.jax.envs import HostedVecEnv, make_jax_env
    except ImportError as error:
        raise MissingExtra(env, package, error) from None
    return HostedVecEnv(make_jax_env(env, config.env_kwargs), num_envs, seed, env, seeds_stream)
