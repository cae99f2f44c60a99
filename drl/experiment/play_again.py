"""A recorded episode played again: same seed, same actions, so the same episode."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np

from drl.core.errors import BadInput, EnvFailed
from drl.core.specs import Array
from drl.envs.env_attributes import lost_in, replayed, set_before, set_on
from drl.envs.make_vec_env import make_env
from drl.envs.rendered_env import PICTURES, RenderedEnv
from drl.experiment.config import RunConfig
from drl.experiment.watch import write_film
from drl.tracking.recorded_episodes import RecordedEpisode

Env = gym.Env[object, object]


class Again(NamedTuple):
    """One step of an episode that is played again."""

    obs: object  # before the action
    action: Array
    reward: float


def play_again(env: Env, recorded: RecordedEpisode) -> Iterator[Again]:
    """The steps of a recorded episode. Raises if the environment fails, or does not repeat itself."""
    played, total = recorded.played, 0.0
    actions, changes = played.actions, played.changes
    if (lost := lost_in(change.value for change in changes)) is not None:
        raise EnvFailed(f"the episode cannot be repeated: {lost}")

    def set_value(name: str, value: object) -> None:
        if isinstance(env, RenderedEnv):
            env.set(name, value)
        else:
            set_on(env, name, value, "the environment")

    try:
        set_before(changes, set_value)
        obs, _ = env.reset(seed=played.seed)
        again = replayed(actions, changes, set_value)
        for count, action in enumerate(again, start=1):
            following, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            yield Again(obs, np.asarray(action), float(reward))
            obs = following
            if (terminated or truncated) and count < len(actions):
                raise EnvFailed(f"the episode ends after {count} steps; recorded were {len(actions)}: {UNREPEATABLE}")
    except EnvFailed:
        raise
    except Exception as error:
        raise EnvFailed(f"the environment fails again: {type(error).__name__}: {error}") from error
    if recorded.number and not np.isclose(total, recorded.episode_return, rtol=1e-9, equal_nan=True):
        raise EnvFailed(f"the return is {total:g}; recorded was {recorded.episode_return:g}: {UNREPEATABLE}")


UNREPEATABLE = "this environment does not repeat itself, or its version is another"


def open_again(run: RunConfig, mode: str | None) -> Env:
    """An environment of a run, to play an episode again; `mode` is how it is rendered."""
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    env = make_env(run.env_config, render_mode=mode, frame_stack=1)
    if mode is not None and env.render_mode != mode:
        raise BadInput(f"{run.env} cannot be drawn: it has no render mode {mode!r}")
    return env


def film_again(run: RunConfig, recorded: RecordedEpisode, path: Path) -> Path:
    """Write a recorded episode as an mp4."""
    with RenderedEnv(replace(run.env_config, frame_stack=1), timeout=run.worker_timeout) as env:
        if env.render_mode is None:
            raise BadInput(f"{run.env} cannot be drawn: it has no render mode {PICTURES!r}")
        steps = play_again(env, recorded)
        return write_film(path, env, steps if recorded.number else _until_failure(steps))


def _until_failure(steps: Iterator[Again]) -> Iterator[Again]:
    """The steps of an episode that ends with a failure."""
    with contextlib.suppress(EnvFailed):
        yield from steps
