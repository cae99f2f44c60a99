"""`train`: from an `Experiment` to a finished run folder."""

import contextlib
import importlib.util
import os
import signal
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drl.core.contracts import Tracker, World
from drl.core.errors import BadInput, DrlError, MissingExtra, NonFinite, SaveFailed
from drl.core.log import Log
from drl.core.normalise import RewardScaler
from drl.core.schedules import Exponential, Linear, Schedule
from drl.core.seeding import Seeds
from drl.envs.make import make_world
from drl.experiment import stages
from drl.experiment.config import Experiment
from drl.experiment.evaluation import evaluate
from drl.experiment.run_folder import Run
from drl.experiment.watch import film
from drl.memory.episodes import Episodes
from drl.memory.replay import Replay
from drl.memory.rollout import Rollout
from drl.tracking.console import ConsoleTracker, QuietConsole
from drl.tracking.files import CsvTracker, JsonlTracker
from drl.tracking.guarded import guard
from drl.tracking.plots import plot_run
from drl.tracking.tensorboard_events import TensorBoardTracker
from drl.tracking.wandb_runs import WandbTracker
from drl.trainer.trainer import Trainer, TrainerConfig


@dataclass(frozen=True)
class Finished:
    """What a run left behind."""

    folder: Path
    agent: Any
    log: Log | None  # the last one
    status: str  # finished · interrupted · terminated
    evaluation: dict[str, float] | None  # of the final agent


class StopSignals:
    """SIGINT and SIGTERM while it is entered: the first is noted and heeded between two learning steps, so that
    nothing is caught half-way; a second one interrupts at once. Outside the main thread signals are not ours."""

    def __init__(self) -> None:
        self.seen: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        with contextlib.suppress(ValueError):
            self._previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        if self.seen is not None:
            raise KeyboardInterrupt
        self.seen = number

    @property
    def status(self) -> str:
        if self.seen is None:
            return "finished"
        return "interrupted" if self.seen == signal.SIGINT else "terminated"


def build_trainer(experiment: Experiment, world: World) -> Trainer:
    """The four roles and their memory, from names and configs."""
    from drl.engines.torch.build import build_learner

    run, config = experiment.run, experiment.learner
    agent, learner = build_learner(
        experiment.algorithm,
        (world.obs_spec, world.action_spec),
        (experiment.model, config),
        Seeds(run.seed),
        normalise_obs=run.normalise_obs,
        device=run.device,
        compile_update=run.compile,
    )
    shapes = (world.num_envs, world.obs_spec, world.action_spec)
    columns, extra = world.num_envs, {}
    if experiment.algorithm == "dqn":
        if run.normalise_reward:
            raise BadInput("normalise_reward is for on-policy algorithms; dqn replays rewards as they were")
        memory: Any = Replay(config, *shapes, rng=Seeds(run.seed).generator("replay"), frame_stack=run.frame_stack)
        extra = {"updates_per_log": config.updates_per_log, "exploration": exploration(experiment)}
    elif experiment.algorithm == "reinforce":
        memory = Episodes(config.episodes_per_step, *shapes)
        columns = 1  # whole episodes come one after another
    else:
        rows = config.rollout_length * columns
        if getattr(config, "minibatches", 1) > rows:
            raise BadInput(f"minibatches is {config.minibatches}, but a rollout has only {rows} rows")
        memory = Rollout(config.rollout_length, *shapes)
    scaler = RewardScaler(columns, config.gamma) if run.normalise_reward else None
    total = None if run.num_episodes else run.budget
    trainer_config = TrainerConfig(total_timesteps=total, num_episodes=run.num_episodes, window=run.window, **extra)
    return Trainer(world, agent, learner, memory, trainer_config, scaler)


def exploration(experiment: Experiment) -> Schedule | None:
    """The share of random actions over environment steps; noisy networks need none."""
    config = experiment.learner
    if experiment.model.noisy:
        return None
    shape = Exponential if config.epsilon_schedule == "exponential" else Linear
    return shape(config.epsilon_start, config.epsilon_end, config.epsilon_decay)


