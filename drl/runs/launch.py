"""`train`: run an `Experiment` and write its run folder. `resume`: continue a run exactly where it stopped."""

import contextlib
import importlib.util
import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from drl.core.agent_files import check_finite
from drl.core.contracts import Tracker
from drl.core.errors import BadInput, DrlError, MissingExtra, UnusableFile, one_line, plural, shown
from drl.core.network_parts import function_modules, import_plugins, name_of
from drl.core.specs import PlainDict, PlainValue
from drl.envs.env_config import AnyEnv, as_config, check_trusted
from drl.envs.env_names import WrapperLike, wrapper_names
from drl.runs.building import AnyTrainer, build_seed_batch, check_budget, in_one_program, open_trainer
from drl.runs.extras import NOTHING, Extras, MakeTrackers, OnLog, Stage
from drl.runs.folder.checkpoints import Checkpoints
from drl.runs.folder.finished import Finished, RunLike, folder_of, resume_line
from drl.runs.folder.run_folder import Run, find_run, is_in_use, read_record, read_settings, read_started, runs_in
from drl.runs.folder.run_writer import BestModelCopy
from drl.runs.many_runs import train_in_processes
from drl.runs.session import DOES_NOT_FIT, Origin, Session, drive, say, sync_points
from drl.runs.stages import BestModel
from drl.runs.stop_signals import StopSignals
from drl.settings.experiment import Experiment, RunConfig, check_reach
from drl.tracking.console import ConsoleTracker, QuietConsole
from drl.tracking.files import EPISODES, EpisodeTracker, read_metrics
from drl.tracking.guarded import Board, InThread
from drl.tracking.mlflow_runs import MlflowTracker
from drl.tracking.plots import plot_compare
from drl.tracking.tensorboard_events import TensorBoardTracker
from drl.tracking.wandb_runs import WandbTracker

# Settings that a checkpoint's state belongs to.
KEPT_BY_FORKS = (
    "algorithm",
    "env",
    "env_kwargs",
    "wrappers",
    "num_envs",
    "frame_stack",
    "engine",
    "seed",
    "num_seeds",
    "seeds",
    "from_agent",
    "her",
)


def train(experiment: Experiment, extras: Extras = NOTHING, console: bool = True) -> Finished:
    """Train and track everything in a new run folder. Bad input raises before anything is written.

    `console=False` prints nothing.
    """
    if len(experiment.run.all_seeds) > 1:
        raise BadInput(f"this is one run, but there are {len(experiment.run.all_seeds)} seeds; leave all but one out")
    check_budget(experiment)
    if experiment.scaling.runs_elsewhere:
        _announce(experiment, console)
        return train_in_processes(experiment, extras, console)[0]
    with _open_session(experiment, None, extras, console) as session:
        return drive([session])[0]


def resume(
    folder: RunLike,
    *,
    env: AnyEnv | None = None,
    wrappers: Iterable[WrapperLike] = (),
    model: object = None,
    trackers: MakeTrackers = (),
    stages: Iterable[Stage] = (),
    on_log: OnLog | None = None,
    scaling: Mapping[str, PlainValue] | None = None,
    console: bool = True,
    trust: bool = False,
    hint: bool = True,
) -> Finished:
    """Continue a run from its newest checkpoint, or from the start if it has none. `folder` is a run, or an experiment
    for its newest run. If several seeds were trained in one program, all of them continue.

    Pass objects again that the run was started with (`env` and so on, see `train`), unless a module or file defines
    them under their name. `scaling` changes where it runs, such as {"num_learners": 1}. `trust` allows importing the
    modules named in its config.yaml, which runs their code; runs that this account started do not need it. `hint`
    prints how to resume if a signal stops the run.
    """
    folder = find_run(folder_of(folder))
    _name_again(folder, env, wrappers)
    experiment = experiment_of(folder, trust, scaling or ())
    if scaling:
        experiment = Experiment.from_flat(experiment.to_flat() | dict(scaling), f"drl resume {folder}")
        if scaling.get("cluster") and experiment.scaling.runs_elsewhere:
            raise BadInput(f"{folder} has neither collectors nor learners for a cluster; leave --cluster out")
    finished = continue_run(folder, experiment, Extras.of(experiment, model, trackers, stages, on_log), console)
    return hinted([finished], console and hint, trust)[0]


