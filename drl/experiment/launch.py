"""`train`: run an `Experiment` and write its run folder."""

import contextlib
import importlib.util
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from drl.core.contracts import Agent, Tracker
from drl.core.errors import BadInput, DrlError, MissingExtra, NonFinite, SaveFailed
from drl.core.log import Log
from drl.core.specs import PlainDict
from drl.experiment import stages
from drl.experiment.building import AnyTrainer, build_seed_batch, in_one_program, open_trainer
from drl.experiment.config import Experiment, RunConfig
from drl.experiment.evaluation import evaluate
from drl.experiment.open_envs import EnvOptions
from drl.experiment.run_folder import Run
from drl.experiment.watch import film
from drl.tracking.console import ConsoleTracker, QuietConsole
from drl.tracking.files import CsvTracker, JsonlTracker
from drl.tracking.guarded import guard
from drl.tracking.plots import plot_compare, plot_run
from drl.tracking.tensorboard_events import TensorBoardTracker
from drl.tracking.wandb_runs import WandbTracker
from drl.trainer.trainer import Trainer

SignalHandler = Callable[[int, FrameType | None], object] | int | None


@dataclass(frozen=True)
class Finished:
    """The result of a run."""

    folder: Path
    agent: Agent
    log: Log | None  # the last one
    status: str  # finished · interrupted · terminated
    evaluation: dict[str, float] | None  # of the final agent


class StopSignals:
    """Handles SIGINT and SIGTERM inside its `with` block: the first signal stops the run after the current learning
    step, a second one interrupts at once. It does nothing outside the main thread."""

    def __init__(self) -> None:
        self.seen: int | None = None
        self._previous: dict[int, SignalHandler] = {}

    def __enter__(self) -> "StopSignals":
        with contextlib.suppress(ValueError):
            self._previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.seen is not None:
            raise KeyboardInterrupt
        self.seen = number

    @property
    def status(self) -> str:
        if self.seen is None:
            return "finished"
        return "interrupted" if self.seen == signal.SIGINT else "terminated"


def train(
    experiment: Experiment, trackers: Callable[[Run], list[Tracker]] | None = None, console: bool = True
) -> Finished:
    """Train and track everything in a new run folder. Bad input raises before anything is written.

    `trackers` makes additional trackers; `console=False` prints nothing.
    """
    run_config = experiment.run
    if run_config.wandb_project is not None and importlib.util.find_spec("wandb") is None:
        raise MissingExtra("tracking with Weights & Biases", "wandb", "wandb")
    with StopSignals() as signals, open_trainer(experiment, _sync_points(experiment)) as trainer:
        run = _begin_run(experiment, trainer)
        own = _trackers(experiment, run, console) + (trackers(run) if trackers else [])
        with contextlib.ExitStack() as stack:
            board = None
            if run_config.wandb_project is not None:
                settings = experiment.to_flat()
                board = WandbTracker(run_config.wandb_project, settings, run.folder, name=run.folder.name)
                stack.enter_context(contextlib.closing(board))
            session = Session(experiment, trainer, run, own, board, signals)
            finished = drive([session])[0]
            if board is not None:
                board.finish()
        return finished


def train_seeds(experiment: Experiment, console: bool = True) -> list[Finished]:
    """Train `num_seeds` seeds in one compiled program: a run folder for each, and a picture of all of them."""
    config = experiment.run
    if config.wandb_project is not None:
        raise BadInput(f"wandb_project takes one run at a time; leave it out with num_seeds {config.num_seeds}")
    in_one_program(experiment)
    with StopSignals() as signals:
        sessions = []
        for number, trainer in enumerate(build_seed_batch(experiment, _sync_points(experiment)).trainers):
            one = replace(experiment, run=replace(config, seed=config.seed + number, num_seeds=1))
            run = _begin_run(one, trainer)
            trackers = _trackers(one, run, console and number == 0)  # only the first seed has a panel
            sessions.append(Session(one, trainer, run, trackers, None, signals))
        finished = drive(sessions)
    folders = [each.folder for each in finished]
    if config.plots and len(folders) > 1:
        with contextlib.suppress(DrlError, OSError, ValueError):
            plot_compare(folders, folders[0].parent / f"{folders[0].name}_seeds.png")
    return finished


