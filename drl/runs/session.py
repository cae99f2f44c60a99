"""One run in progress: every log passes through its parts until it is over, then everything is saved."""

import contextlib
import functools
import itertools
import math
import shlex
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from drl.agents.agent_env import env_notes
from drl.agents.evaluation import TIME_LIMIT, Evaluation, NotEvaluated, evaluate
from drl.agents.watch import film
from drl.core.agent_files import check_finite
from drl.core.contracts import Agent, EnvChange, Tracker, repeat_changes
from drl.core.errors import BadInput, EnvFailed, Interrupted, NonFinite, UnusableFile, advise, one_line
from drl.core.golden_pairs import GoldenInputs
from drl.core.log import Log
from drl.core.specs import PlainDict
from drl.core.state_files import StateDict
from drl.envs.env_config import EnvConfig, without_vector
from drl.envs.faults import reason
from drl.runs.building import AnyTrainer
from drl.runs.extras import NOTHING, Context, Extras, with_context
from drl.runs.folder.finished import Finished
from drl.runs.folder.run_folder import Run
from drl.runs.folder.run_writer import KeptTracker, RunWriter
from drl.runs.stages import BestModel, EvaluationSteps, ModelKeeper, has_passed, has_return
from drl.runs.stop_signals import StopSignals
from drl.settings.experiment import Experiment, RunConfig
from drl.tracking.console import StartupProgress
from drl.tracking.files import FileTracker, write_crash
from drl.tracking.guarded import Board, Ending, Guarded, guard
from drl.tracking.jobs import JobBar
from drl.tracking.plots import plot_run
from drl.trainer.trainer import Trainer

# Raised by a state that does not belong to a trainer.
DOES_NOT_FIT = (ValueError, KeyError, RuntimeError, TypeError, IndexError, AttributeError, OverflowError)


class Origin(NamedTuple):
    """The starting point of a fork."""

    folder: Path  # the other run
    state: StateDict
    changes: PlainDict


