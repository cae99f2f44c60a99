"""Watching an agent that plays every part in a game of several agents."""

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from drl.agents.evaluation import check_fit, own_stream
from drl.core.contracts import Agent, EnvChange, VecEnv, VecStep, repeat_changes
from drl.core.errors import BadInput
from drl.core.log import Episode
from drl.core.specs import Array
from drl.envs.env_config import EnvConfig
from drl.envs.faults import blamed
from drl.envs.frame_stack import StackedVecEnv
from drl.envs.make_vec_env import make_vec_env
from drl.envs.parallel_vec_env import ParallelVecEnv
from drl.tracking.video import write_video


class Table(NamedTuple):
    """One copy of a game, ready to be played."""

    envs: VecEnv  # what the agent sees
    game: ParallelVecEnv  # the same without frame stacking

    @property
    def mode(self) -> str | None:
        """How it is rendered."""
        return getattr(self.game.games[0], "render_mode", None)


def film_game(
    agent: Agent,
    config: EnvConfig,
    path: Path,
    seed: int,
    explore: bool,
    most_frames: int,
    changes: Sequence[EnvChange] = (),
) -> Path | None:
    """Write one game as an mp4; None if it cannot be rendered. `changes` are made before its first reset."""
    with _open(agent, config, "rgb_array", seed) as table:
        if table.mode != "rgb_array":
            return None
        repeat_changes(changes, table.envs)
        fps = int(table.game.games[0].metadata.get("render_fps") or 30)
        return write_video(path, itertools.islice(_frames(agent, table, explore), most_frames), fps=fps)


def watch_game(
    agent: Agent, config: EnvConfig, mode: str, games: int, seed: int, explore: bool, stream: TextIO
) -> list[Episode]:
    """Play games in their own window (`mode="human"`) or as text (`mode="ansi"`); the episodes of all agents."""
    finished: list[Episode] = []
    with _open(agent, config, mode, seed) as table:
        for number in range(1, games + 1):
            episodes: list[Episode] = []
            for rounds, step in enumerate(_play(agent, table, table.envs.reset(), explore), start=1):
                episodes += step.episodes
                if table.mode == "human":
                    table.game.render()
                if mode == "ansi":
                    print(f"{rounds:4d}  rewards {' '.join(f'{reward:.4g}' for reward in step.reward)}", file=stream)
            returns = [f"{table.game.agents[each.env_index]} {each.episode_return:g}" for each in episodes]
            print(f"game {number}: {rounds} rounds, returns: {', '.join(returns)}", file=stream)
            finished += episodes
    return finished


def _play(agent: Agent, table: Table, obs: Array, explore: bool) -> Iterator[VecStep]:
    """One game, round by round, from its first observations on."""
    agent.begin()
    while True:
        step = table.envs.step(agent.action_spec.to_env(agent.decide(obs, explore, table.envs.action_mask)))
        yield step
        if table.game.ended[0]:
            return
        if agent.recurrent:
            agent.begin(step.over)
        obs = step.obs


def _frames(agent: Agent, table: Table, explore: bool) -> Iterator[Array]:
    obs = table.envs.reset()
    yield np.asarray(table.game.render())
    for _ in _play(agent, table, obs, explore):
        if not table.game.ended[0]:  # the next game has begun
            yield np.asarray(table.game.render())


def offered_mode(mode: str, metadata: Mapping[str, Any], env: str) -> str | None:
    """The render mode, or None if the environment lacks it; raises if that was to be its window."""
    if mode in metadata.get("render_modes", []):
        return mode
    if mode == "human":
        raise BadInput(f"{env} cannot be drawn: it has no render mode 'human'; try --video or --step-by-step")
    return None


@contextlib.contextmanager
def _open(agent: Agent, config: EnvConfig, mode: str, seed: int) -> Iterator[Table]:
    """One copy of a game in this render mode, or without one if it lacks it. Raises unless it fits the agent."""
    # pygame needs a sound card always, and a screen even for off-screen drawing.
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if mode == "rgb_array":
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    with make_vec_env(config, 1, seed, seeds_stream="watch") as envs:
        check_fit(agent, envs.obs_spec, envs.action_spec, config.env)
        render_mode = offered_mode(mode, _without_stack(envs).games[0].metadata, config.env)
    with (
        blamed(config.env),
        make_vec_env(config, 1, seed, seeds_stream="watch", render_mode=render_mode) as envs,
        own_stream(agent, seed),
    ):
        yield Table(envs, _without_stack(envs))


def _without_stack(envs: VecEnv) -> ParallelVecEnv:
    game = envs.envs if isinstance(envs, StackedVecEnv) else envs
    assert isinstance(game, ParallelVecEnv)
    return game
