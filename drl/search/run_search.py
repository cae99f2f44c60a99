"""`search`: better numbers for an algorithm on an environment, by many short trainings. Needs Optuna (extra `search`).

>>> SearchConfig(n_trials=20, num_timesteps_per_trial=10_000).name_for("dqn")
'CartPole-v1_dqn_search'
"""

import contextlib
import json
import os
import statistics
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drl.core.configs import require
from drl.core.errors import BadInput, EnvFailed
from drl.core.search_dimensions import Choice
from drl.envs.make_vec_env import make_vec_env
from drl.experiment.building import build_trainer
from drl.experiment.config import Experiment
from drl.experiment.launch import StopSignals
from drl.experiment.presets import load_preset
from drl.search.search_report import Display, write_report
from drl.search.search_space import MODES, as_settings, space_for, starting_point
from drl.search.search_worker import Crew, Job, Outcome
from drl.search.study import Ledger, claim, open_study, optuna, release

FRESH_SEEDS = 1_000_003  # where the seeds of the re-runs begin, far from those of the trials
PRUNERS = ("median", "hyperband", "none")
BUDGETS = {"total_timesteps", "num_episodes"}
OF_ONE_RUN = {"seed", "name", "results_dir", "quiet", "threads", "plots", "video", "tensorboard", "wandb_project"}
NOT_IN_PRESETS = OF_ONE_RUN | BUDGETS


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    env: str = "CartPole-v1"  # any Gymnasium id, also module:Id
    n_trials: int = 100  # finished trials in total: the same command again runs only what is missing
    num_timesteps_per_trial: int | None = None  # environment steps; default the preset's budget, else 50 000
    num_episodes_per_trial: int | None = None  # or episodes
    mode: str = "base"  # base: a few numbers · all: also switches, batch sizes and network width
    pruner: str = "median"  # give up weak trials early: median · hyperband · none
    storage: str | None = None  # URL, or a file ending in .db or .log; default results/<name>/study.db
    n_jobs: int = 1  # trials at the same time, each in a process of its own
    seed: int = 0  # of the sampler and of the trials; trial i trains with seed + i
    name: str | None = None  # study and folder; default <env>_<algorithm>_search
    results_dir: str = "results"
    reports: int = 10  # evaluations within a trial, the last one of the final agent
    evaluation_episodes: int = 20  # in each of them
    rerun_best: int = 3  # how many of the best trials are trained again
    rerun_seeds: int = 2  # with how many fresh seeds each; 0: no re-runs
    plots: bool = True  # pictures of the study at the end
    quiet: bool = False  # print one line at the end

    def __post_init__(self) -> None:
        positive = "n_trials num_timesteps_per_trial num_episodes_per_trial n_jobs reports evaluation_episodes"
        require(self, "a whole number of at least 1", positive, lambda x: x >= 1)
        require(self, "a whole number of at least 0", "seed rerun_best rerun_seeds", lambda x: x >= 0)
        require(self, "'base' or 'all'", "mode", lambda x: x in MODES)
        require(self, "'median', 'hyperband' or 'none'", "pruner", lambda x: x in PRUNERS)
        require(self, "a plain folder name", "name", lambda x: "/" not in x and x.strip(". ") != "")
        if self.num_timesteps_per_trial and self.num_episodes_per_trial:
            raise BadInput("both num_timesteps_per_trial and num_episodes_per_trial are given; give one budget")

    def name_for(self, algorithm: str) -> str:
        """One study for each environment, algorithm and mode."""
        plain = self.env.replace("/", "_").replace(":", "_")
        return self.name or f"{plain}_{algorithm}_search{'_all' if self.mode == 'all' else ''}"


@dataclass(frozen=True)
class Found:
    """A finished trial, and what it was worth when trained again."""

    number: int
    score: float  # in the search, picked as one of the best: too good on average
    settings: dict[str, Any]  # what the search chose, as flat names
    on_the_way: float = 0.0  # mean of the evaluations within the trial: of two equal scores, the faster learner's wins
    fresh: dict[int, float | None] = field(default_factory=dict)  # seed → score of a re-run; None: it failed

    @property
    def honest(self) -> float | None:
        """Mean score over fresh seeds, which had no part in the picking."""
        scores = [score for score in self.fresh.values() if score is not None]
        return statistics.fmean(scores) if scores else None


@dataclass(frozen=True)
class SearchResult:
    """What a search leaves behind."""

    algorithm: str
    env: str
    folder: Path  # pictures, best.yaml, best.json and, unless kept elsewhere, the study
    status: str  # finished · interrupted · terminated
    counts: dict[str, int]  # trials by state: complete, pruned, failed, lost
    ranking: list[Found]  # complete trials: re-run ones by their honest score, then the others by search score
    preset: dict[str, Any]  # settings for `drl train --config`
    study: Any  # Optuna's

    @property
    def best(self) -> Found:
        return self.ranking[0]


