"""Watching an agent: step by step in words, in a window, or as a film."""

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from drl.core.contracts import Agent
from drl.core.errors import BadInput
from drl.core.log import Episode
from drl.core.seeding import Seeds
from drl.core.specs import Array
from drl.envs.action_masks import mask_reader, stack_masks
from drl.envs.episode_stats import judge_success, reward_threshold, success_in
from drl.envs.make_vec_env import make_env
from drl.envs.spaces import action_spec, obs_spec
from drl.experiment.evaluation import check_fit, own_stream
from drl.experiment.open_envs import GYMNAX
from drl.tracking.video import write_video

MANY = 12  # numbers that still fit into a line
MAX_FRAMES = 3000  # of one film: an environment that never ends is cut here


class Step(NamedTuple):
    """What one step of a single environment looked like."""

    obs: Any
    action: Array
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    thoughts: dict[str, Array]  # what the agent thought of the observation, where it was asked


def play(agent: Any, env: Any, seed: int, explore: bool = False, ask: bool = False) -> Iterator[Step]:
    """One episode, step by step. With `ask` the agent explains itself before it acts."""
    obs, info = env.reset(seed=seed)
    agent.begin()
    read = mask_reader(env)
    while True:
        masks = stack_masks([read(obs, info)], agent.action_spec)
        thoughts = agent.explain(agent.obs_spec.encode_one(obs)[None], masks) if ask else {}
        action = agent.act(obs, explore, masks)
        following, reward, terminated, truncated, info = env.step(action)
        yield Step(obs, action, float(reward), bool(terminated), bool(truncated), info, thoughts)
        if terminated or truncated:
            return
        obs = following


def watch(
    agent: Agent,
    env_id: str,
    mode: str,
    episodes: int,
    seed: int,
    *,
    explore: bool = False,
    stream: TextIO | None = None,
    **options: Any,
) -> list[Episode]:
    """Play episodes in the environment's own window (`mode="human"`) or in words (`mode="ansi"`): what the agent sees,
    thinks, does and gets, one line a step on `stream`. Any other mode tells the result of each episode only."""
    finished = []
    stream = stream or sys.stdout
    with _open(agent, env_id, mode, options) as env, own_stream(agent, seed):
        for index in range(episodes):
            if mode == "ansi":
                print(f"── episode {index + 1} of {episodes} ".ljust(80, "─"), file=stream)
            total, length = 0.0, 0
            for step in play(agent, env, Seeds(seed).integer("watch", index), explore, ask=mode == "ansi"):
                total, length, last = total + step.reward, length + 1, step
                if mode == "ansi":
                    print(_line(agent, length, step, env), file=stream)
            how = "terminated" if last.terminated else "truncated"
            print(f"episode {index + 1}: {how} after {length} steps, return {total:g}", file=stream)
            success = judge_success(success_in(last.info), total, reward_threshold(env_id))
            finished.append(Episode(total, length, last.terminated, success, env_index=0))
    return finished


def film(agent: Agent, env_id: str, path: Path, seed: int = 0, *, explore: bool = False, **options: Any) -> Path | None:
    """One episode as an mp4; None where the environment cannot be drawn."""
    if env_id.startswith(GYMNAX):
        return None
    with _open(agent, env_id, "rgb_array", options) as env, own_stream(agent, seed):
        if env.render_mode != "rgb_array":
            return None
        steps = play(agent, env, Seeds(seed).integer("film"), explore)
        frames = (np.asarray(env.render()) for _ in itertools.islice(steps, MAX_FRAMES))
        return write_video(path, frames, fps=int(env.metadata.get("render_fps") or 30))


def _open(agent: Agent, env_id: str, mode: str, options: dict[str, Any]) -> Any:
    """One environment in the wanted render mode, or without one where it has none; checked to fit the agent."""
    if env_id.startswith(GYMNAX):
        raise BadInput(f"{env_id} lives in a compiled program and cannot be watched; drl evaluate gives its returns")
    # pygame wants a sound card always, and a screen even to draw into memory.
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if mode == "rgb_array":
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    env = make_env(env_id, **options)
    check_fit(agent, obs_spec(env.observation_space), action_spec(env.action_space), env_id)
    if mode in env.metadata.get("render_modes", []):
        env.close()
        env = make_env(env_id, render_mode=mode, **options)
    return env


def _line(agent: Any, count: int, step: Step, env: Any) -> str:
    """One line: the environment's own words where it has some, what the agent thought, what it got."""
    drawn = str(env.render()).rstrip() if env.render_mode == "ansi" else ""
    thoughts = [f"{name} {_thought(thought[0], step.action)}" for name, thought in step.thoughts.items()]
    if drawn and "\n" not in drawn:
        return "  ".join([drawn, *thoughts])
    encoded = agent.obs_spec.encode_one(step.obs)[None]
    parts = [f"{count:4d}", f"obs {_short(encoded[0])}", *thoughts, f"action {_short(step.action)}"]
    parts.append(f"reward {step.reward:g}")
    plain = {k: v for k, v in step.info.items() if isinstance(v, str | int | float | bool | np.generic)}
    line = "  ".join(parts + [f"{k}={v}" for k, v in plain.items()])
    return f"{line}\n{drawn}" if drawn else line  # a board of several lines stands below


def _thought(values: Array, action: Array) -> str:
    """All numbers if they are few; of many, the one of the action taken."""
    if np.size(values) <= MANY or np.ndim(action) or not 0 <= int(action) < len(values):
        return _short(values)
    return f"{values[int(action)]:.2f} for {int(action)} (of {len(values)}: mean {values.mean():.2f})"


def _short(array: Any) -> str:
    """A handful of numbers, or a summary of many."""
    array = np.asarray(array)
    if array.size > MANY:
        return f"[{array.shape} min {array.min():.2f} mean {array.mean():.2f} max {array.max():.2f}]"
    return np.array2string(array, precision=2, suppress_small=True, separator=" ").replace("\n", "")