def continue_run(folder: Path, experiment: Experiment, extras: Extras, console: bool = True) -> Finished:
    """Continue a run with these settings."""
    run = Run.reopen(folder)
    if "model" in run.record and extras.model is None:
        run.close()
        raise BadInput(f"{folder} was started with a model of its own, {run.record['model']}: drl.resume(…, model=…)")
    if run.record.get("seed_batch"):
        run.close()
        if extras.stages or extras.trackers:
            raise BadInput(f"{folder} is one of several seeds in one program, which takes neither trackers nor stages")
        finished = _resume_seeds(folder, experiment, console)
        return next(each for each in finished if each.folder == folder)
    with _open_session(experiment, run, extras, console) as session:
        return drive([session])[0]


def _name_again(folder: Path, env: AnyEnv | None, wrappers: Iterable[WrapperLike]) -> None:
    """Register objects under their names in a run's settings."""
    settings = read_settings(folder)
    if env is not None and (name := as_config(env).env) != settings.get("env"):
        raise BadInput(f"{folder} was started in {settings.get('env')}; env is {name}")
    named, started = list(wrapper_names(wrappers)), settings.get("wrappers") or []
    if named and named != started:
        raise BadInput(f"{folder} was started with the wrappers {started}; wrappers is {named}")


def fork(
    folder: RunLike,
    changes: PlainDict | None = None,
    at: int | None = None,
    *,
    env: AnyEnv | None = None,
    wrappers: Iterable[WrapperLike] = (),
    model: object = None,
    trackers: MakeTrackers = (),
    stages: Iterable[Stage] = (),
    on_log: OnLog | None = None,
    console: bool = True,
    trust: bool = False,
    hint: bool = True,
) -> Finished:
    """A new run that begins where another one was, with changed settings. `at` is the step of one of its checkpoints;
    None: the newest. The new run is beside the other; its `run.json` names it. Objects are given as in `resume`."""
    folder, changes = find_run(folder_of(folder)), dict(changes or {})
    _name_again(folder, env, wrappers)
    if kept := [name for name in changes if name in KEPT_BY_FORKS]:
        raise BadInput(f"a fork cannot change {', '.join(kept)}: its first state belongs to them")
    settings = experiment_of(folder, trust, changes).to_flat() | {"name": folder.parent.name}
    settings |= {"results_dir": str(folder.parent.parent)} | changes
    experiment = Experiment.from_flat(settings, f"drl fork {folder}")
    checkpoints = Checkpoints(folder / "checkpoints")
    state = checkpoints.load_newest() if at is None else checkpoints.load(at)
    if state is None:
        raise BadInput(f"{folder} has no checkpoint to begin with; train it longer, or with --checkpoint-every")
    extras = Extras.of(experiment, model, trackers, stages, on_log)
    with _open_session(experiment, None, extras, console, Origin(folder, state, changes)) as session:
        finished = drive([session])
    return hinted(finished, console and hint)[0]


def hinted(runs: list[Finished], console: bool, trust: bool = False) -> list[Finished]:
    """Return the runs of a Python call after printing how to resume runs that a signal stopped."""
    if console and (line := resume_line(runs, python=True, trust=trust)):
        say(line)
    return runs


def is_unfinished(folder: Path) -> bool:
    """Whether a run can be continued: it is not finished, and no process is training it."""
    return read_record(folder).get("status") != "finished" and not is_in_use(folder)


