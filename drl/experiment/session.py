"""One run in progress: its logs flow through the stages until it is over, then everything is saved."""

import contextlib
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from drl.core.contracts import Agent, Tracker
from drl.core.errors import DrlError, NonFinite, SaveFailed
from drl.core.log import Log
from drl.core.specs import PlainDict
from drl.core.state_files import StateDict
from drl.experiment import stages
from drl.experiment.building import AnyTrainer
from drl.experiment.config import Experiment, RunConfig
from drl.experiment.evaluation import evaluate
from drl.experiment.open_envs import EnvOptions
from drl.experiment.run_folder import Run
from drl.experiment.stop_signals import StopSignals
from drl.experiment.watch import film
from drl.tracking.guarded import guard
from drl.tracking.plots import plot_run
from drl.trainer.trainer import Trainer


@dataclass(frozen=True)
class Finished:
    """The result of a run."""

    folder: Path
    agent: Agent
    log: Log | None  # the last one
    status: str  # finished · interrupted · terminated · hung up
    evaluation: dict[str, float] | None  # of the final agent


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
        self.watchers = [guard(tracker) for tracker in trackers]
        self.everyone = [*self.watchers, guard(board)] if board is not None else self.watchers
        self.best = stages.BestModel()
        self.earlier = 0.0  # seconds before this process
        self.started = time.monotonic()
        self.log: Log | None = None  # the last one
        trainer.should_stop = signals.stopped
        self.logs: Iterator[Log] | None = None

    def state_dict(self) -> StateDict:
        """Everything that the rest of the run depends on."""
        return {"trainer": self.trainer.state_dict(), "best": self.best.state_dict(), "seconds": self.seconds}

    def load_state_dict(self, state: StateDict) -> None:
        self.trainer.load_state_dict(state["trainer"])
        self.best.load_state_dict(state["best"])
        self.earlier = float(state["seconds"])

    @property
    def seconds(self) -> float:
        """Wall time of the run, earlier processes included."""
        return self.earlier + time.monotonic() - self.started

    def pull(self) -> bool:
        """One learning step; False when the run is over."""
        if self.logs is None:
            self.logs = self._pipeline()
        log = next(self.logs, None)
        self.log = log or self.log
        return log is not None

    def save_checkpoint(self) -> None:
        """What `resume` continues from, and the agent as it is now."""
        _save_agent(self.experiment, self.trainer, self.run)
        for tracker in self.everyone:
            tracker.flush()
        if keep := self.experiment.run.keep_checkpoints:
            self.run.checkpoints.save(self.trainer.env_steps, self.state_dict(), keep)

    def fail(self, error: BaseException) -> None:
        with contextlib.suppress(Exception):
            self.run.note(status="failed", error=f"{type(error).__name__}: {error}")
            if not isinstance(error, NonFinite):  # after an environment failure the agent is still good
                _save_agent(self.experiment, self.trainer, self.run)

    def finish(self, interrupted: bool) -> Finished:
        status = "interrupted" if interrupted else self.signals.status
        evaluation = self._finish(status, consistent=not interrupted)
        return Finished(self.run.folder, self.trainer.agent, self.log, status, evaluation)

    def _pipeline(self) -> Iterator[Log]:
        experiment, trainer, config = self.experiment, self.trainer, self.experiment.run
        agent, logs = trainer.agent, trainer()
        every = _evaluate_every(config)
        if every:
            logs = stages.evaluate_every(logs, every, lambda: _evaluate(experiment, agent, config.evaluation_episodes))
        logs = stages.keep_models(
            logs,
            agent,
            self.run.models,
            config.budget,
            config.num_checkpoints,
            window=config.window,
            best_after=config.best_after,
            in_episodes=bool(config.num_episodes),
            in_sync=lambda: trainer.in_sync,
            best=self.best,
            **_notes(experiment),
        )
        logs = stages.track(logs, self.everyone)
        every = _checkpoint_every(config)
        if every and config.keep_checkpoints:
            minutes = config.checkpoint_minutes
            logs = stages.checkpoint_every(logs, every, lambda log: self.save_checkpoint(), minutes)
        left = None if config.max_minutes is None else config.max_minutes - self.earlier / 60
        return stages.stop_at(
            logs, minutes=left, mean_return=config.stop_at_return, window=config.window, when=self.signals.stopped
        )

    def _finish(self, status: str, consistent: bool) -> dict[str, float] | None:
        """Save the agent first, then evaluate and plot: if these fail, the agent is already saved. If an exception came
        in the middle of a step (not `consistent`), `resume` continues from an earlier checkpoint."""
        trainer, run, config = self.trainer, self.run, self.experiment.run
        try:
            if consistent:
                self.save_checkpoint()
            else:
                _save_agent(self.experiment, trainer, run)
            run.note(status=status, env_steps=trainer.env_steps, episodes=trainer.episodes)
        except OSError as error:
            raise SaveFailed(f"training ended but saving into {run.folder} failed: {error}") from error
        if "compile" in trainer.notes:
            _note_compilation(trainer, run, config.quiet)
        evaluation = None
        if status == "finished":
            evaluation = _evaluate(self.experiment, trainer.agent, config.evaluation_episodes)
            run.note(final_evaluation=evaluation)
        _illustrate(self.experiment, trainer.agent, run, film_it=config.video and status == "finished")
        return evaluation


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
        for session in sessions:
            session.logs = None
    return [session.finish(interrupted) for session in sessions]


def say(text: str) -> None:
    """Print; a closed pipe (`| head`) does not end the run."""
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)


def _evaluate_every(config: RunConfig) -> int:
    return _default(config.evaluate_every, config, 10)


def _checkpoint_every(config: RunConfig) -> int:
    return _default(config.checkpoint_every, config, 5)


def _default(every: int | None, config: RunConfig, parts: int) -> int:
    """A period in environment steps: as given, or an equal part of the budget; 0: never."""
    if every is not None:
        return every
    return 10_000 if config.num_episodes else max(config.budget // parts, 1)


def sync_points(experiment: Experiment) -> tuple[float, ...]:
    """Periods in environment steps; at their multiples log and agent must be in sync."""
    config = experiment.run
    fractions = () if config.num_episodes else (config.budget / max(config.num_checkpoints, 1), config.budget)
    return (_evaluate_every(config), _checkpoint_every(config), *fractions)


def _evaluate(experiment: Experiment, agent: Agent, episodes: int) -> dict[str, float]:
    run = experiment.run
    options: EnvOptions = {"frame_stack": run.frame_stack, "env_kwargs": run.env_arguments}
    if run.vectorization == "envpool":  # EnvPool has environments that Gymnasium does not know
        options["vectorization"] = "envpool"
    return evaluate(agent, run.env, episodes, run.seed, **options).summary()


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