def search(
    algorithm: str,
    config: SearchConfig,
    settings: dict[str, Any] | None = None,
    use_preset: bool = True,
    options: dict[str, tuple[Any, ...]] | None = None,
    own_study: bool = False,
) -> SearchResult:
    """Search, or continue a search. `settings` are flat names that stay as they are, on top of the pair's preset; one
    that is searched over is where the search begins. `options` narrows what a setting is chosen from. With `own_study`
    every budget and combination of settings has a study of its own, which the same ones find again."""
    optuna()
    preset = (load_preset(algorithm, config.env) or {}) if use_preset else {}
    plan = _Plan(algorithm, config, one_budget(preset, settings or {}), options or {}, own_study)
    study = open_study(config.storage, plan.folder, plan.name, config.seed, _pruner(config))
    claim(study, plan.belongs())
    ledger = Ledger(study)
    with (
        StopSignals() as signals,
        Display(config, plan.name) as display,
        contextlib.closing(Crew(config.n_jobs)) as crew,
    ):
        lost = ledger.fail_stale()
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial(starting_point(plan.space, plan.start_flat))
        finished = len(ledger.trials("COMPLETE", "PRUNED", "FAIL")) - len(ledger.lost())
        display.begin(finished, lost, ledger.trials("COMPLETE"))
        work = _Work(plan, study, ledger, crew, signals, display)
        work.run_trials()
        fresh = work.run_again(_ranking(plan, study, {})[: config.rerun_best])
    try:
        result = _result(plan, study, ledger, signals.status, fresh)
        write_report(result, config)
    finally:
        release(study)
    return result