def train_seeds(experiment: Experiment, extras: Extras = NOTHING, console: bool = True) -> list[Finished]:
    """Train one run per seed and plot them together. Seeds share one compiled program if the environment can be
    compiled; otherwise, and always on a cluster, each has its own process."""
    config = experiment.run
    check_budget(experiment)
    if experiment.scaling.cluster is None and in_one_program(experiment, extras.model):
        if config.workers is not None:
            raise BadInput("workers is for seeds in processes; these are one compiled program: leave it out")
        finished = _train_seeds(experiment, None, console)
    else:
        check_boards(config)
        _announce(experiment, console)
        finished = train_in_processes(experiment, extras, console)
    folders = [each.folder for each in finished]
    if config.plots and len(folders) > 1:
        with contextlib.suppress(DrlError, OSError, ValueError):
            plot_compare(folders, folders[0].parent / f"{folders[0].name}_seeds.png")
    return finished


@contextlib.contextmanager
def _open_session(
    experiment: Experiment, resumed: Run | None, extras: Extras, console: bool, origin: Origin | None = None
) -> Iterator[Session]:
    """A session in a new run folder, or in the folder of `resumed`."""
    config = experiment.run
    check_boards(config)
    _announce(experiment, console)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        with signals.at_once():
            # A checkpoint has its own weights, and the agent of `from_agent` may be gone.
            begins = origin is None and (resumed is None or not resumed.checkpoints.stored())
            built = experiment if begins else replace(experiment, run=replace(config, from_agent=None))
            trainer = stack.enter_context(open_trainer(built, sync_points(experiment), extras.model))
        signals.may_be_left = lambda: trainer.may_be_left
        if origin is not None:
            _load(trainer, origin)  # before anything is written
        quiet = config.quiet or not console
        run = resumed or _begin_run(experiment, trainer, quiet, extras.place)
        stack.callback(run.close)
        if learners := trainer.notes.get("learners"):
            run.note(learners=learners)
            if not quiet:
                say(str(learners))
        if extras.model is not None:
            run.note(model=name_of(extras.model))
        if extras.stages:
            run.note(stages=extras.stage_names)
        elif "stages" in run.record and not quiet:
            stages_then = f"stages or on_log ({shown(run.record['stages'])})"
            say(f"{run.folder} was started with {stages_then}; it continues without: drl.resume(…, on_log=…)")
        own = _trackers(experiment, run, console) + [InThread(each) for each in extras.trackers_of(run)]
        if resumed is not None and (copy := BestModelCopy(run)).path.is_file():  # main.py made it
            own.append(copy)
        shown_as = replace(experiment, run=replace(config, quiet=quiet))
        session = Session(shown_as, trainer, run, own, boards_of(experiment, run), signals, extras)
        stack.callback(session.close)
        with signals.held():
            extras.saved(run.folder)
        if resumed is not None:
            session.resume()
        if origin is not None:
            session.begin_fork(origin)
        yield session


def _train_seeds(experiment: Experiment, resumed: list[Run] | None, console: bool) -> list[Finished]:
    config, sessions = experiment.run, list[Session]()
    check_boards(config)
    _announce(experiment, console)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        with signals.at_once():
            trainers = build_seed_batch(experiment, sync_points(experiment)).trainers
        signals.may_be_left = lambda: trainers[0].may_be_left
        for number, trainer in enumerate(trainers):
            one = replace(experiment, run=config.with_seed(config.all_seeds[number]))
            run = resumed[number] if resumed else _begin_run(one, trainer, config.quiet or not console)
            stack.callback(run.close)
            label = f"seed {one.run.seed}, of {len(trainers)} seeds" if len(trainers) > 1 else ""
            trackers = _trackers(one, run, console and number == 0, label)  # only the first seed has a panel
            first = sessions[0].run.folder if sessions else run.folder
            boards = boards_of(one, run, group=f"{first.parent.name}_{first.name}")
            sessions.append(Session(one, trainer, run, trackers, boards, signals))
            stack.callback(sessions[-1].close)
        for session in sessions:
            if resumed is None:
                session.run.note(seed_batch=[each.run.folder.name for each in sessions])
            else:
                session.resume()
        return drive(sessions, console)