def train(experiment: Experiment, trackers: list[Tracker] | None = None, console: bool = True) -> Finished:
    """Train, tracking everything into a new run folder. Bad input raises before anything is written.

    `trackers` come on top of the usual ones; `console=False` prints nothing at all.
    """
    run_config = experiment.run
    if run_config.wandb_project is not None and importlib.util.find_spec("wandb") is None:
        raise MissingExtra("tracking with Weights & Biases", "wandb")
    with (
        StopSignals() as signals,
        make_world(
            run_config.env,
            run_config.num_envs,
            run_config.seed,
            engine=run_config.world_engine,
            frame_stack=run_config.frame_stack,
            env_kwargs=run_config.world_kwargs,
        ) as world,
    ):
        _set_threads(run_config.threads, world)
        trainer = build_trainer(experiment, world)
        name = run_config.name or f"{run_config.env.replace('/', '_').replace(':', '_')}_{experiment.algorithm}"
        run = Run.create(name, experiment.to_flat(), run_config.results_dir, run_config.seed)
        run.note(world_engine=world.engine)
        if not run_config.quiet:
            say(f"{experiment.algorithm} on {run_config.env}, {world.num_envs} worlds ({world.engine}): {run.folder}")
        own = _trackers(experiment, run, console)
        with contextlib.ExitStack() as stack:
            board = None
            if run_config.wandb_project is not None:
                settings = experiment.to_flat()
                board = WandbTracker(run_config.wandb_project, settings, run.folder, name=run.folder.name)
                stack.enter_context(contextlib.closing(board))
            finished = _drive(experiment, trainer, run, [*own, *(trackers or [])], board, signals)
            if board is not None:
                board.finish()
        return finished


def say(text: str) -> None:
    """Print; a reader that went away (`| head`) must not end a training run."""
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)


def _drive(
    experiment: Experiment,
    trainer: Trainer,
    run: Run,
    trackers: list[Tracker],
    board: Tracker | None,  # W&B: written to like the others, but closed when videos and plots are there too
    signals: StopSignals,
) -> Finished:
    """Pull the logs through the stages until the budget is used or a signal came, then save."""
    log, interrupted = None, False
    watchers: list[Tracker] = [guard(tracker) for tracker in trackers]
    try:
        everyone = [*watchers, guard(board)] if board is not None else watchers
        for log in _pipeline(experiment, trainer, run, everyone, signals):  # noqa: B007 (the last log is used below)
            pass
    except KeyboardInterrupt:
        interrupted = True
    except BaseException as error:
        with contextlib.suppress(Exception):
            run.note(status="failed", error=f"{type(error).__name__}: {error}")
            if not isinstance(error, NonFinite):  # a broken world does not spoil what the agent has learned
                _save_agent(experiment, trainer, run)
        raise
    finally:
        for tracker in watchers:
            tracker.close()
    status = "interrupted" if interrupted else signals.status
    evaluation = _finish(experiment, trainer, run, status)
    return Finished(run.folder, trainer.agent, log, status, evaluation)


def _pipeline(
    experiment: Experiment, trainer: Trainer, run: Run, trackers: list[Tracker], signals: StopSignals
) -> Iterator[Log]:
    config, agent = experiment.run, trainer.agent
    steps_budget = None if config.num_episodes else config.budget
    logs: Iterator[Log] = trainer()
    every = _default(config.evaluate_every, steps_budget, 10)
    if every:
        logs = stages.evaluate_every(logs, every, lambda: _evaluate(experiment, agent, config.evaluation_episodes))
    logs = stages.keep_models(
        logs,
        agent,
        run.models,
        config.budget,
        config.num_checkpoints,
        window=config.window,
        best_after=config.best_after,
        in_episodes=bool(config.num_episodes),
        **_notes(experiment),
    )
    every = _default(config.checkpoint_every, steps_budget, 5)
    keep = config.keep_checkpoints
    if every and keep:
        logs = stages.checkpoint_every(
            logs, every, lambda log: run.save_checkpoint(log.env_steps, trainer.state_dict(), keep)
        )
    logs = stages.track(logs, trackers)
    return stages.stop_at(
        logs,
        env_steps=steps_budget,
        episodes=config.num_episodes,
        minutes=config.max_minutes,
        mean_return=config.stop_at_return,
        window=config.window,
        when=lambda: signals.seen is not None,
    )


