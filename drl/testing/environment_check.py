"""`check_environment`: finds faults that break training and that Gymnasium's own checker misses."""

from typing import SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.core import ActType, ObsType

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.envs.spaces import action_spec, obs_spec


def check_environment(
    env: gym.Env[ObsType, ActType], steps: int = 1000, seed: int = 0, max_episode: int = 100_000
) -> None:
    """Play random actions and raise `BadInput`, naming the fault, if `env` breaks the contract.

    Checks spaces, determinism by seed, finite scalar rewards, observations inside the space and never reused as a
    buffer, boolean flags, and that episodes end.
    """
    obs_spec(env.observation_space), action_spec(env.action_space)
    first = _play(env, steps, seed, max_episode)
    second = _play(env, steps, seed, max_episode)
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        if not _same(one, other):
            raise BadInput(f"the same seed and actions gave another result at step {index}; use self.np_random only")


def _play(env: gym.Env[ObsType, ActType], steps: int, seed: int, max_episode: int) -> list[tuple[list[Array], float]]:
    env.action_space.seed(seed)
    obs, _ = env.reset(seed=seed)
    _inside(env, obs, "reset")
    trace: list[tuple[list[Array], float]] = []
    length = 0
    while len(trace) < steps:
        before = _copy(obs)
        following, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        if not _same((before, 0.0), (_copy(obs), 0.0)):
            raise BadInput(f"step {len(trace)} changed the observation handed out before it; return a copy")
        _inside(env, following, f"step {len(trace)}")
        _scalar(reward, len(trace))
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                raise BadInput(f"{name} is {flag!r} at step {len(trace)}; expected a bool")
        trace.append((_copy(following), float(reward)))
        obs, length = following, length + 1
        if terminated or truncated:
            obs, length = env.reset()[0], 0
            _inside(env, obs, "reset")
        elif length >= max_episode:
            raise BadInput(f"an episode ran for {length} steps; add a time limit (max_episode_steps)")
    return trace


def _scalar(reward: SupportsFloat, step: int) -> None:
    if shape := np.asarray(reward).shape:
        raise BadInput(f"the reward at step {step} has shape {shape}; expected one number")
    if not np.isfinite(float(reward)):
        raise BadInput(f"the reward at step {step} is {reward}; expected a finite number")


def _inside(env: gym.Env[ObsType, ActType], obs: ObsType, where: str) -> None:
    if not env.observation_space.contains(obs):
        raise BadInput(f"the observation of {where} is outside the observation space {env.observation_space}: {obs!r}")
    for leaf in _leaves(obs):
        if not np.all(np.isfinite(leaf)):
            raise BadInput(f"the observation of {where} has a number that is not finite: {obs!r}")


def _leaves(obs: object) -> list[Array]:
    if isinstance(obs, dict):
        return [leaf for value in obs.values() for leaf in _leaves(value)]
    if isinstance(obs, tuple):
        return [leaf for value in obs for leaf in _leaves(value)]
    return [np.asarray(obs)]


def _copy(obs: object) -> list[Array]:
    return [np.array(leaf) for leaf in _leaves(obs)]


def _same(one: tuple[list[Array], float], other: tuple[list[Array], float]) -> bool:
    leaves = zip(one[0], other[0], strict=True)
    return one[1] == other[1] and all(np.array_equal(a, b) for a, b in leaves)
