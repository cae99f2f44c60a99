"""One run in progress: its logs flow through the stages until it is over, then everything is saved."""

import contextlib
import functools
import itertools
import shlex
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from drl.agents.agent_env import env_notes
from drl.agents.evaluation import TIME_LIMIT, Evaluation, NotEvaluated, evaluate
from drl.agents.watch import film
from drl.core.contracts import EnvChange, Tracker, repeat_changes
from drl.core.errors import BadInput, EnvFailed, Interrupted, NonFinite, advise
from drl.core.golden_pairs import GoldenInputs
from drl.core.log import Log
from drl.core.state_files import StateDict
from drl.envs.env_config import EnvConfig, without_vector
from drl.envs.faults import reason
from drl.runs import stages
from drl.runs.building import AnyTrainer
from drl.runs.extras import NOTHING, Context, Extras, with_context
from drl.runs.folder.finished import Finished
from drl.runs.folder.run_folder import Run
from drl.runs.folder.run_writer import KeptTracker, RunWriter
from drl.runs.stages import BestModel, EvaluationSteps
from drl.runs.stop_signals import StopSignals
from drl.settings.experiment import Experiment, RunConfig
from drl.tracking.console import StartupProgress
from drl.tracking.files import FileTracker, write_crash
from drl.tracking.guarded import Board, Ending, Guarded, guard
from drl.tracking.jobs import JobBar
from drl.tracking.plots import plot_run
from drl.trainer.trainer import Trainer


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
        self.extras: Extras = extras
        self.context: Context = Context(trainer, run, self._evaluate_for_user)
        extras.state_dict()  # raises at once, not at the first checkpoint
        self.experiment: Experiment = experiment
        self.trainer: AnyTrainer = trainer
        self.run: Run = run
        self.signals: StopSignals = signals
        self.writer: RunWriter = RunWriter(run, trackers, experiment.run.fallback_dir)
        kept = [KeptTracker(each, self.writer) if isinstance(each, FileTracker) else each for each in trackers]
        self.watchers: list[Guarded] = [guard(tracker) for tracker in kept]
        self.boards: list[Guarded] = [guard(board) for board in boards]
        self.everyone: list[Guarded] = [*self.watchers, *self.boards]
        self.best: BestModel = stages.BestModel()
        self.evaluation_steps: EvaluationSteps = stages.EvaluationSteps(experiment.run.evaluation_episodes)
        self.earlier: float = 0.0  # seconds before this process
        self.started: float = time.monotonic()
        self.log: Log | None = None  # the last one
        self.pending: Log | None = None  # one that has not passed all stages
        self.staged: bool = False  # whether it has passed those of the user
        trainer.should_stop = signals.stopped
        # To evaluate and film in; None: there is none.
        self.env: EnvConfig | None = without_vector(experiment.run.env_config)
        about = {"algorithm": experiment.algorithm, "seed": experiment.run.seed}
        about |= {"license": experiment.run.license} if experiment.run.license else {}
        trainer.agent.notes = env_notes(self.env or experiment.run.env_config) | about
        self.logs: Iterator[Log] | None = None
        self.waiting: StartupProgress | None = None  # for the first log, if a console shows it

    def state_dict(self) -> StateDict:
        """Everything that the rest of the run depends on."""
        pending = None if self.pending is None else self.pending.state_dict()
        state = {"trainer": self.trainer.state_dict(), "best": self.best.state_dict(), "seconds": self.seconds}
        inputs = getattr(self.trainer.agent, "golden_inputs", None)  # an agent of the user may have none
        state |= {"golden_inputs": None if inputs is None else list(inputs)}
        state |= {"stages": self.extras.state_dict(), "staged": self.staged}
        return state | {"pending": pending, "evaluation_steps": self.evaluation_steps.state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        self.extras.load_state_dict(state.get("stages") or {})  # not in checkpoints of earlier versions
        self.trainer.load_state_dict(state["trainer"])
        self.best.load_state_dict(state["best"])
        if "evaluation_steps" in state:  # not in checkpoints of earlier versions
            self.evaluation_steps.load_state_dict(state["evaluation_steps"])
        if (inputs := state.get("golden_inputs")) is not None:  # not in those either
            self.trainer.agent.golden_inputs = GoldenInputs(*inputs)
        self.earlier = float(state["seconds"])
        self.pending = None if state["pending"] is None else Log.from_state(state["pending"])
        self.staged = bool(state.get("staged", True))
        if self.pending is not None and not self.staged:
            self.pending.custom = {}  # the stages add them again

    @property
    def seconds(self) -> float:
        """Wall time of the run, earlier processes included."""
        return self.earlier + time.monotonic() - self.started

    def pull(self) -> bool:
        """One learning step; False when the run is over."""
        if self.logs is None:
            self.logs = self._pipeline()
        inexact = self.trainer.inexact
        log = next(self.logs, None)
        self.pending, self.log = None, log or self.log
        if self.trainer.inexact != inexact:  # a collector could not continue its episodes
            self.save(lambda: self.run.note(inexact=self.trainer.inexact))
        algorithm = self.trainer.algorithm if isinstance(self.trainer, Trainer) else None
        if (failure := getattr(algorithm, "failure", None)) is not None:
            self.save_checkpoint()  # the step was finished without the learner that failed
            raise failure
        if log is None:
            self.trainer.leave()
        return log is not None

    def save(self, write: Callable[[], object]) -> bool:
        """Call something that writes into the run's folder; whether that worked, there or elsewhere. Signals wait."""
        with self.signals.held():
            return self.writer(write)

    def save_checkpoint(self) -> None:
        """What `resume` continues from, and the agent as it is now."""
        self.save(self._save_agent)
        for tracker in self.everyone:
            tracker.flush()
        if keep := self.experiment.run.keep_checkpoints:
            self.save(lambda: self.run.checkpoints.save(self.trainer.env_steps, self.state_dict(), keep))
        with self.signals.held():
            self.extras.saved(self.run.folder)

    def fail(self, error: BaseException) -> None:
        """Note why a run ended, with the episode in which an environment failed; the error names both files."""
        with contextlib.suppress(Exception), self.signals.held():
            self.run.note(status="failed", error=f"{type(error).__name__}: {error}")
            if not isinstance(error, NonFinite):  # after an environment failure the agent is still good
                self._save_agent()
            report, replay = "".join(traceback.format_exception(error)), ""
            if isinstance(error, EnvFailed) and self._save_crash(error):
                replay = f"\nthe episode again: drl replay {shlex.quote(str(self.run.folder))} --episode crash"
            (self.run.folder / "error.txt").write_text(f"{report}{replay}\n")
            advise(error, f"the traceback: {self.run.folder / 'error.txt'}{replay}")  # of several seeds the first

    def _save_crash(self, error: EnvFailed) -> bool:
        if not isinstance(self.trainer, Trainer) or error.env_index is None:
            return False
        episode = self.trainer.collector.crashed_episode(error.env_index)
        if episode is not None:
            write_crash(self.run.folder, episode)
        return episode is not None

    def finish(self, interrupted: bool) -> Finished:
        """Save the agent first, then evaluate and plot: if these fail, the agent is already saved."""
        trainer, run, config = self.trainer, self.run, self.experiment.run
        status, evaluation = self.signals.status, None
        if interrupted and not self.signals.stopped():
            status = "interrupted"
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
                    _illustrate(config, self.env, trainer, run)
            except Interrupted:  # in the evaluation, or in plots and videos
                status = self.signals.status
        if evaluation is None:
            self._note_status(status)
        with self.signals.held():
            self.writer.finish()
        for board in self.boards:
            board.finish(Ending(run.folder, status, evaluation))
        return Finished(run.folder, trainer.agent, self.log, status, evaluation)

    def close(self) -> None:
        """End what is still open after an error."""
        for board in self.boards:
            board.close()

    def _note_status(self, status: str) -> None:
        counts = {"env_steps": self.trainer.env_steps, "episodes": self.trainer.episodes}
        self.save(lambda: self.run.note(status=status, **counts))

    def _evaluate(self) -> Evaluation:
        try:
            evaluation = self._evaluate_for_user()
        except NotEvaluated as error:
            self.trainer.agent.golden_inputs = error.inputs
            raise
        self.trainer.agent.golden_inputs = evaluation.inputs
        return evaluation

    def _evaluate_for_user(
        self,
        episodes: int | None = None,
        seed: int | None = None,
        explore: bool = False,
        attributes: Mapping[str, object] = MappingProxyType({}),
    ) -> Evaluation:
        """A signal ends it at once: `resume` begins it again."""
        if self.env is None:
            raise BadInput("this run has a vector environment of its own and none to evaluate in; use drl.evaluate")
        config = self.experiment.run
        # EnvPool has environments that Gymnasium does not know.
        vectorization = "envpool" if config.vectorization == "envpool" else "sync"
        changes = [*self.trainer.changes, *(EnvChange(name, value) for name, value in attributes.items())]
        with self.signals.at_once():
            return evaluate(
                self.trainer.agent,
                self.env,
                config.evaluation_episodes if episodes is None else episodes,
                config.seed if seed is None else seed,
                explore=explore,
                vectorization=vectorization,
                prepare=functools.partial(repeat_changes, changes),
                max_steps=config.eval_max_steps,
            )

    def _evaluate_on_the_way(self) -> dict[str, float]:
        try:
            result = self._evaluate()
        except NotEvaluated as error:
            self.evaluation_steps.add(error.env_steps)
            warnings.warn(f"{error}; {TIME_LIMIT}, and --evaluate-every 0 leaves evaluations out", stacklevel=2)
            return {}
        self.evaluation_steps.add(result.env_steps)
        return result.summary()

    def _evaluate_at_the_end(self) -> dict[str, float] | None:
        """The final evaluation, on the agent's card too; None, with a note, if its episodes do not end."""
        try:
            evaluation = self._evaluate().summary()
        except NotEvaluated as error:
            again = f"`drl evaluate {self.run.folder} --max-steps {10 * error.env_steps}` plays longer"
            reason = f"{error}; {again}, and {TIME_LIMIT}"
            warnings.warn(reason, stacklevel=2)
            self.save(lambda: self.run.note(not_evaluated=reason))
            self.save(self._save_agent)
            return None
        self.save(lambda: self.run.note(final_evaluation=evaluation))
        self.save(lambda: self._save_agent(evaluation=evaluation))
        agent, steps = self.trainer.agent, self.trainer.env_steps
        stages.keep_evaluated(agent, lambda: self.run.models, evaluation, self.best, self.save, env_steps=steps)
        return evaluation

    def _save_agent(self, **notes: object) -> None:
        agent, models = self.trainer.agent, self.run.models
        agent.save(self.run.folder / "agent", env_steps=self.trainer.env_steps, **notes)
        agent.save_policy_net(models / "final_actor.pth")
        if agent.has_value:
            agent.save_value_net(models / "final_critic.pth")  # type: ignore[attr-defined]

    def _logs(self) -> Iterator[Log]:
        """The logs of the trainer, after one that an earlier process has not finished."""
        waiting = [] if self.pending is None or self.staged else [self.pending]
        for log in itertools.chain(waiting, self.trainer()):
            self.end_waiting()
            self.pending, self.staged = log, False
            yield log

    def _after_stages(self, logs: Iterator[Log]) -> Iterator[Log]:
        """The user's stages, after a log that they had in an earlier process."""
        waiting = [self.pending] if self.pending is not None and self.staged else []
        for stage in self.extras.stages:
            logs = with_context(stage, logs, self.context)
        for log in itertools.chain(waiting, logs):
            self.end_waiting()
            self.staged = True
            yield log

    def wait(self) -> None:
        """Show on the console what happens before the first log."""
        self.waiting = StartupProgress(self._before_first_log)

    def end_waiting(self) -> None:
        """The first log is there, or there will be none."""
        if self.waiting is not None:
            self.waiting.end()
            self.waiting = None

    def _before_first_log(self) -> str:
        experiment, steps = self.experiment, self.trainer.env_steps
        if self.trainer.vectorization == "jax":
            return "compiling the program"
        rollout = getattr(experiment.learner, "rollout_length", 0) * experiment.run.num_envs
        needed = rollout or getattr(experiment.buffer, "warmup", 0)
        if not needed or self.trainer.learning_steps:
            return f"step {steps:,}"
        what = "the first rollout" if rollout else "the warm-up"
        return f"step {steps:,} of {needed:,} in {what}" if steps < needed else "the first update"

    def _pipeline(self) -> Iterator[Log]:
        trainer, config = self.trainer, self.experiment.run
        agent, logs = trainer.agent, self._logs()
        every = _evaluate_every(config)
        if every and self.env is not None:
            always = config.evaluate_every is not None
            allow = (lambda log: True) if always else self.evaluation_steps.allow
            logs = stages.evaluate_every(logs, every, self._evaluate_on_the_way, allow)
        logs = self._after_stages(logs)
        logs = stages.keep_models(
            logs,
            agent,
            lambda: self.run.models,
            config.budget,
            config.num_checkpoints,
            window=config.window,
            best_after=config.best_after,
            in_episodes=bool(config.num_episodes),
            in_sync=lambda: trainer.in_sync,
            best=self.best,
            attempt=self.save,
        )
        logs = stages.track(logs, self.everyone)
        every = _checkpoint_every(config)
        if every and config.keep_checkpoints:
            minutes = config.checkpoint_minutes
            logs = stages.checkpoint_every(logs, every, lambda log: self.save_checkpoint(), minutes)
        left = None if config.max_minutes is None else config.max_minutes - self.earlier / 60
        return stages.stop_at(
            logs,
            minutes=left,
            mean_return=config.stop_at_return,
            window=config.window,
            when=lambda: self.context.stopped or self.signals.stopped(),
        )


def drive(sessions: list[Session], console: bool = True) -> list[Finished]:
    """Pull all sessions in step, then save each."""
    interrupted, running = False, list(sessions)
    if console and not sessions[0].experiment.run.quiet:
        sessions[0].wait()
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
    finished = []
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


def _note_compilation(trainer: AnyTrainer, run: Run, quiet: bool) -> None:
    """What compiling the update took, or why it could not be compiled."""
    from drl.engines.torch.flat_optimizer import FlatOptimizer

    assert isinstance(trainer, Trainer)  # of the torch engine
    parts = vars(getattr(trainer.algorithm, "algorithm", trainer.algorithm)).values()  # shared with others, or not
    programs = [part.program for part in parts if isinstance(part, FlatOptimizer) and part.program is not None]
    if not programs:
        return
    seconds = sum(program.seconds for program in programs)
    error = next((program.error for program in programs if program.error), None)
    run.note(compile_seconds=round(seconds, 1), compile_error=error)
    if not quiet and error is None:
        say(f"compiling the update took {seconds:.1f} s")


def _illustrate(config: RunConfig, env: EnvConfig | None, trainer: AnyTrainer, run: Run) -> None:
    if config.plots:
        _attempt("plots", lambda: plot_run(run.folder))
    if config.video and env is not None:
        path = run.folder / "videos" / "final_agent.mp4"
        agent, seed, changes = trainer.agent, config.seed, trainer.changes
        _attempt("video", lambda: film(agent, env, path, seed, timeout=config.worker_timeout, changes=changes))


def _attempt(what: str, make: Callable[[], object]) -> None:
    """Pictures are not worth a run: whatever is raised becomes a warning."""
    try:
        make()
    except Exception as error:
        warnings.warn(f"the run has no {what}: {reason(error)}", stacklevel=2)
