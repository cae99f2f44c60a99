"""`search`: finds better settings for an algorithm on an environment by many short runs. Needs Optuna (extra `search`).

>>> SearchConfig(n_trials=20, num_timesteps_per_trial=10_000).name_for("dqn")
'CartPole-v1_dqn_search'
"""

import contextlib
import json
import os
import statistics
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from drl.core.configs import require
from drl.core.errors import BadInput, EnvFailed, did_you_mean
from drl.core.search_dimensions import Choice, Space
from drl.core.state_files import PlainDict
from drl.envs.make_vec_env import make_vec_env
from drl.experiment.boards import check_boards, check_server
from drl.experiment.building import build_trainer
from drl.experiment.config import Experiment, is_folder_name
from drl.experiment.presets import load_preset
from drl.experiment.scaling_config import ScalingConfig
from drl.experiment.stop_signals import StopSignals
from drl.search.search_report import Display, write_report
from drl.search.search_space import MODES, as_settings, space_for, starting_point
from drl.search.search_worker import Crew, Job, Outcome
from drl.search.study import STOPPED, Ledger, claim, open_study, optuna, release, seed_number, storage_errors

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.pruners import BasePruner
    from optuna.trial import FrozenTrial

    from drl.tracking.job_bar import JobBar

FRESH_SEEDS = 1_000_003  # first seed of the re-runs, far from the seeds of the trials
PRUNERS = ("median", "hyperband", "none")
BUDGETS = {"total_timesteps", "num_episodes"}
BOARDS = {"wandb_project", "mlflow_experiment", "group"}
OF_ONE_RUN = {"seed", "name", "results_dir", "quiet", "threads", "plots", "video", "tensorboard"} | BOARDS
NOT_IN_PRESETS = OF_ONE_RUN | BUDGETS | {"worker_timeout"}


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Settings of a search."""

    env: str = "CartPole-v1"  # any Gymnasium id, also module:Id
    n_trials: int = 100  # finished trials in total; the same command runs only the missing ones
    num_timesteps_per_trial: int | None = None  # environment steps; default: the preset's budget, else 50 000
    num_episodes_per_trial: int | None = None  # or episodes
    mode: str = "base"  # base: a few settings · all: also switches, batch sizes and network width
    pruner: str = "median"  # stops weak trials early: median · hyperband · none
    storage: str | None = None  # URL, or a file ending in .db or .log; default: results/<name>/study.db
    n_jobs: int = 1  # trials in parallel, each in its own process; 0: one after another in this process
    # Where they run: local (Ray, started for this command) · auto (the Ray cluster that this machine is in) · ADDRESS
    # of a Ray cluster; None: on this machine without Ray.
    cluster: str | None = None
    cpus_per_run: float = 1.0  # cores that a cluster reserves for each trial
    gpus_per_run: float = 0.0  # the same for GPUs
    trial_timeout: float = 60.0  # minutes without a sign of life after which a trial is ended and counts as failed
    seed: int = 0  # of the sampler and of the trials; trial i trains with seed + i
    name: str | None = None  # study and folder; default: <env>_<algorithm>_search
    results_dir: str = "results"  # where the folders of runs go
    reports: int = 10  # evaluations in a trial; the last one is of the final agent
    evaluation_episodes: int = 20  # per evaluation
    rerun_best: int = 3  # how many of the best trials are re-run
    rerun_seeds: int = 2  # fresh seeds per re-run trial; 0: no re-runs
    wandb_project: str | None = None  # Weights & Biases project, a run for each trial; None: off
    mlflow_experiment: str | None = None  # MLflow experiment, a run for each trial; None: off
    plots: bool = True  # plots of the study at the end
    quiet: bool = False  # print one line at the end

    def __post_init__(self) -> None:
        positive = "n_trials num_timesteps_per_trial num_episodes_per_trial reports evaluation_episodes"
        require(self, "a whole number of at least 1", positive, lambda x: x >= 1)
        require(self, "a whole number of at least 0", "seed rerun_best rerun_seeds n_jobs", lambda x: x >= 0)
        require(self, "a number of minutes above 0", "trial_timeout", lambda x: x > 0)
        ScalingConfig(cluster=self.cluster, cpus_per_run=self.cpus_per_run, gpus_per_run=self.gpus_per_run)
        if self.cluster is not None and self.n_jobs == 0:
            raise BadInput("n_jobs is 0, trials in this process, and cluster is given; give --n-jobs 2 or leave it out")
        require(self, "'base' or 'all'", "mode", lambda x: x in MODES)
        require(self, "'median', 'hyperband' or 'none'", "pruner", lambda x: x in PRUNERS)
        require(self, "a plain folder name of at most 200 bytes", "name", is_folder_name)
        require(
            self,
            "a name, a folder or a URL",
            "env results_dir storage wandb_project mlflow_experiment",
            lambda x: x.strip() != "",
        )
        if self.num_timesteps_per_trial and self.num_episodes_per_trial:
            raise BadInput("both num_timesteps_per_trial and num_episodes_per_trial are given; give one budget")

    def name_for(self, algorithm: str) -> str:
        """One study for each environment, algorithm and mode."""
        plain = self.env.replace("/", "_").replace(":", "_")
        return self.name or f"{plain}_{algorithm}_search{'_all' if self.mode == 'all' else ''}"


@dataclass(frozen=True)
class Found:
    """A finished trial and its scores when trained again."""

    number: int
    score: float  # in the search; biased upward, because the best are selected by it
    settings: PlainDict  # chosen by the search, as flat names
    on_the_way: float = 0.0  # mean of the evaluations in the trial; breaks ties in favor of faster learning
    fresh: dict[int, float | None] = field(default_factory=dict)  # seed → score of a re-run; None if it failed

    @property
    def honest(self) -> float | None:
        """Mean score over fresh seeds, which did not influence the selection."""
        scores = [score for score in self.fresh.values() if score is not None]
        return statistics.fmean(scores) if scores else None


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    algorithm: str
    env: str
    folder: Path  # plots, best.yaml, best.json and, without `storage`, the study
    status: str  # finished · interrupted · terminated
    counts: dict[str, int]  # trials by state: complete, pruned, failed, lost
    ranking: list[Found]  # complete trials: re-run ones by honest score, then the others by search score
    preset: PlainDict  # settings for `drl train --config`
    study: "Study"

    @property
    def best(self) -> Found:
        """The first of the ranking."""
        return self.ranking[0]


def search(
    algorithm: str,
    config: SearchConfig,
    settings: PlainDict | None = None,
    use_preset: bool = True,
    options: Mapping[str, tuple[object, ...]] | None = None,
    own_study: bool = False,
    space: Space | None = None,
) -> SearchResult:
    """Search, or continue a search.

    `settings` (flat names) override the pair's preset and stay fixed; for a setting that is searched they are the
    starting point. `options` narrows the choices of a setting; `space` replaces all of them. With `own_study` every
    budget and combination of settings has its own study.
    """
    optuna()
    preset = (load_preset(algorithm, config.env) or {}) if use_preset else {}
    plan = _Plan(algorithm, config, one_budget(preset, settings or {}), options or {}, own_study, space)
    with storage_errors(config.storage or str(plan.folder / "study.db")), contextlib.ExitStack() as stack:
        study = open_study(config.storage, plan.folder, plan.name, config.seed, _pruner(config))
        stack.callback(release, study)
        claim(study, plan.belongs())
        return _search(plan, study)


def _search(plan: "_Plan", study: "Study") -> SearchResult:
    config, ledger = plan.config, Ledger(study)
    with (
        StopSignals() as signals,
        Display(config, plan.name) as display,
        contextlib.ExitStack() as stack,
    ):
        crew = stack.enter_context(_open_crew(config, display.bar))
        lost = ledger.fail_stale()
        ledger.ask_again()
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial(starting_point(plan.space, plan.start_flat))
        finished = len(ledger.trials("COMPLETE", "PRUNED", "FAIL")) - len(ledger.lost())
        display.begin(finished, lost, ledger.trials("COMPLETE"))
        if why := crew.check(plan.fixed() | plan.budget):
            display.bar.say(f"trials run in this process, because a worker process cannot: {why}")
        work = _Work(plan, study, ledger, crew, signals, display)
        work.run_trials()
        fresh = work.run_again(_ranking(plan, study, {})[: config.rerun_best])
    result = _result(plan, study, ledger, signals.status, fresh)
    write_report(result, config)
    return result


def one_budget(preset: PlainDict, settings: PlainDict) -> PlainDict:
    """Settings on top of a preset. A budget in `settings` replaces the preset's, also one of the other kind.

    >>> one_budget({"total_timesteps": 100, "gamma": 0.9}, {"num_episodes": 5})
    {'gamma': 0.9, 'num_episodes': 5}
    """
    if all(settings.get(name) for name in BUDGETS):
        raise BadInput("the settings have both total_timesteps and num_episodes; give one budget")
    replaced = BUDGETS if BUDGETS & {name for name, value in settings.items() if value} else set()
    return {name: value for name, value in preset.items() if name not in replaced} | settings


def _open_crew(config: SearchConfig, bar: "JobBar") -> contextlib.AbstractContextManager[Crew]:
    """The workers of a search, here or on its cluster, whose modules only a search on a cluster imports."""
    if config.cluster is None:
        return contextlib.closing(Crew(config.n_jobs, 60 * config.trial_timeout))
    from drl.search.cluster_crew import open_cluster_crew

    return open_cluster_crew(config, bar)


class _Plan:
    """What is searched; fixed before the first trial. Bad input raises here, before anything is written."""

    def __init__(
        self,
        algorithm: str,
        config: SearchConfig,
        given: PlainDict,
        narrowed: Mapping[str, tuple[object, ...]],
        own_study: bool,
        space: Space | None,
    ):
        self.own_space = space
        self.algorithm, self.config = algorithm, config
        pair = {"algorithm": algorithm, "env": config.env}
        boards = {name: getattr(config, name) for name in ("wandb_project", "mlflow_experiment")}
        pair |= {name: where for name, where in boards.items() if where is not None}
        self.given: PlainDict = pair | given | pair
        self.budget = self._budget()
        self.name = config.name_for(algorithm)
        if own_study:
            self.name += f"_{zlib.crc32(json.dumps(self.belongs(), sort_keys=True).encode()):08x}"
        self.folder = Path(config.results_dir) / self.name
        start = Experiment.from_flat(self.fixed() | self.budget, "the search's settings")
        run = start.run
        check_boards(run)
        if config.cluster is not None:
            check_server(run.mlflow_experiment)
        with make_vec_env(
            run.env_config, run.num_envs, run.seed, vectorization=run.vectorization, timeout=run.worker_timeout
        ) as envs:
            self.images = len(envs.obs_spec.shape) == 3
            build_trainer(start, envs)
        self.start_flat = start.to_flat()
        if self.images:
            self.start_flat["width"] = start.model.cnn_features // 4
        self.layers = max(len(start.model.hidden_sizes), 1)
        self.space = space or space_for(algorithm, config.mode, run.num_envs, self.budget.get("total_timesteps"))
        if unknown := [name for name in self.space if name != "width" and name not in self.start_flat]:
            known = ["width", *self.start_flat]
            raise BadInput(
                f"search_space has {unknown[0]!r}, no setting of {algorithm}; {did_you_mean(unknown[0], known)}"
            )
        self.space |= {name: Choice(some) for name, some in narrowed.items() if name in self.space}
        cores = (os.cpu_count() or 1) if self.images else 1  # a second thread slows tiny networks
        share = cores // max(config.n_jobs, 1) if config.cluster is None else min(int(config.cpus_per_run), cores)
        self.threads = run.threads or max(share, 1)

    def _budget(self) -> dict[str, int]:
        config = self.config
        if config.num_timesteps_per_trial or config.num_episodes_per_trial:
            steps, episodes = config.num_timesteps_per_trial, config.num_episodes_per_trial
        else:
            steps, episodes = self.given.get("total_timesteps"), self.given.get("num_episodes")
        return {"num_episodes": int(episodes)} if episodes else {"total_timesteps": int(float(steps or 50_000))}

    def fixed(self) -> PlainDict:
        return {name: value for name, value in self.given.items() if name not in BUDGETS}

    def job(self, number: int, chosen: PlainDict, seed: int, reports: int) -> Job:
        own: PlainDict = {"seed": seed, "threads": self.threads, "evaluation_episodes": self.config.evaluation_episodes}
        if any(self.given.get(name) for name in BOARDS):
            own |= {"group": self.given.get("group") or self.name, "results_dir": str(self.folder)}
        return Job(number, self.fixed() | self.budget | chosen | own, reports)

    def chosen(self, trial: "Trial | FrozenTrial") -> PlainDict:
        """A trial's values as flat settings."""
        return as_settings(trial.params, self.layers, self.images)

    def belongs(self) -> PlainDict:
        """What must stay the same so that scores are comparable."""
        names = ("mode", "reports", "evaluation_episodes")
        fixed = {name: value for name, value in self.fixed().items() if name not in NOT_IN_PRESETS}
        told = {"budget": self.budget, "settings": fixed} | {name: getattr(self.config, name) for name in names}
        return told if self.own_space is None else told | {"search_space": str(self.own_space)}

    def preset(self, found: Found) -> PlainDict:
        """Settings that train like this trial, with or without a shipped preset for the pair."""
        budget = {name: self.given[name] for name in sorted(BUDGETS) if self.given.get(name)}
        kept = {name: value for name, value in self.fixed().items() if name not in NOT_IN_PRESETS}
        whole = kept | (budget or self.budget) | found.settings
        # `drl train --config` overrides the shipped preset, so every setting of that preset must be in the file.
        under = set(load_preset(self.algorithm, self.config.env) or {}) - NOT_IN_PRESETS
        default = Experiment(algorithm=self.algorithm).to_flat()
        always = {"algorithm", "env", *found.settings, *under}
        whole = {name: value for name, value in whole.items() if name in always or value != default[name]}
        return whole | {name: self.start_flat[name] for name in sorted(under - set(whole))}


