"""`make_jax_world`: from an id to a JAX-native world, through one table."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drl.core.errors import BadInput, did_you_mean
from drl.engines.jax.worlds.acrobot import Acrobot
from drl.engines.jax.worlds.cart_pole import CartPole
from drl.engines.jax.worlds.gymnax_world import GymnaxWorld
from drl.engines.jax.worlds.mountain_car import MountainCar, MountainCarContinuous
from drl.engines.jax.worlds.movie_rec import MovieRec
from drl.engines.jax.worlds.pendulum import Pendulum
from drl.engines.jax.worlds.prisoners_dilemma import against
from drl.engines.jax.worlds.world_contract import JaxWorld
from drl.envs.ipd.opponents import as_pool
from drl.envs.ipd.rules import Rules as GameRules
from drl.envs.movie_rec.rules import CATALOGUE, PERSONAS, Persona, Rules, as_personas

GYMNAX = "gymnax:"  # in front of an id: an environment of gymnax

# Below, one function per world, with the arguments and defaults of its Gymnasium twin.


def _cart_pole(sutton_barto_reward: bool = False, max_episode_steps: int = 500) -> JaxWorld:
    return CartPole(sutton_barto_reward, _limit(max_episode_steps))


def _acrobot(max_episode_steps: int = 500) -> JaxWorld:
    return Acrobot(_limit(max_episode_steps))


def _mountain_car(goal_velocity: float = 0.0, max_episode_steps: int = 200) -> JaxWorld:
    return MountainCar(goal_velocity, _limit(max_episode_steps))


def _mountain_car_continuous(goal_velocity: float = 0.0, max_episode_steps: int = 999) -> JaxWorld:
    return MountainCarContinuous(goal_velocity, _limit(max_episode_steps))


def _pendulum(g: float = 10.0, max_episode_steps: int = 200) -> JaxWorld:
    return Pendulum(g, _limit(max_episode_steps))


def _movie_rec(
    catalogue: Sequence[Sequence[str]] = CATALOGUE,
    personas: Sequence[Persona] | Mapping[str, Mapping[str, Sequence[str]]] = PERSONAS,
    reward_click: float = 1.0,
    reward_no_click: float = -0.2,
    reward_churn: float = -10.0,
    max_session_length: int = 20,
) -> JaxWorld:
    rewards = reward_click, reward_no_click, reward_churn
    return MovieRec(Rules(catalogue, as_personas(personas), *rewards, max_session_length))


def _prisoners_dilemma(
    opponents: Any = "all",
    weights: Sequence[float] | None = None,
    payoffs: Sequence[float] = (3.0, 0.0, 5.0, 1.0),
    survival: float | None = None,
    rounds: int | None = None,
    history: int = 20,
) -> JaxWorld:
    return against(as_pool(opponents, weights), GameRules(payoffs, survival, rounds, history))


# The one place where an id becomes a world.
JAX_WORLDS: dict[str, Callable[..., JaxWorld]] = {
    "Acrobot-v1": _acrobot,
    "CartPole-v0": functools.partial(_cart_pole, max_episode_steps=200),
    "CartPole-v1": _cart_pole,
    "IteratedPrisonersDilemma-v0": _prisoners_dilemma,
    "MountainCar-v0": _mountain_car,
    "MountainCarContinuous-v0": _mountain_car_continuous,
    "MovieRec-v1": _movie_rec,
    "Pendulum-v1": _pendulum,
}


def has_jax_world(env_id: str) -> bool:
    """Whether an id can be part of a compiled program; for `gymnax:` ids without asking gymnax for the name."""
    return env_id in JAX_WORLDS or env_id.startswith(GYMNAX)


def make_jax_world(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> JaxWorld:
    """A JAX-native world, with the arguments that its Gymnasium twin takes.

    >>> make_jax_world("MountainCar-v0", {"goal_velocity": 0.01})
    MountainCar(goal_velocity=0.01, max_steps=200)
    """
    given = dict(env_kwargs or {})
    if env_id.startswith(GYMNAX):
        return GymnaxWorld(env_id.removeprefix(GYMNAX), _plain(env_id, given))
    if env_id not in JAX_WORLDS:
        close = did_you_mean(env_id, JAX_WORLDS)
        hint = "" if close.startswith("expected") else f" {close}"
        raise BadInput(
            f"no world {env_id!r} is written in JAX.{hint} There are {', '.join(JAX_WORLDS)} and {GYMNAX}NAME for any "
            "environment of gymnax; every Gymnasium id works with make_world, stepped outside the compiled program"
        )
    make = JAX_WORLDS[env_id]
    known = inspect.signature(make).parameters
    if unknown := [name for name in given if name not in known]:
        raise BadInput(f"{env_id} in JAX takes no argument {unknown[0]!r}; {did_you_mean(unknown[0], known)}")
    return make(**given)


def _limit(max_episode_steps: int) -> int | None:
    """Gymnasium's way to say that there is no time limit is -1."""
    if max_episode_steps is None:
        raise BadInput("max_episode_steps = None; leave it out for the usual limit, or give -1 for none")
    return None if max_episode_steps == -1 else max_episode_steps


def _plain(env_id: str, given: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Arguments as part of a hashable world."""
    for name, value in given.items():
        if not isinstance(value, bool | int | float | str):
            raise BadInput(f"{name} = {value!r}; {env_id} takes numbers, true or false, and text here")
    return tuple(sorted(given.items()))