def _default(every: int | None, budget: int | None, parts: int) -> int:
    """A frequency in environment steps: as given, or an equal part of the budget; 0 is never."""
    if every is not None:
        return every
    return max(budget // parts, 1) if budget else 10_000


def _trackers(experiment: Experiment, run: Run, console: bool) -> list[Tracker]:
    config = experiment.run
    trackers: list[Tracker] = [JsonlTracker(run.folder / "metrics.jsonl"), CsvTracker(run.folder / "progress.csv")]
    if config.tensorboard:
        trackers.append(TensorBoardTracker(run.folder / "tensorboard"))
    if console and config.quiet:
        trackers.append(QuietConsole())
    elif console:
        steps = None if config.num_episodes else config.budget
        trackers.append(ConsoleTracker(total_timesteps=steps, total_episodes=config.num_episodes, window=config.window))
    return trackers


def _evaluate(experiment: Experiment, agent: Any, episodes: int) -> dict[str, float]:
    run = experiment.run
    options: dict[str, Any] = {"frame_stack": run.frame_stack, "env_kwargs": run.world_kwargs}
    if run.world_engine == "envpool":  # EnvPool has worlds that Gymnasium does not know
        options["engine"] = "envpool"
    return evaluate(agent, run.env, episodes, run.seed, **options).summary()


def _finish(experiment: Experiment, trainer: Trainer, run: Run, status: str) -> dict[str, float] | None:
    """Save the agent first, then what is nice to have: a failing plot must not cost a trained agent."""
    config, agent = experiment.run, trainer.agent
    try:
        _save_agent(experiment, trainer, run)
        if config.keep_checkpoints and trainer.learning_steps:
            run.save_checkpoint(trainer.env_steps, trainer.state_dict(), config.keep_checkpoints)
        run.note(status=status, env_steps=trainer.env_steps, episodes=trainer.episodes)
    except OSError as error:
        raise SaveFailed(f"training ended but saving into {run.folder} failed: {error}") from error
    if config.compile:
        seconds = round(trainer.algorithm.optimizer.compile_seconds, 1)  # type: ignore[attr-defined]
        run.note(compile_seconds=seconds)
        if not config.quiet:
            say(f"compiling the update took {seconds} s")
    evaluation = None
    if status == "finished":
        evaluation = _evaluate(experiment, agent, config.evaluation_episodes)
        run.note(final_evaluation=evaluation)
    _illustrate(experiment, agent, run, film_it=config.video and status == "finished")
    return evaluation


def _notes(experiment: Experiment) -> dict[str, Any]:
    """What an agent's card says of the world it comes from, so that it can be evaluated anywhere."""
    run = experiment.run
    world = {"env": run.env, "env_kwargs": run.world_kwargs, "frame_stack": run.frame_stack}
    return world | {"algorithm": experiment.algorithm}


def _save_agent(experiment: Experiment, trainer: Trainer, run: Run) -> None:
    agent = trainer.agent
    agent.save(run.folder / "agent", env_steps=trainer.env_steps, **_notes(experiment))
    agent.save_policy_net(run.models / "final_actor.pth")
    if agent.has_value:
        agent.save_value_net(run.models / "final_critic.pth")  # type: ignore[attr-defined]


def _illustrate(experiment: Experiment, agent: Any, run: Run, film_it: bool) -> None:
    config = experiment.run
    try:
        if config.plots:
            plot_run(run.folder)
        if film_it:
            options: dict[str, Any] = {"frame_stack": config.frame_stack, "env_kwargs": config.world_kwargs}
            film(agent, config.env, run.folder / "videos" / "final_agent.mp4", config.seed, **options)
    except (DrlError, OSError, RuntimeError, ValueError, ImportError) as error:
        warnings.warn(f"plots or video were not made: {error}", stacklevel=2)


def _set_threads(threads: int | None, world: World) -> None:
    """Tiny networks lose time to a second thread; networks for images gain from it."""
    import torch

    images = len(world.obs_spec.shape) == 3
    torch.set_num_threads(threads or (os.cpu_count() or 1 if images else 1))