def _begin_run(experiment: Experiment, trainer: AnyTrainer) -> Run:
    config = experiment.run
    name = config.name or f"{config.env.replace('/', '_').replace(':', '_')}_{experiment.algorithm}"
    settings, choice = experiment.to_flat(), trainer.notes.get("compile")
    if isinstance(choice, dict):  # written down, so that a run that continues or repeats this one does the same
        settings["compile"] = choice["choice"]
    run = Run.create(name, settings, config.results_dir, config.seed)
    run.note(engine=config.engine, vectorization=trainer.vectorization, **trainer.notes)
    if not config.quiet:
        envs = f"{config.num_envs} environments ({trainer.vectorization})"
        say(f"{experiment.algorithm} on {config.env}, {envs}, {config.engine}: {run.folder}")
        if isinstance(choice, dict):
            say(f"compile: {choice['choice']} ({choice['reason']})")
    return run


def say(text: str) -> None:
    """Print; a closed pipe (`| head`) does not end the run."""
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)


class Session:
    """One run: its logs pass through the stages until the budget is used or a signal arrives."""

    def __init__(
        self,
        experiment: Experiment,
        trainer: AnyTrainer,
        run: Run,
        trackers: list[Tracker],
        board: Tracker | None,  # W&B; closed only after plots and videos are made
        signals: StopSignals,
    ):
        self.experiment, self.trainer, self.run, self.signals = experiment, trainer, run, signals
        self.watchers: list[Tracker] = [guard(tracker) for tracker in trackers]
        everyone = [*self.watchers, guard(board)] if board is not None else self.watchers
        self.logs = _pipeline(experiment, trainer, run, everyone, signals)
        self.log: Log | None = None  # the last one

    def pull(self) -> bool:
        """One learning step; False when the run is over."""
        log = next(self.logs, None)
        self.log = log or self.log
        return log is not None

    def fail(self, error: BaseException) -> None:
        with contextlib.suppress(Exception):
            self.run.note(status="failed", error=f"{type(error).__name__}: {error}")
            if not isinstance(error, NonFinite):  # after an environment failure the agent is still good
                _save_agent(self.experiment, self.trainer, self.run)

    def finish(self, interrupted: bool) -> Finished:
        status = "interrupted" if interrupted else self.signals.status
        evaluation = _finish(self.experiment, self.trainer, self.run, status)
        return Finished(self.run.folder, self.trainer.agent, self.log, status, evaluation)


def drive(sessions: list[Session]) -> list[Finished]:
    """Pull all sessions in step, then save each."""
    interrupted, running = False, list(sessions)
    try:
        while running:
            running = [session for session in running if session.pull()]
    except KeyboardInterrupt:
        interrupted = True
    except BaseException as error:
        for session in sessions:
            session.fail(error)
        raise
    finally:
        for session in sessions:
            for tracker in session.watchers:
                tracker.close()
    return [session.finish(interrupted) for session in sessions]


def _pipeline(
    experiment: Experiment, trainer: AnyTrainer, run: Run, trackers: list[Tracker], signals: StopSignals
) -> Iterator[Log]:
    config, agent = experiment.run, trainer.agent
    logs: Iterator[Log] = trainer()
    every = _evaluate_every(config)
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
        in_sync=lambda: trainer.in_sync,
        **_notes(experiment),
    )
    every, keep = _checkpoint_every(config), config.keep_checkpoints
    if every and keep:
        logs = stages.checkpoint_every(
            logs, every, lambda log: run.save_checkpoint(log.env_steps, trainer.state_dict(), keep)
        )
    logs = stages.track(logs, trackers)
    return stages.stop_at(
        logs,
        minutes=config.max_minutes,
        mean_return=config.stop_at_return,
        window=config.window,
        when=lambda: signals.seen is not None,
    )


def _evaluate_every(config: RunConfig) -> int:
    return _default(config.evaluate_every, config, 10)


def _checkpoint_every(config: RunConfig) -> int:
    return _default(config.checkpoint_every, config, 5)