class Session:
    """One run: its logs pass through the stages until the budget is used or a signal arrives."""

    def __init__(
        self,
        experiment: Experiment,
        trainer: AnyTrainer,
        run: Run,
        trackers: list[Tracker],
        boards: list[Board],  # they get plots and videos as well
        signals: StopSignals,
        extras: Extras = NOTHING,
    ):
        extras.state_dict()  # raises at once, not at the first checkpoint
        config = experiment.run
        self.experiment: Experiment = experiment
        self.trainer: AnyTrainer = trainer
        self.run: Run = run
        self.signals: StopSignals = signals
        self.extras: Extras = extras
        self.context: Context = Context(trainer, run, self.evaluate)
        self.save: RunWriter = RunWriter(run, trackers, config.fallback_dir, signals.held)
        kept = [KeptTracker(each, self.save) if isinstance(each, FileTracker) else each for each in trackers]
        self.watchers: list[Guarded] = [guard(tracker) for tracker in kept]
        self.boards: list[Guarded] = [guard(board) for board in boards]
        self.evaluation_steps: EvaluationSteps = EvaluationSteps(config.evaluation_episodes)
        self.best: BestModel = BestModel()
        self.keeper: ModelKeeper = ModelKeeper(
            trainer.agent,
            lambda: run.models,
            config.budget,
            config.num_checkpoints,
            config.window,
            config.best_after,
            in_episodes=bool(config.num_episodes),
            in_sync=lambda: trainer.in_sync,
            best=self.best,
            attempt=self.save,
        )
        self.earlier: float = 0.0  # seconds before this process
        self.started: float = time.monotonic()
        self.last_checkpoint: float = self.started
        self.log: Log | None = None  # the last one
        self.pending: Log | None = None  # one that has not passed all stages
        self.staged: bool = False  # whether it has passed those of the user
        self.logs: Iterator[Log] | None = None
        self.waiting: StartupProgress | None = None  # for the first log, if a console shows it
        # To evaluate and film in; None: there is none.
        self.env: EnvConfig | None = without_vector(config.env_config)
        about = {"algorithm": experiment.algorithm, "seed": config.seed}
        about |= {"license": config.license} if config.license else {}
        trainer.should_stop = signals.stopped
        trainer.agent.notes = env_notes(self.env or config.env_config) | about

    def state_dict(self) -> StateDict:
        """Everything that the rest of the run depends on."""
        pending = None if self.pending is None else self.pending.state_dict()
        inputs = getattr(self.trainer.agent, "golden_inputs", None)  # an agent of the user may have none
        return {
            "trainer": self.trainer.state_dict(),
            "best": self.best.state_dict(),
            "seconds": self.seconds,
            "golden_inputs": None if inputs is None else list(inputs),
            "stages": self.extras.state_dict(),
            "staged": self.staged,
            "pending": pending,
            "evaluation_steps": self.evaluation_steps.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        self.extras.load_state_dict(state["stages"])
        self.trainer.load_state_dict(state["trainer"])
        self.best.load_state_dict(state["best"])
        self.evaluation_steps.load_state_dict(state["evaluation_steps"])
        if (inputs := state["golden_inputs"]) is not None:
            self.trainer.agent.golden_inputs = GoldenInputs(*inputs)
        self.earlier = float(state["seconds"])
        self.pending = None if state["pending"] is None else Log.from_state(state["pending"])
        self.staged = bool(state["staged"])
        if self.pending is not None and not self.staged:
            self.pending.custom = {}  # the stages add them again

    def resume(self) -> None:
        """Continue from the newest checkpoint, if there is one."""
        state, run, trainer = self.run.checkpoints.load_newest(), self.run, self.trainer
        if state is not None:
            self.extras.check_state(state["stages"])
            try:
                check_finite(state["trainer"]["agent"]["model"], f"the checkpoint of {run.folder}")
                self.load_state_dict(state)
            except DOES_NOT_FIT as error:
                wrong = f"does not fit its config.yaml: {one_line(error, 160)}"
                raise UnusableFile(f"the checkpoint of {run.folder} {wrong}") from error
        run.note_resumed(trainer.env_steps, trainer.inexact)
        if not self.experiment.run.quiet:
            say(f"{run.folder} continues at step {trainer.env_steps:,}")
        if trainer.inexact is not None:
            say(f"resumed: inexact: {trainer.inexact}")

    def begin_fork(self, origin: Origin) -> None:
        """Take over the stages of another run, whose trainer was loaded before."""
        self.best.load_state_dict(origin.state["best"])
        self.evaluation_steps.load_state_dict(origin.state["evaluation_steps"])
        if self.extras.stages:
            self.extras.check_state(origin.state["stages"])
            self.extras.load_state_dict(origin.state["stages"])
        where = {"run": origin.folder.name, "env_steps": self.trainer.env_steps, "changes": origin.changes}
        self.run.note(forked_from=where | {"inexact": self.trainer.inexact})
        self.save_checkpoint()  # a fork that is killed at once is resumed from here, not from the start

    @property
    def seconds(self) -> float:
        """Wall time of the run, earlier processes included."""
        return self.earlier + time.monotonic() - self.started

    def pull(self) -> bool:
        """One learning step and all that follows from its log; False when the run is over."""
        trainer, inexact = self.trainer, self.trainer.inexact
        if self.logs is None:
            staged = [self.pending] if self.pending is not None and self.staged else []  # by an earlier process
            logs = self._evaluated_logs()
            for stage in self.extras.stages:
                logs = with_context(stage, logs, self.context)
            self.logs = itertools.chain(staged, logs)
        log = None if self.log is not None and self._is_over(self.log) else next(self.logs, None)
        if log is not None:
            self.end_waiting()
            self.log, self.staged = log, True
            self.keeper.keep(log)
            for tracker in (*self.watchers, *self.boards):
                tracker.write(log)
            # After the row of the same log, so that none is lost.
            if self._is_checkpoint_due(log):
                self.save_checkpoint()
                self.last_checkpoint = time.monotonic()
        self.pending = None
        if trainer.inexact != inexact:  # a collector could not continue its episodes
            self.save(lambda: self.run.note(inexact=trainer.inexact))
        algorithm = trainer.algorithm if isinstance(trainer, Trainer) else None
        if (failure := getattr(algorithm, "failure", None)) is not None:
            self.save_checkpoint()  # the step was finished without the learner that failed
            raise failure
        if log is None:
            trainer.leave()
        return log is not None

    def _is_over(self, log: Log) -> bool:
        config = self.experiment.run
        late = config.max_minutes is not None and self.seconds >= 60 * config.max_minutes
        stopped = self.context.stopped or self.signals.stopped()
        return late or stopped or has_return(log, config.stop_at_return, config.window)

    def _is_checkpoint_due(self, log: Log) -> bool:
        config, every = self.experiment.run, checkpoint_period(self.experiment.run)
        minutes = math.inf if config.checkpoint_minutes is None else config.checkpoint_minutes
        late = time.monotonic() - self.last_checkpoint >= 60 * minutes
        return every > 0 and config.keep_checkpoints > 0 and (late or has_passed(log, every))

    def _evaluated_logs(self) -> Iterator[Log]:
        """The logs of the trainer with evaluations, after one that an earlier process did not pass on."""
        config, every = self.experiment.run, evaluation_period(self.experiment.run)
        waiting = [] if self.pending is None or self.staged else [self.pending]
        for log in itertools.chain(waiting, self.trainer()):
            self.end_waiting()
            self.pending, self.staged = log, False
            due = every and self.env is not None and has_passed(log, every) and not log.evaluation
            if due and (config.evaluate_every is not None or self.evaluation_steps.allow(log)):
                try:
                    evaluation: Evaluation | NotEvaluated = self.evaluate()
                except NotEvaluated as error:
                    evaluation = error
                    warning = f"{error}; {TIME_LIMIT}, and --evaluate-every 0 leaves evaluations out"
                    warnings.warn(warning, stacklevel=2)
                self.trainer.agent.golden_inputs = evaluation.inputs
                self.evaluation_steps.add(evaluation.env_steps)
                log.evaluation = evaluation.summary() if isinstance(evaluation, Evaluation) else {}
            yield log

    def save_checkpoint(self) -> None:
        """Save the current agent and a checkpoint, from which `resume` continues."""
        self.save(self._save_agent)
        for tracker in (*self.watchers, *self.boards):
            tracker.flush()
        if keep := self.experiment.run.keep_checkpoints:
            self.save(lambda: self.run.checkpoints.save(self.trainer.env_steps, self.state_dict(), keep))
        with self.signals.held():
            self.extras.saved(self.run.folder)

    def fail(self, error: BaseException) -> None:
        """Record why a run failed, with the episode in which an environment failed; the error names both files."""
        with contextlib.suppress(Exception), self.signals.held():
            self.run.note(status="failed", error=f"{type(error).__name__}: {error}")
            if not isinstance(error, NonFinite):  # after an environment failure the agent is still good
                self._save_agent()
            report, replay, episode = "".join(traceback.format_exception(error)), "", None
            if isinstance(error, EnvFailed) and isinstance(self.trainer, Trainer) and error.env_index is not None:
                episode = self.trainer.collector.crashed_episode(error.env_index)
            if episode is not None:
                write_crash(self.run.folder, episode)
                replay = f"\nthe episode again: drl replay {shlex.quote(str(self.run.folder))} --episode crash"
            (self.run.folder / "error.txt").write_text(f"{report}{replay}\n")
            advise(error, f"the traceback: {self.run.folder / 'error.txt'}{replay}")  # of several seeds the first

    def finish(self, interrupted: bool) -> Finished:
        """Save the agent first, then evaluate and plot: if these fail, the agent is already saved."""
        trainer, run, config = self.trainer, self.run, self.experiment.run
        evaluation, stopped = None, self.signals.stopped()
        status = "interrupted" if interrupted and not stopped else self.signals.status
        if self.pending is not None or trainer.whole:
            self.save_checkpoint()
        else:  # in the middle of an update: `resume` continues from an earlier checkpoint
            self.save(self._save_agent)
        if "compile" in trainer.notes:
            self.save(lambda: _note_compilation(trainer, run, config.quiet))
        if status == "finished":
            try:
                if self.env is not None:
                    evaluation = self._evaluate_at_the_end()
                self._note_status(status)
                with self.signals.at_once():
                    self._illustrate()
            except Interrupted:  # in the evaluation, or in plots and videos
                status = self.signals.status
        if evaluation is None:
            self._note_status(status)
        with self.signals.held():
            self.save.finish()
        for board in self.boards:
            board.finish(Ending(run.folder, status, evaluation))
        return Finished(run.folder, trainer.agent, self.log, status, evaluation)

    def _illustrate(self) -> None:
        """Plots and a video. Whatever they raise becomes a warning: the run is saved already."""
        run, config, trainer = self.run, self.experiment.run, self.trainer
        if config.plots:
            with _warned("plots"):
                plot_run(run.folder)
        if config.video and self.env is not None:
            path, patience = run.folder / "videos" / "final_agent.mp4", config.worker_timeout
            with _warned("video"):
                film(trainer.agent, self.env, path, config.seed, timeout=patience, changes=trainer.changes)

    def close(self) -> None:
        """End what is still open after an error."""
        for board in self.boards:
            board.close()

    def _note_status(self, status: str) -> None:
        counts = {"env_steps": self.trainer.env_steps, "episodes": self.trainer.episodes}
        self.save(lambda: self.run.note(status=status, **counts))

    def evaluate(
        self,
        episodes: int | None = None,
        seed: int | None = None,
        explore: bool = False,
        attributes: Mapping[str, object] = MappingProxyType({}),
    ) -> Evaluation:
        """Play in the run's environment with all changes of the training. After a signal, `resume` begins again."""
        if self.env is None:
            raise BadInput("this run has a vector environment of its own and none to evaluate in; use drl.evaluate")
        changes = [*self.trainer.changes, *(EnvChange(name, value) for name, value in attributes.items())]
        with self.signals.at_once():
            config, agent = self.experiment.run, self.trainer.agent
            return evaluate_in_run(config, agent, episodes, seed, env=self.env, explore=explore, changes=changes)

    def _evaluate_at_the_end(self) -> dict[str, float] | None:
        """The final evaluation, on the agent's card too; None, with a note, if its episodes do not end."""
        run, agent = self.run, self.trainer.agent
        try:
            evaluation = self.evaluate()
        except NotEvaluated as error:
            agent.golden_inputs = error.inputs
            again = f"`drl evaluate {run.folder} --max-steps {10 * error.env_steps}` plays longer"
            warning = f"{error}; {again}, and {TIME_LIMIT}"
            warnings.warn(warning, stacklevel=2)
            self.save(lambda: run.note(not_evaluated=warning))
            self.save(self._save_agent)
            return None
        agent.golden_inputs, summary = evaluation.inputs, evaluation.summary()
        self.save(lambda: run.note(final_evaluation=summary))
        self.save(lambda: self._save_agent(evaluation=summary))
        self.keeper.keep_evaluated(summary, self.trainer.env_steps)
        return summary

    def _save_agent(self, **notes: object) -> None:
        agent, models = self.trainer.agent, self.run.models
        agent.save(self.run.folder / "agent", env_steps=self.trainer.env_steps, **notes)
        agent.save_policy_net(models / "final_actor.pth")
        if agent.has_value:
            agent.save_value_net(models / "final_critic.pth")  # type: ignore[attr-defined]

    def end_waiting(self) -> None:
        """The first log is there, or there will be none."""
        if self.waiting is not None:
            self.waiting.end()
            self.waiting = None

    def before_first_log(self) -> str:
        """Progress before the first log, for the console."""
        experiment, steps = self.experiment, self.trainer.env_steps
        if self.trainer.vectorization == "jax":
            return "compiling the program"
        rollout = getattr(experiment.learner, "rollout_length", 0) * experiment.run.num_envs
        needed = rollout or getattr(experiment.buffer, "warmup", 0)
        if not needed or self.trainer.learning_steps:
            return f"step {steps:,}"
        what = "the first rollout" if rollout else "the warm-up"
        return f"step {steps:,} of {needed:,} in {what}" if steps < needed else "the first update"


def drive(sessions: list[Session], console: bool = True) -> list[Finished]:
    """Pull all sessions in step, then save each."""
    interrupted, running = False, list(sessions)
    if console and not sessions[0].experiment.run.quiet:
        sessions[0].waiting = StartupProgress(sessions[0].before_first_log)
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
            session.end_waiting()
            for tracker in session.watchers:
                tracker.close()
        for session in sessions:
            session.logs = None
    if len(sessions) == 1:
        return [sessions[0].finish(interrupted)]
    finished = list[Finished]()
    with JobBar(sessions[0].experiment.run.quiet or not console) as bar:
        bar.begin("evaluating, plots, videos", len(sessions))
        for session in sessions:
            finished.append(session.finish(interrupted))
            bar.advance(f"seed {session.experiment.run.seed} is saved: {finished[-1].folder}")
    return finished


def say(text: str) -> None:
    """Print; a closed pipe (`| head`) does not end the run."""
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)


