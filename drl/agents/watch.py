"""Watching an agent, also in a game of several agents: as text, in a window, or as a video."""

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import gymnasium as gym
import numpy as np

from drl.agents.agent_env import JAX_ONLY, env_for
from drl.agents.evaluation import check_fit, own_stream
from drl.core.contracts import Agent, EnvChange, VecEnv, VecStep, repeat_changes
from drl.core.errors import BadInput, plural
from drl.core.log import Episode
from drl.core.seeding import Seeds
from drl.core.specs import Array
from drl.envs.async_vec_env import PATIENCE
from drl.envs.env_config import EnvConfig, EnvLike
from drl.envs.env_wrappers import StackedVecEnv
from drl.envs.episode_stats import judge_success, reward_threshold, success_in
from drl.envs.faults import blamed, checked, close_anyway
from drl.envs.make_vec_env import has_several_agents, make_env, make_vec_env
from drl.envs.parallel_vec_env import ParallelVecEnv
from drl.envs.rendered_env import RenderedEnv
from drl.envs.spaces import action_spec, mask_reader, obs_spec, stack_masks
from drl.tracking.video import write_video

MANY = 12  # most numbers printed in one line
MAX_FRAMES = 3000  # of one video; longer episodes are cut
MAX_SECONDS = 300.0  # for one video; what takes longer is cut
Env = gym.Env[object, Array]


class PlayedStep(NamedTuple):
    """One step of a single environment."""

    obs: object
    action: Array
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, object]
    explained: dict[str, Array]  # `agent.explain` of the observation, if asked for


def play(agent: Agent, env: Env, seed: int, explore: bool = False, explain: bool = False) -> Iterator[PlayedStep]:
    """One episode, step by step. With `explain` each step includes the agent's values or probabilities."""
    obs, info = env.reset(seed=seed)
    agent.begin()
    read = mask_reader(env)
    while True:
        masks = stack_masks([read(obs, info)], agent.action_spec)
        explained = agent.explain(obs, masks) if explain else {}
        action = agent.act(obs, explore, masks)
        following, reward, terminated, truncated, info = env.step(action)
        reward, terminated, truncated = checked(reward, terminated, truncated, info)
        yield PlayedStep(obs, action, reward, terminated, truncated, info, explained)
        if terminated or truncated:
            return
        obs = following


def watch(
    agent: Agent,
    env: EnvLike,
    mode: str,
    episodes: int,
    seed: int,
    *,
    explore: bool = False,
    stream: TextIO | None = None,
) -> list[Episode]:
    """Play episodes in the environment's own window (`mode="human"`) or as text (`mode="ansi"`); of a game of several
    agents, whole games.

    Text mode prints one line per step on `stream`: observation, values or probabilities, action and reward. Other
    modes print only the result of each episode.
    """
    finished, config = [], env_for(agent, env)
    stream = stream or sys.stdout
    if not config.env.startswith(JAX_ONLY) and has_several_agents(config):
        return _watch_game(agent, config, mode, episodes, seed, explore, stream)
    with blamed(config.env), _open(agent, config, mode) as single, own_stream(agent, seed):
        for index in range(episodes):
            if mode == "ansi":
                print(f"── episode {index + 1} of {episodes} ".ljust(80, "─"), file=stream)
            total, length = 0.0, 0
            for step in play(agent, single, Seeds(seed).integer("watch", index), explore, explain=mode == "ansi"):
                total, length, last = total + step.reward, length + 1, step
                if mode == "ansi":
                    print(_line(agent, length, step, single), file=stream)
            how = "terminated" if last.terminated else "truncated"
            print(f"episode {index + 1}: {how} after {plural(length, 'step')}, return {total:g}", file=stream)
            success = judge_success(success_in(last.info), total, reward_threshold(config.env))
            finished.append(Episode(total, length, last.terminated, success, env_index=0))
    return finished


def film(
    agent: Agent,
    env: EnvLike,
    path: Path,
    seed: int = 0,
    *,
    explore: bool = False,
    timeout: float = PATIENCE,
    changes: Sequence[EnvChange] = (),
) -> Path | None:
    """Write one episode as an mp4; None if the environment cannot be rendered. The environment is in a process of its
    own, which has `timeout` seconds for its start and each step. `changes` are made before its first reset."""
    config = env_for(agent, env)
    if config.env.startswith(JAX_ONLY):
        return None
    if has_several_agents(config):
        return _film_game(agent, config, path, seed, explore, changes)
    with blamed(config.env), RenderedEnv(config, timeout=timeout) as drawn, own_stream(agent, seed):
        check_fit(agent, drawn.obs_spec, drawn.action_spec, config.env)
        if drawn.render_mode is None:
            return None
        repeat_changes(changes, drawn)
        return write_film(path, drawn, play(agent, drawn, Seeds(seed).integer("film"), explore))


def write_film(path: Path, env: RenderedEnv, steps: Iterable[object]) -> Path:
    """A picture after each step, until `MAX_FRAMES` or `MAX_SECONDS` are reached."""
    end = time.monotonic() + MAX_SECONDS
    timely = itertools.takewhile(lambda _: time.monotonic() < end, itertools.islice(steps, MAX_FRAMES))
    frames = (np.asarray(env.render()) for _ in timely)
    return write_video(path, frames, fps=int(env.metadata.get("render_fps") or 30))