def one_budget(preset: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Settings on top of a preset; a budget of the other kind takes the place of the preset's.

    >>> one_budget({"total_timesteps": 100, "gamma": 0.9}, {"num_episodes": 5})
    {'gamma': 0.9, 'num_episodes': 5}
    """
    replaced = BUDGETS if BUDGETS & {name for name, value in settings.items() if value} else set()
    return {name: value for name, value in preset.items() if name not in replaced} | settings


class _Plan:
    """What is searched, fixed before the first trial. Bad input raises here, before anything is written."""

    def __init__(
        self,
        algorithm: str,
        config: SearchConfig,
        given: dict[str, Any],
        narrowed: dict[str, tuple[Any, ...]],
        own_study: bool,
    ):
        self.algorithm, self.config = algorithm, config
        whose = {"algorithm": algorithm, "env": config.env}
        self.given = whose | given | whose
        self.budget = self._budget()
        self.name = config.name_for(algorithm)
        if own_study:
            self.name += f"_{zlib.crc32(json.dumps(self.belongs(), sort_keys=True).encode()):08x}"
        self.folder = Path(config.results_dir) / self.name
        start = Experiment.from_flat(self.fixed() | self.budget, "the search's settings")
        run = start.run
        options: dict[str, Any] = {"frame_stack": run.frame_stack, "env_kwargs": run.env_arguments}
        with make_vec_env(run.env, run.num_envs, run.seed, vectorization=run.vectorization, **options) as envs:
            self.images = len(envs.obs_spec.shape) == 3
            build_trainer(start, envs)
        self.start_flat = start.to_flat()
        if self.images:
            self.start_flat["width"] = start.model.cnn_features // 4
        self.layers = max(len(start.model.hidden_sizes), 1)
        self.space = space_for(algorithm, config.mode, run.num_envs, self.budget.get("total_timesteps"))
        self.space |= {name: Choice(some) for name, some in narrowed.items() if name in self.space}
        cores = (os.cpu_count() or 1) if self.images else 1  # tiny networks lose time to a second thread
        self.threads = run.threads or max(cores // config.n_jobs, 1)

    def _budget(self) -> dict[str, int]:
        config = self.config
        if config.num_timesteps_per_trial or config.num_episodes_per_trial:
            steps, episodes = config.num_timesteps_per_trial, config.num_episodes_per_trial
        else:
            steps, episodes = self.given.get("total_timesteps"), self.given.get("num_episodes")
        return {"num_episodes": int(episodes)} if episodes else {"total_timesteps": int(float(steps or 50_000))}

    def fixed(self) -> dict[str, Any]:
        return {name: value for name, value in self.given.items() if name not in BUDGETS}

    def job(self, number: int, chosen: dict[str, Any], seed: int, reports: int) -> Job:
        own = {"seed": seed, "threads": self.threads, "evaluation_episodes": self.config.evaluation_episodes}
        return Job(number, self.fixed() | self.budget | chosen | own, reports)

    def chosen(self, trial: Any) -> dict[str, Any]:
        """A trial's values as flat settings."""
        return as_settings(trial.params, self.layers, self.images)

    def belongs(self) -> dict[str, Any]:
        """What must stay the same for scores to compare."""
        names = ("mode", "reports", "evaluation_episodes")
        fixed = {name: value for name, value in self.fixed().items() if name not in NOT_IN_PRESETS}
        return {"budget": self.budget, "settings": fixed} | {name: getattr(self.config, name) for name in names}

    def preset(self, found: Found) -> dict[str, Any]:
        """Settings that train like this trial, whether or not a preset ships for the pair."""
        budget = {name: self.given[name] for name in sorted(BUDGETS) if self.given.get(name)}
        kept = {name: value for name, value in self.fixed().items() if name not in NOT_IN_PRESETS}
        whole = kept | (budget or self.budget) | found.settings
        # `drl train --config` puts the file on top of the shipped preset: what that one says must be said here, too.
        under = set(load_preset(self.algorithm, self.config.env) or {}) - NOT_IN_PRESETS
        default = Experiment(algorithm=self.algorithm).to_flat()
        told = {"algorithm", "env", *found.settings, *under}
        whole = {name: value for name, value in whole.items() if name in told or value != default[name]}
        return whole | {name: self.start_flat[name] for name in sorted(under - set(whole))}


class _Work:
    """The two rounds of jobs: trials, then the best ones again."""

    def __init__(self, plan: _Plan, study: Any, ledger: Ledger, crew: Crew, signals: StopSignals, display: Display):
        self.plan, self.study, self.ledger = plan, study, ledger
        self.crew, self.signals, self.display = crew, signals, display
        self.running: dict[int, Any] = {}  # Optuna's trial objects

    def run_trials(self) -> None:
        try:
            for job, outcome in self.crew.run(self._next_trial, self._report, self._stop):
                self._tell(job, outcome)
        finally:
            self.ledger.fail_own()

    def _next_trial(self) -> Job | None:
        if self.ledger.taken() >= self.plan.config.n_trials:
            return None
        trial = self.study.ask()
        trial.set_user_attr("owner", self.ledger.owner)
        for name, dimension in self.plan.space.items():
            dimension.suggest(trial, name)
        self.running[trial.number] = trial
        seed = self.plan.config.seed + trial.number
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
            self.ledger.fail(job.number, outcome.error, lost=outcome.state in ("lost", "stopped"))
        self.display.ended(job, outcome)

    def _stop(self) -> bool:
        self.ledger.sign_of_life()
        return self.signals.seen is not None

    def run_again(self, best: list[Found]) -> dict[int, dict[int, float | None]]:
        """Scores by trial and seed. They are kept in the study: what was measured once is not measured again."""
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

    def _notes(self) -> dict[str, Any]:
        return dict(self.study.user_attrs)


def _ranking(plan: _Plan, study: Any, fresh: dict[int, dict[int, float | None]]) -> list[Found]:
    """Re-run trials first, by their honest score; then the others, by the search's."""
    complete = study.get_trials(deepcopy=False, states=(optuna().trial.TrialState.COMPLETE,))
    found = [Found(t.number, t.value, plan.chosen(t), _mean(t), fresh.get(t.number, {})) for t in complete]

    def place(one: Found) -> tuple[bool, float, float]:
        return one.honest is None, -(one.score if one.honest is None else one.honest), -one.on_the_way

    return sorted(found, key=place)


def _mean(trial: Any) -> float:
    scores = trial.intermediate_values.values()
    return statistics.fmean(scores) if scores else float(trial.value)


def _result(
    plan: _Plan, study: Any, ledger: Ledger, status: str, fresh: dict[int, dict[int, float | None]]
) -> SearchResult:
    ranking, lost = _ranking(plan, study, fresh), ledger.lost()
    if not ranking and status == "finished":
        errors = [words for key, words in study.user_attrs.items() if key.startswith("error:")]
        raise EnvFailed(f"no trial came to its end; the last said: {errors[-1] if errors else 'nothing'}")
    failed = {trial.number for trial in ledger.trials("FAIL")}
    counts = {"complete": len(ranking), "pruned": len(ledger.trials("PRUNED"))}
    counts |= {"failed": len(failed - lost), "lost": len(lost), "running": len(ledger.trials("RUNNING"))}
    preset = plan.preset(ranking[0]) if ranking else {}
    return SearchResult(plan.algorithm, plan.config.env, plan.folder, status, counts, ranking, preset, study)


def _pruner(config: SearchConfig) -> Any:
    pruners = optuna().pruners
    if config.pruner == "median":  # not before five trials are complete, nor in the first fifth of a trial
        return pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=config.reports // 5 + 1)
    if config.pruner == "hyperband":
        return pruners.HyperbandPruner(min_resource=1, max_resource=config.reports, reduction_factor=3)
    return pruners.NopPruner()
