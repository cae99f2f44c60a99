"""`drl.replay`: play a recorded episode again, with the same seed and actions."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np

from drl.agents.watch import short, write_film
from drl.core.errors import BadInput, EnvFailed, html_table, plural
from drl.core.safe_files import stay_inside
from drl.core.specs import Array
from drl.envs.env_attributes import lost_in, replayed, set_before, set_on
from drl.envs.faults import reason
from drl.envs.make_vec_env import make_env
from drl.envs.rendered_env import PICTURES, RenderedEnv
from drl.runs.folder.finished import RunLike, folder_of
from drl.runs.folder.run_folder import find_run
from drl.settings.experiment import RunConfig
from drl.tracking.files import RecordedEpisode, read_episode

Env = gym.Env[object, object]


class Again(NamedTuple):
    """One step of an episode that is played again."""

    obs: object  # before the action
    action: Array
    reward: float


@dataclass(frozen=True)
class Replay:
    """An episode that `replay` played or filmed."""

    run: Path
    episode: int  # in the order in which they ended, from 1; 0: the one in which an environment failed
    env_index: int
    seed: int
    length: int  # in steps
    episode_return: float
    steps: tuple[Again, ...] = field(default=(), repr=False)  # with `step_by_step`
    video: Path | None = None

    def __str__(self) -> str:
        if self.video is not None:
            return str(self.video)
        lines = [_line(count, step) for count, step in enumerate(self.steps, start=1)]
        name = f"episode {self.episode}" if self.episode else "the episode of the crash"
        where = f"{name} of environment {self.env_index}, seed {self.seed}"
        return "\n".join([*lines, f"{where}: {self.length} steps, return {self.episode_return:g}"])

    def _repr_html_(self) -> str:
        columns = ("episode", "environment", "seed", "steps", "return", "video")
        row = [self.episode or "crash", self.env_index, self.seed, self.length, self.episode_return, self.video or ""]
        return html_table(columns, [row], str(self.run))


def replay(
    run: RunLike,
    *,
    episode: str | int = "best",
    video: bool = False,
    render: bool = False,
    step_by_step: bool = False,
    trust: bool = False,
    console: bool = False,
) -> Replay:
    """Play an episode of training again, exactly; raises where the environment fails again or does not repeat itself.

    `run` is a run, or an experiment for its newest run. `episode` is best, worst, last, crash, or a number, counted
    from 1 in the order in which they ended. `video` films it into the run's folder `videos/`, `render` shows it in the
    environment's own window, and `step_by_step` keeps observation, action and reward of every step. `trust` imports the
    modules that config.yaml names, which runs their code. `console=True` prints what the command prints.
    """
    if video and (render or step_by_step):
        raise BadInput("--video films the episode; leave out --render and --step-by-step")
    from drl.runs.launch import experiment_of

    folder = find_run(folder_of(run))
    config = experiment_of(folder, trust, given=None).run
    recorded = read_episode(folder, str(episode))
    played = recorded.played
    result = Replay(
        folder, recorded.number, recorded.env_index, played.seed, len(played.actions), recorded.episode_return
    )
    steps = list[Again]()
    if video:
        path = folder / "videos" / f"episode_{recorded.number or 'crash'}.mp4"
        result = replace(result, video=film_again(config, recorded, stay_inside(folder, path)))
    else:
        with open_again(config, "human" if render else None) as env:
            for count, step in enumerate(play_again(env, recorded), start=1):
                if step_by_step:
                    steps.append(step)
                    if console:
                        print(_line(count, step))
    if console:
        print(result)
    return replace(result, steps=tuple(steps))


def _line(count: int, step: Again) -> str:
    return f"{count:4d}  obs {short(step.obs)}  action {short(step.action)}  reward {step.reward:g}"


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
        raise EnvFailed(f"the environment fails again: {reason(error)}") from error
    if not recorded.number:  # the episode of a crash
        length = plural(len(actions), "action is", "actions are")
        warnings.warn(f"the failure does not recur: {length} played to the end; {CAUSES}", stacklevel=2)
    elif not np.isclose(total, recorded.episode_return, rtol=1e-9, equal_nan=True):
        raise EnvFailed(f"the return is {total:g}; recorded was {recorded.episode_return:g}: {UNREPEATABLE}")


CAUSES = "the environment was changed, does not repeat itself, or failed for what happened before this episode"
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

        def steps() -> Iterator[Again]:
            with contextlib.nullcontext() if recorded.number else contextlib.suppress(EnvFailed):
                yield from play_again(env, recorded)

        return write_film(path, env, steps())