def _default(every: int | None, config: RunConfig, parts: int) -> int:
    """A period in environment steps: as given, or an equal part of the budget; 0: never."""
    if every is not None:
        return every
    return 10_000 if config.num_episodes else max(config.budget // parts, 1)


def _sync_points(experiment: Experiment) -> tuple[float, ...]:
    """Periods in environment steps; at their multiples log and agent must be in sync."""
    config = experiment.run
    fractions = () if config.num_episodes else (config.budget / max(config.num_checkpoints, 1), config.budget)
    return (_evaluate_every(config), _checkpoint_every(config), *fractions)


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


def _evaluate(experiment: Experiment, agent: Agent, episodes: int) -> dict[str, float]:
    run = experiment.run
    options: EnvOptions = {"frame_stack": run.frame_stack, "env_kwargs": run.env_arguments}
    if run.vectorization == "envpool":  # EnvPool has environments that Gymnasium does not know
        options["vectorization"] = "envpool"
    return evaluate(agent, run.env, episodes, run.seed, **options).summary()


def _finish(experiment: Experiment, trainer: AnyTrainer, run: Run, status: str) -> dict[str, float] | None:
    """Save the agent first, then evaluate and plot: if these fail, the agent is already saved."""
    config, agent = experiment.run, trainer.agent
    try:
        _save_agent(experiment, trainer, run)
        if config.keep_checkpoints and trainer.learning_steps:
            run.save_checkpoint(trainer.env_steps, trainer.state_dict(), config.keep_checkpoints)
        run.note(status=status, env_steps=trainer.env_steps, episodes=trainer.episodes)
    except OSError as error:
        raise SaveFailed(f"training ended but saving into {run.folder} failed: {error}") from error
    if "compile" in trainer.notes:
        _note_compilation(trainer, run, config.quiet)
    evaluation = None
    if status == "finished":
        evaluation = _evaluate(experiment, agent, config.evaluation_episodes)
        run.note(final_evaluation=evaluation)
    _illustrate(experiment, agent, run, film_it=config.video and status == "finished")
    return evaluation


def _note_compilation(trainer: AnyTrainer, run: Run, quiet: bool) -> None:
    """What compiling the update took, or why it could not be compiled."""
    from drl.engines.torch.flat_optimizer import FlatOptimizer

    assert isinstance(trainer, Trainer)  # of the torch engine
    parts = vars(trainer.algorithm).values()
    optimizers = [part for part in parts if isinstance(part, FlatOptimizer) and part.compiled]
    if not optimizers:
        return
    seconds = sum(optimizer.compile_seconds for optimizer in optimizers)
    error = next((optimizer.compile_error for optimizer in optimizers if optimizer.compile_error), None)
    run.note(compile_seconds=round(seconds, 1), compile_error=error)
    if not quiet and error is None:
        say(f"compiling the update took {seconds:.1f} s")


def _notes(experiment: Experiment) -> PlainDict:
    """What an agent's card holds about its environment, so that it can be evaluated elsewhere."""
    run = experiment.run
    envs = {"env": run.env, "env_kwargs": run.env_arguments, "frame_stack": run.frame_stack}
    return envs | {"algorithm": experiment.algorithm}


def _save_agent(experiment: Experiment, trainer: AnyTrainer, run: Run) -> None:
    agent = trainer.agent
    agent.save(run.folder / "agent", env_steps=trainer.env_steps, **_notes(experiment))
    agent.save_policy_net(run.models / "final_actor.pth")
    if agent.has_value:
        agent.save_value_net(run.models / "final_critic.pth")  # type: ignore[attr-defined]


def _illustrate(experiment: Experiment, agent: Agent, run: Run, film_it: bool) -> None:
    config = experiment.run
    try:
        if config.plots:
            plot_run(run.folder)
        if film_it:
            path, frames, env_kwargs = (
                run.folder / "videos" / "final_agent.mp4",
                config.frame_stack,
                config.env_arguments,
            )
            film(agent, config.env, path, config.seed, frame_stack=frames, env_kwargs=env_kwargs)
    except (DrlError, OSError, RuntimeError, ValueError, ImportError) as error:
        warnings.warn(f"plots or video were not made: {error}", stacklevel=2)