@contextlib.contextmanager
def _open(agent: Agent, config: EnvConfig, mode: str) -> Iterator[Env]:
    """One environment in this render mode, or without one if it lacks it. Raises unless it fits the agent."""
    env_id = config.env
    if env_id.startswith(JAX_ONLY):
        raise BadInput(f"{env_id} runs in a compiled program and cannot be watched; use drl evaluate for its returns")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # pygame needs a sound card
    env: Env = make_env(config)
    try:
        check_fit(agent, obs_spec(env.observation_space), action_spec(env.action_space), env_id)
        if _offered_mode(mode, env.metadata, env_id) is not None:
            close_anyway(env.close, env_id)
            env = make_env(config, mode)
        yield env
    finally:
        close_anyway(env.close, env_id)


def _line(agent: Agent, count: int, step: PlayedStep, env: Env) -> str:
    """One step as text: the environment's own line if it has one, else observation, explanation, action and reward."""
    drawn = str(env.render()).rstrip() if env.render_mode == "ansi" else ""
    explained = [f"{name} {_explained(values, step.action)}" for name, values in step.explained.items()]
    if drawn and "\n" not in drawn:
        return "  ".join([drawn, *explained])
    encoded = agent.obs_spec.encode_one(step.obs)[None]
    parts = [f"{count:4d}", f"obs {short(encoded[0])}", *explained, f"action {short(step.action)}"]
    parts.append(f"reward {step.reward:g}")
    plain = {k: v for k, v in step.info.items() if isinstance(v, str | int | float | bool | np.generic)}
    line = "  ".join(parts + [f"{k}={v}" for k, v in plain.items()])
    return f"{line}\n{drawn}" if drawn else line  # a board of several lines goes below


def _explained(values: Array, action: Array) -> str:
    """All numbers if they are few, else the one of the chosen action."""
    if np.size(values) <= MANY or np.ndim(action) or not 0 <= int(action) < len(values):
        return short(values)
    return f"{values[int(action)]:.2f} for {int(action)} (of {len(values)}: mean {values.mean():.2f})"


def short(value: object) -> str:
    """A few numbers in full, or a summary of many."""
    array = np.asarray(value)
    if array.size > MANY:
        return f"[{array.shape} min {array.min():.2f} mean {array.mean():.2f} max {array.max():.2f}]"
    return np.array2string(array, precision=2, suppress_small=True, separator=" ").replace("\n", "")


class GameTable(NamedTuple):
    """One copy of a game, ready to be played."""

    envs: VecEnv  # as the agent sees it
    game: ParallelVecEnv  # the same without frame stacking
    mode: str | None  # the render mode


def _film_game(
    agent: Agent, config: EnvConfig, path: Path, seed: int, explore: bool, changes: Sequence[EnvChange]
) -> Path | None:
    """`film` for a game of several agents."""

    def frames(table: GameTable) -> Iterator[Array]:
        obs = table.envs.reset()
        yield np.asarray(table.game.render())
        for _ in _play(agent, table, obs, explore):
            if not table.game.ended[0]:  # the next game has begun
                yield np.asarray(table.game.render())

    with _open_game(agent, config, "rgb_array", seed) as table:
        if table.mode != "rgb_array":
            return None
        repeat_changes(changes, table.envs)
        fps = int(table.game.games[0].metadata.get("render_fps") or 30)
        return write_video(path, itertools.islice(frames(table), MAX_FRAMES), fps=fps)


def _watch_game(
    agent: Agent, config: EnvConfig, mode: str, games: int, seed: int, explore: bool, stream: TextIO
) -> list[Episode]:
    """`watch` for a game of several agents; the episodes of all agents."""
    finished: list[Episode] = []
    with _open_game(agent, config, mode, seed) as table:
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


def _play(agent: Agent, table: GameTable, obs: Array, explore: bool) -> Iterator[VecStep]:
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


def _offered_mode(mode: str, metadata: Mapping[str, Any], env: str) -> str | None:
    """The render mode, or None if the environment lacks it; raises if that was to be its window."""
    if mode in metadata.get("render_modes", []):
        return mode
    if mode == "human":
        raise BadInput(f"{env} cannot be drawn: it has no render mode 'human'; try --video or --step-by-step")
    return None


@contextlib.contextmanager
def _open_game(agent: Agent, config: EnvConfig, mode: str, seed: int) -> Iterator[GameTable]:
    """One copy of a game in this render mode, or without one if it lacks it. Raises unless it fits the agent."""
    # pygame needs a sound card always, and a screen even for off-screen drawing.
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if mode == "rgb_array":
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    with make_vec_env(config, 1, seed, seeds_stream="watch") as envs:
        check_fit(agent, envs.obs_spec, envs.action_spec, config.env)
        render_mode = _offered_mode(mode, _without_stack(envs).games[0].metadata, config.env)
    with blamed(config.env), make_vec_env(config, 1, seed, seeds_stream="watch", render_mode=render_mode) as envs:
        game = _without_stack(envs)
        with own_stream(agent, seed):
            yield GameTable(envs, game, getattr(game.games[0], "render_mode", None))


def _without_stack(envs: VecEnv) -> ParallelVecEnv:
    game = envs.envs if isinstance(envs, StackedVecEnv) else envs
    assert isinstance(game, ParallelVecEnv)
    return game