def evaluation_period(config: RunConfig) -> int:
    """Environment steps between evaluations; 0: there are none."""
    return _period(config.evaluate_every, config, 10)


def checkpoint_period(config: RunConfig) -> int:
    """Environment steps between checkpoints; 0: there are none."""
    return _period(config.checkpoint_every, config, 5)


def _period(every: int | None, config: RunConfig, parts: int) -> int:
    """As set, or an equal part of the budget."""
    if every is not None:
        return every
    return 10_000 if config.num_episodes else max(config.budget // parts, 1)


def sync_points(experiment: Experiment) -> tuple[float, ...]:
    """Periods in environment steps; at their multiples log and agent must be in sync."""
    config = experiment.run
    fractions = () if config.num_episodes else (config.budget / max(config.num_checkpoints, 1), config.budget)
    return (evaluation_period(config), checkpoint_period(config), *fractions)


def evaluate_in_run(
    config: RunConfig,
    agent: Agent,
    episodes: int | None = None,
    seed: int | None = None,
    *,
    env: EnvConfig | None = None,
    explore: bool = False,
    changes: Sequence[EnvChange] = (),
) -> Evaluation:
    """Evaluate an agent by the settings of its run. `changes` are made to the environments first."""
    return evaluate(
        agent,
        env or config.env_config,
        config.evaluation_episodes if episodes is None else episodes,
        config.seed if seed is None else seed,
        explore=explore,
        # EnvPool has environments that Gymnasium does not know.
        vectorization="envpool" if config.vectorization == "envpool" else "sync",
        prepare=functools.partial(repeat_changes, changes),
        max_steps=config.eval_max_steps,
    )


def _note_compilation(trainer: AnyTrainer, run: Run, quiet: bool) -> None:
    """Record how long compiling the update took, or why it failed."""
    from drl.engines.torch.flat_optimizer import FlatOptimizer

    assert isinstance(trainer, Trainer)  # of the torch engine
    parts = vars(getattr(trainer.algorithm, "algorithm", trainer.algorithm)).values()  # shared with others, or not
    programs = [part.program for part in parts if isinstance(part, FlatOptimizer) and part.program is not None]
    if programs:
        seconds = sum(program.seconds for program in programs)
        error = next((program.error for program in programs if program.error), None)
        run.note(compile_seconds=round(seconds, 1), compile_error=error)
        if not quiet and error is None:
            say(f"compiling the update took {seconds:.1f} s")


@contextlib.contextmanager
def _warned(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        warnings.warn(f"the run has no {what}: {reason(error)}", stacklevel=3)