def _resume_seeds(folder: Path, experiment: Experiment, console: bool) -> list[Finished]:
    """Continue all seeds of the program that this run belongs to."""
    names = read_record(folder)["seed_batch"]
    if not isinstance(names, list) or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise UnusableFile(f"{folder}/run.json has seed_batch {names!r:.80}; expected the names of runs beside it")
    beside = [run.name for run in runs_in(folder.parent)]
    if missing := [name for name in names if name not in beside]:
        raise BadInput(f"{folder} was trained in one program with {', '.join(missing)}, which is not there any more")
    runs = [Run.reopen(folder.parent / name) for name in names]
    seeds = tuple(int(run.record["seed"]) for run in runs)
    return _train_seeds(replace(experiment, run=replace(experiment.run, seeds=seeds)), runs, console)


def experiment_of(folder: Path, trust: bool, given: Collection[str] | None = ()) -> Experiment:
    """Return the settings of a run. Unless they are trusted or this account started the run, modules that they name are
    imported only if they are registered, and settings that reach outside of the run's folder are refused if they are
    not `given` by the user. None: the caller uses none of these."""
    file = folder / "config.yaml"
    settings, foreign = read_started(folder)
    plugins = settings.get("plugins") or []
    if not isinstance(plugins, list) or not all(isinstance(plugin, str) for plugin in plugins):
        raise UnusableFile(f"{file} has plugins {plugins!r:.80}; expected a list of modules")
    plugins = [*plugins, *function_modules(settings)]
    if not trust and foreign is not None:
        if plugins:
            what = f"the plugins {', '.join(plugins)}, and importing them runs their code ({foreign})"
            raise BadInput(f"{file} names {what}; if you trust them, add --trust")
        check_trusted(str(settings.get("env")), settings.get("wrappers") or (), str(file), why=foreign)
        settings = settings | {"results_dir": RunConfig.results_dir}  # the run stays in its folder
        if given is not None:
            check_reach(settings, given, str(file))
    import_plugins(plugins)
    try:
        return Experiment.from_flat(settings, str(file))
    except BadInput as error:
        raise UnusableFile(str(error)) from None


def _load(trainer: AnyTrainer, origin: Origin) -> None:
    """Load the checkpoint that a fork begins with; raise if there is nothing to train from there."""
    try:
        check_finite(origin.state["trainer"]["agent"]["model"], f"the checkpoint of {origin.folder}")
        BestModel().load_state_dict(origin.state["best"])
        trainer.load_state_dict(origin.state["trainer"])
    except DOES_NOT_FIT as error:
        changed = ", ".join(f"{name}={value}" for name, value in origin.changes.items())
        wrong = f"does not fit {changed or 'its config.yaml'}: {one_line(error, 160)}"
        raise (BadInput if changed else UnusableFile)(f"the checkpoint of {origin.folder} {wrong}") from error
    if trainer.over:
        raise BadInput(
            f"{origin.folder} has used up its budget at step {trainer.env_steps:,}, so a fork has nothing to train; "
            f"add --set total_timesteps={2 * trainer.env_steps}, or begin earlier with --at STEP"
        )


def _announce(experiment: Experiment, console: bool) -> None:
    """Print which run starts, before the engine and the environments start, which may take seconds."""
    config, seeds = experiment.run, len(experiment.run.all_seeds)
    if console and not config.quiet:
        counts = [plural(config.num_envs, "environment"), *([plural(seeds, "seed")] if seeds > 1 else [])]
        say(f"{experiment.algorithm} on {config.env}, {', '.join(counts)}, {config.engine}")