class _Work:
    """The two rounds of jobs: trials, then re-runs of the best."""

    def __init__(self, plan: _Plan, study: "Study", ledger: Ledger, crew: Crew, signals: StopSignals, display: Display):
        self.plan, self.study, self.ledger = plan, study, ledger
        self.crew, self.signals, self.display = crew, signals, display
        self.running: dict[int, Trial] = {}

    def run_trials(self) -> None:
        try:
            for job, outcome in self.crew.run(self._next_trial, self._report, self._stop):
                self._tell(job, outcome)
        except optuna().exceptions.StorageInternalError:  # the next search finds these trials
            raise
        except BaseException:
            self.ledger.fail_own()
            raise
        self.ledger.fail_own()

    def _next_trial(self) -> Job | None:
        if self.ledger.taken() >= self.plan.config.n_trials:
            return None
        trial = self.study.ask()
        trial.set_user_attr("owner", self.ledger.owner)
        for name, dimension in self.plan.space.items():
            dimension.suggest(trial, name)
        self.running[trial.number] = trial
        seed = self.plan.config.seed + seed_number(trial)
        return self.plan.job(trial.number, self.plan.chosen(trial), seed, self.plan.config.reports)

    def _report(self, job: Job, fraction: int, score: float) -> bool:
        trial = self.running[job.number]
        trial.report(score, fraction)
        return bool(trial.should_prune())

    def _tell(self, job: Job, outcome: Outcome) -> None:
        states = optuna().trial.TrialState
        trial = self.running.pop(job.number)
        if outcome.state == "complete":
            self.study.tell(trial, outcome.score, skip_if_finished=True)
        elif outcome.state == "pruned":
            self.study.tell(trial, state=states.PRUNED, skip_if_finished=True)
        else:
            error = STOPPED if outcome.state == "stopped" else outcome.error
            self.ledger.fail(job.number, error, lost=outcome.state in ("lost", "stopped"))
        self.display.ended(job, outcome)

    def _stop(self) -> bool:
        self.ledger.sign_of_life()
        return self.signals.seen is not None

    def run_again(self, best: list[Found]) -> dict[int, dict[int, float | None]]:
        """Scores by trial and seed. The study keeps them, so a finished re-run is not repeated."""
        config = self.plan.config
        seeds = [FRESH_SEEDS + config.seed + i for i in range(config.rerun_seeds)]
        wanted = [(found, seed) for found in best for seed in seeds]
        missing = [(found, seed) for found, seed in wanted if f"again:{found.number}:{seed}" not in self._notes()]
        self.display.again(len(missing))
        queue = [self.plan.job(found.number, found.settings, seed, 1) for found, seed in reversed(missing)]

        def next_job() -> Job | None:
            return queue.pop() if queue else None

        for job, outcome in self.crew.run(next_job, lambda *_: False, self._stop):
            if outcome.state in ("complete", "failed"):
                self.study.set_user_attr(f"again:{job.number}:{job.settings['seed']}", [outcome.score, outcome.error])
            self.display.ended_again(job, outcome)
        notes = self._notes()
        fresh: dict[int, dict[int, float | None]] = {found.number: {} for found in best}
        for found, seed in wanted:
            with contextlib.suppress(KeyError):
                fresh[found.number][seed] = notes[f"again:{found.number}:{seed}"][0]
        return fresh

    def _notes(self) -> PlainDict:
        return dict(self.study.user_attrs)


