"""Environments as pure JAX functions, so that environment, rollout and update compile into one program: the table of
them, and `make_jax_env`."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence

from drl.core.errors import BadInput, did_you_mean
from drl.engines.jax.envs.classic_control import Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum
from drl.engines.jax.envs.foreign_envs import BraxEnv, GymnaxEnv
from drl.engines.jax.envs.game_envs import BitFlip, LegalMoves, MovieRec, against
from drl.engines.jax.envs.jax_env import HostedVecEnv as HostedVecEnv
from drl.engines.jax.envs.jax_env import JaxEnv as JaxEnv
from drl.engines.jax.envs.jax_env import Noise as Noise
from drl.engines.jax.envs.jax_env import step_and_reset as step_and_reset
from drl.engines.jax.envs.jax_env import to_env_units as to_env_units
from drl.envs.spaces import EnvKwargs
from drl.games.ipd.ipd_rules import Rules
from drl.games.ipd.opponents import Opponents, as_pool
from drl.games.movie_rec.movie_rec_rules import CATALOGUE, PERSONAS, MovieRecRules, Persona, as_personas

# Prefixes of ids: an environment of this package.
BRAX = "brax:"
GYMNAX = "gymnax:"

# Below, one function per environment, with the arguments and defaults of its Gymnasium version.


def _cart_pole(sutton_barto_reward: bool = False, max_episode_steps: int = 500) -> JaxEnv:
    return CartPole(sutton_barto_reward, _limit(max_episode_steps))


def _acrobot(max_episode_steps: int = 500) -> JaxEnv:
    return Acrobot(_limit(max_episode_steps))


def _mountain_car(goal_velocity: float = 0.0, max_episode_steps: int = 200) -> JaxEnv:
    return MountainCar(goal_velocity, _limit(max_episode_steps))


def _mountain_car_continuous(goal_velocity: float = 0.0, max_episode_steps: int = 999) -> JaxEnv:
    return MountainCarContinuous(goal_velocity, _limit(max_episode_steps))


def _pendulum(g: float = 10.0, max_episode_steps: int = 200) -> JaxEnv:
    return Pendulum(g, _limit(max_episode_steps))


def _movie_rec(
    catalogue: Sequence[Sequence[str]] = CATALOGUE,
    personas: Sequence[Persona] | Mapping[str, Mapping[str, Sequence[str]]] = PERSONAS,
    reward_click: float = 1.0,
    reward_no_click: float = -0.2,
    reward_churn: float = -10.0,
    max_session_length: int = 20,
) -> JaxEnv:
    rewards = reward_click, reward_no_click, reward_churn
    return MovieRec(MovieRecRules(catalogue, as_personas(personas), *rewards, max_session_length))


def _prisoners_dilemma(
    opponents: Opponents = "all",
    weights: Sequence[float] | None = None,
    payoffs: Sequence[float] = (3.0, 0.0, 5.0, 1.0),
    survival: float | None = None,
    rounds: int | None = None,
    history: int = 20,
) -> JaxEnv:
    return against(as_pool(opponents, weights), Rules(payoffs, survival, rounds, history))


# The only table of JAX-native environments.
JAX_ENVS: dict[str, Callable[..., JaxEnv]] = {
    "Acrobot-v1": _acrobot,
    "CartPole-v0": functools.partial(_cart_pole, max_episode_steps=200),
    "CartPole-v1": _cart_pole,
    "IteratedPrisonersDilemma-v0": _prisoners_dilemma,
    "MountainCar-v0": _mountain_car,
    "MountainCarContinuous-v0": _mountain_car_continuous,
    "MovieRec-v1": _movie_rec,
    "Pendulum-v1": _pendulum,
    "drl/BitFlip-v0": BitFlip,
    "drl/LegalMoves-v0": LegalMoves,
}


def has_jax_env(env_id: str) -> bool:
    """Whether an id has a JAX-native environment. The names of `brax:` and `gymnax:` ids are not checked."""
    return env_id in JAX_ENVS or env_id.startswith((BRAX, GYMNAX))


def make_jax_env(env_id: str, env_kwargs: EnvKwargs | None = None) -> JaxEnv:
    """A JAX-native environment, with the arguments of its Gymnasium version.

    >>> make_jax_env("MountainCar-v0", {"goal_velocity": 0.01})
    MountainCar(goal_velocity=0.01, max_steps=200)
    """
    given = dict(env_kwargs or {})
    if env_id.startswith(BRAX):
        limit = _limit(given.pop("max_episode_steps", BraxEnv.max_steps))
        return BraxEnv(env_id.removeprefix(BRAX), _plain(env_id, given), limit)
    if env_id.startswith(GYMNAX):
        return GymnaxEnv(env_id.removeprefix(GYMNAX), _plain(env_id, given))
    if env_id not in JAX_ENVS:
        close = did_you_mean(env_id, JAX_ENVS)
        hint = "" if close.startswith("expected") else f" {close}"
        raise BadInput(
            f"no environment {env_id!r} is written in JAX.{hint} There are {', '.join(JAX_ENVS)}, and {BRAX}NAME and "
            f"{GYMNAX}NAME for any environment of Brax and of gymnax; make_vec_env steps any Gymnasium id"
        )
    make = JAX_ENVS[env_id]
    known = inspect.signature(make).parameters
    if unknown := [name for name in given if name not in known]:
        raise BadInput(f"{env_id} in JAX takes no argument {unknown[0]!r}; {did_you_mean(unknown[0], known)}")
    return make(**given)


def _limit(max_episode_steps: int) -> int | None:
    """The time limit; Gymnasium's -1 means no limit."""
    if max_episode_steps is None:
        raise BadInput("max_episode_steps = None; omit it for the default limit, or give -1 for none")
    return None if max_episode_steps == -1 else max_episode_steps


def _plain(env_id: str, given: EnvKwargs) -> tuple[tuple[str, bool | int | float | str], ...]:
    """Arguments in a hashable form."""
    for name, value in given.items():
        if not isinstance(value, bool | int | float | str):
            raise BadInput(f"{name} = {value!r}; {env_id} takes numbers, true or false, and text here")
    return tuple(sorted(given.items()))