def _begin_run(experiment: Experiment, trainer: AnyTrainer, quiet: bool, place: Path | None = None) -> Run:
    config = experiment.run
    name = config.name or re.sub(r"[^\w.-]+", "_", f"{config.env}_{experiment.algorithm}")
    settings, choice = experiment.to_flat(), trainer.notes.get("compile")
    if isinstance(choice, dict):  # written down, so that a run that continues or repeats this one does the same
        settings["compile"] = choice["choice"]
    run = Run.create(name, settings, place or config.results_dir, config.seed)
    run.note(engine=config.engine, vectorization=trainer.vectorization, **trainer.notes)
    if not quiet:
        say(f"run: {run.folder} (vectorization {trainer.vectorization})")
        if isinstance(taken := trainer.notes.get("from_agent"), dict):
            left_out = ", ".join(taken["left_out"]) or "nothing"
            say(f"begins with the weights of {taken['agent']}; new in this run: {left_out}")
        if isinstance(choice, dict):
            say(f"compile: {choice['choice']} ({choice['reason']})")
    return run


def _trackers(experiment: Experiment, run: Run, console: bool, label: str = "") -> list[Tracker]:
    config = experiment.run
    trackers = run.trackers()
    if config.record_episodes:
        trackers.append(EpisodeTracker(run.folder / EPISODES))
    if console and config.quiet:
        trackers.append(QuietConsole())
    elif console:
        steps, every = None if config.num_episodes else config.budget, config.log_every or None
        trackers.append(ConsoleTracker(steps, config.num_episodes, config.window, label=label, blocks_every=every))
    return trackers


def check_boards(config: RunConfig) -> None:
    """Raise if a library is missing, before anything is written."""
    for wanted, name, module in (
        (config.wandb_project, "Weights & Biases", "wandb"),
        (config.mlflow_experiment, "MLflow", "mlflow"),
    ):
        if wanted is not None and importlib.util.find_spec(module) is None:
            raise MissingExtra(f"tracking with {name}", module, module)


def check_server(mlflow_experiment: str | None) -> None:
    """Raise if runs on other machines would each have an MLflow of their own."""
    if mlflow_experiment is not None and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise BadInput("mlflow_experiment on a cluster needs a server that all nodes reach; set MLFLOW_TRACKING_URI")


def boards_of(experiment: Experiment, run: Run, group: str | None = None) -> list[Board]:
    """The boards of a new run, or those of the process that this one continues. `group`: of several seeds."""
    config, boards = experiment.run, list[Board]()
    if config.tensorboard:
        boards.append(TensorBoardTracker(run.folder / "tensorboard", experiment.to_flat()))
    places = {"wandb_id": config.wandb_project, "mlflow_id": config.mlflow_experiment}
    if not (wanted := [name for name, place in places.items() if place is not None]):
        return boards
    run.note(**{name: run.record.get(name) or secrets.token_hex(8) for name in wanted})
    metrics = run.folder / "metrics.jsonl"
    logged = [int(row.get("learning_steps", 0)) for row in read_metrics(metrics)] if metrics.is_file() else []
    ids = (run.record.get("wandb_id"), run.record.get("mlflow_id"))
    return boards + remote_boards(experiment, run.folder, run.folder.name, group, ids, max(logged, default=-1))


def remote_boards(
    experiment: Experiment,
    folder: Path,
    name: str,
    group: str | None = None,
    ids: tuple[str | None, str | None] = (None, None),  # of the run at W&B and at MLflow
    after: int = -1,
) -> list[Board]:
    """W&B and MLflow, if the experiment names a project or an experiment there."""
    config, boards = experiment.run, list[Board]()
    settings, group = experiment.to_flat(), config.group or group
    if config.wandb_project is not None:
        about = {"group": group, "job_type": experiment.algorithm}
        boards.append(WandbTracker(config.wandb_project, settings, folder, name, ids[0], after, **about))
    if config.mlflow_experiment is not None:
        tags = {"algorithm": experiment.algorithm, "env": config.env, "engine": config.engine, "seed": str(config.seed)}
        tags |= {"group": group} if group else {}
        own = ids[1] or secrets.token_hex(8)
        boards.append(MlflowTracker(config.mlflow_experiment, settings, tags, config.results_dir, name, own, after))
    return boards