def _ranking(plan: _Plan, study: "Study", fresh: dict[int, dict[int, float | None]]) -> list[Found]:
    """Re-run trials first, by honest score; then the others, by search score."""
    complete = study.get_trials(deepcopy=False, states=(optuna().trial.TrialState.COMPLETE,))
    found = [
        Found(t.number, t.value, plan.chosen(t), _mean(t), fresh.get(t.number, {}))
        for t in complete
        if t.value is not None
    ]

    def place(one: Found) -> tuple[bool, float, float]:
        return one.honest is None, -(one.score if one.honest is None else one.honest), -one.on_the_way

    return sorted(found, key=place)


def _mean(trial: "FrozenTrial") -> float:
    scores = trial.intermediate_values.values() or trial.values
    return statistics.fmean(scores)


def _result(
    plan: _Plan, study: "Study", ledger: Ledger, status: str, fresh: dict[int, dict[int, float | None]]
) -> SearchResult:
    ranking, lost = _ranking(plan, study, fresh), ledger.lost()
    if not ranking and status == "finished":
        errors = [text for key, text in study.user_attrs.items() if key.startswith("error:")]
        raise EnvFailed(f"every trial failed; the last error: {errors[-1] if errors else 'none'}")
    failed = {trial.number for trial in ledger.trials("FAIL")}
    counts = {"complete": len(ranking), "pruned": len(ledger.trials("PRUNED"))}
    counts |= {"failed": len(failed - lost), "lost": len(lost), "running": len(ledger.trials("RUNNING"))}
    preset = plan.preset(ranking[0]) if ranking else {}
    return SearchResult(plan.algorithm, plan.config.env, plan.folder, status, counts, ranking, preset, study)


def _pruner(config: SearchConfig) -> "BasePruner":
    pruners = optuna().pruners
    if config.pruner == "median":  # not before five complete trials, nor in the first fifth of a trial
        return pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=config.reports // 5 + 1)
    if config.pruner == "hyperband":
        return pruners.HyperbandPruner(min_resource=1, max_resource=config.reports, reduction_factor=3)
    return pruners.NopPruner()
