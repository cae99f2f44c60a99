"""`search`: better settings for an algorithm on an environment, by many short runs. Needs Optuna (extra `search`)."""

import contextlib
import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from drl.algorithms.search_dimensions import Choice, Dimension, Real, Space
from drl.core.errors import BadInput, EnvFailed, html_table
from drl.core.processes import LocalProcesses
from drl.core.setting_rules import plain_setting
from drl.core.settings import AlgorithmName, SearchSettings
from drl.core.specs import PlainDict, PlainValue
from drl.envs.env_config import EnvLike
from drl.envs.env_names import WrapperLike
from drl.envs.spaces import EnvKwargs
from drl.runs.stop_signals import StopSignals
from drl.search.search_plan import Found, SearchConfig, SearchPlan, merged, starting_point
from drl.search.search_report import SHOWN, Commands, Display, write_report
from drl.search.search_worker import WORK, Job, Outcome, TrialPool
from drl.search.study import STOPPED, Ledger, claim, open_study, optuna, release, seed_number, storage_errors
from drl.settings.layering import env_settings
from drl.settings.presets import load_preset
from drl.tracking.jobs import JobBar, JobTable

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.pruners import BasePruner

FRESH_SEEDS = 1_000_003  # first seed of the re-runs, far from the seeds of the trials
Scores = dict[int, dict[int, float | None]]  # trial → seed → score of a re-run; None if it failed


@dataclass(frozen=True, repr=False)
class SearchResult:
    """The result of a search. A notebook shows the best trials as a table."""

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

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {state}" for state, count in self.counts.items() if count)
        best = f"; best: trial {self.best.number}, score {self.best.score:.2f}" if self.ranking else ""
        return f"search {self.algorithm} on {self.env}, {self.status}: {counts or 'no trials'}{best} ({self.folder})"

    def __repr__(self) -> str:
        return f"SearchResult({self})"

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for each in self.ranking[:SHOWN] for name in each.settings))
        rows = [
            (each.number, each.score, "" if each.honest is None else each.honest, *(map(each.settings.get, names)))
            for each in self.ranking[:SHOWN]
        ]
        return html_table(("trial", "score", "score on fresh seeds", *names), rows, str(self))


def search(
    algorithm: AlgorithmName = "ppo",
    env: EnvLike = "CartPole-v1",
    *,
    env_kwargs: EnvKwargs | None = None,
    wrappers: Iterable[WrapperLike] | None = None,
    search_space: Mapping[str, Dimension | list[PlainValue]] | None = None,
    preset: bool = True,
    console: bool = True,
    **settings: Unpack[SearchSettings],
) -> SearchResult:
    """Search, or continue a search. `settings` are those of `drl search` (`n_trials`, …) and those of the run, which
    stay fixed; for a setting that is searched they are the starting point.

    `search_space` replaces the algorithm's: by the name of a setting a `Real(low, high)`, drawn on a logarithmic scale,
    or a list of values. `console=False` prints nothing.
    """
    plain = {name: plain_setting(value) for name, value in settings.items()}
    own = {field.name for field in dataclasses.fields(SearchConfig)} & plain.keys()
    described = env_settings(env, env_kwargs, wrappers)
    config = SearchConfig(env=described.pop("env"), **{name: plain.pop(name) for name in own})
    space: Space | None = None
    if search_space is not None:
        dimensions = {
            name: Choice(tuple(each)) if isinstance(each, list) else each for name, each in search_space.items()
        }
        for name, each in dimensions.items():
            if not isinstance(each, Real | Choice) or (isinstance(each, Choice) and not each.options):
                raise BadInput(f"search_space has {name}: {each!r:.80}; expected Real(low, high) or a list of values")
        space = dimensions
    result = run_search(algorithm, config, described | plain, use_preset=preset, space=space, console=console)
    if result.status != "finished" and console and not config.quiet:
        print(f"resume: the same drl.search(…) continues {result.folder}", flush=True)
    return result


def run_search(
    algorithm: str,
    config: SearchConfig,
    settings: PlainDict | None = None,
    use_preset: bool = True,
    options: Mapping[str, tuple[object, ...]] | None = None,
    own_study: bool = False,
    space: Space | None = None,
    commands: Commands | None = None,
    console: bool = True,
) -> SearchResult:
    """Search, or continue a search. `console=False` prints nothing.

    `settings` (flat names) override the pair's preset and stay fixed; for a setting that is searched they are the
    starting point. `options` narrows the choices of a setting; `space` replaces all of them. With `own_study` every
    budget and combination of settings has its own study. `commands` are named in `best.yaml`.
    """
    optuna()
    config = config if console else replace(config, quiet=True)
    preset = (load_preset(algorithm, config.env) or {}) if use_preset else {}
    plan = SearchPlan(algorithm, config, merged(preset, settings or {}), options or {}, own_study, space)
    with storage_errors(config.storage or str(plan.folder / "study.db")), contextlib.ExitStack() as stack:
        study = open_study(config.storage, plan.folder, plan.name, config.seed, _pruner(config))
        stack.callback(release, study)
        claim(study, plan.belongs())
        with StopSignals() as signals, Display(config, plan.name) as display, _open_pool(config, display.bar) as pool:
            work = _Work(plan, study, pool, signals, display)
            fresh = work.run_all()
        result = work.result(signals.status, fresh)
        write_report(result, config, commands or Commands(), console)
        return result


def _pruner(config: SearchConfig) -> "BasePruner":
    pruners = optuna().pruners
    if config.pruner == "median":  # not before five complete trials, nor in the first fifth of a trial
        return pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=config.reports // 5 + 1)
    if config.pruner == "hyperband":
        return pruners.HyperbandPruner(min_resource=1, max_resource=config.reports, reduction_factor=3)
    return pruners.NopPruner()


@contextlib.contextmanager
def _open_pool(config: SearchConfig, bar: JobBar) -> Iterator[TrialPool]:
    """The workers of a search, here or on its cluster, whose modules only a search on a cluster imports."""
    silence = 60 * config.trial_timeout
    if config.cluster is None:
        with contextlib.closing(TrialPool(LocalProcesses(WORK, patience=1.0), config.n_jobs, silence)) as pool:
            yield pool
        return
    from drl.cluster.node_process import Needs, open_nodes

    assert isinstance(bar, JobTable)
    needs, size = Needs(config.cpus_per_run, config.gpus_per_run), min(config.n_jobs, config.n_trials)
    wanted = f"{needs.cpus:g} CPU and {needs.gpus:g} GPU"
    with (
        open_nodes(config.cluster, WORK, needs) as nodes,
        contextlib.closing(TrialPool(nodes, size, silence, bar, wanted)) as pool,
    ):
        yield pool


class _Work:
    """The two rounds of jobs: trials, then re-runs of the best."""

    def __init__(self, plan: SearchPlan, study: "Study", pool: TrialPool, signals: StopSignals, display: Display):
        self.plan, self.study, self.ledger = plan, study, Ledger(study)
        self.pool, self.signals, self.display = pool, signals, display
        self.running: dict[int, Trial] = {}

    def run_all(self) -> Scores:
        """Run the missing trials, then re-run the best; returns the scores of the re-runs."""
        ledger, plan, display = self.ledger, self.plan, self.display
        lost = ledger.fail_stale()
        ledger.ask_again()
        if not self.study.get_trials(deepcopy=False):
            self.study.enqueue_trial(starting_point(plan.space, plan.start_flat))
        finished = len(ledger.trials("COMPLETE", "PRUNED", "FAIL")) - len(ledger.lost())
        display.begin(finished, lost, ledger.trials("COMPLETE"))
        if why := self.pool.check(plan.fixed() | plan.budget):
            display.bar.say(f"trials run in this process, because a worker process cannot: {why}")
        self.run_trials()
        return self._run_again(self._ranking({})[: plan.config.rerun_best])

    def run_trials(self) -> None:
        try:
            for job, outcome in self.pool.run(self._next_trial, self._report, self._stop):
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
        trial = self.running.pop(job.number)
        if outcome.state == "complete":
            self.study.tell(trial, outcome.score, skip_if_finished=True)
        elif outcome.state == "pruned":
            self.study.tell(trial, state=optuna().trial.TrialState.PRUNED, skip_if_finished=True)
        else:
            error = STOPPED if outcome.state == "stopped" else outcome.error
            self.ledger.fail(job.number, error, lost=outcome.state in ("lost", "stopped"))
        self.display.ended(job, outcome)

    def _stop(self) -> bool:
        self.ledger.sign_of_life()
        return self.signals.seen is not None

    def _run_again(self, best: list[Found]) -> Scores:
        """Scores by trial and seed. The study keeps them, so a finished re-run is not repeated."""
        config, study = self.plan.config, self.study
        seeds = [FRESH_SEEDS + config.seed + i for i in range(config.rerun_seeds)]
        runs = {f"again:{found.number}:{seed}": (found, seed) for found in best for seed in seeds}
        missing = [run for key, run in runs.items() if key not in study.user_attrs]
        self.display.again(len(missing))
        queue = iter([self.plan.job(found.number, found.settings, seed, 1) for found, seed in missing])
        for job, outcome in self.pool.run(lambda: next(queue, None), lambda *_: False, self._stop):
            if outcome.state in ("complete", "failed"):
                study.set_user_attr(f"again:{job.number}:{job.settings['seed']}", [outcome.score, outcome.error])
            self.display.ended_again(job, outcome)
        scores, fresh = study.user_attrs, {found.number: dict[int, float | None]() for found in best}
        for key, (found, seed) in runs.items():
            if key in scores:
                fresh[found.number][seed] = scores[key][0]
        return fresh

    def _ranking(self, fresh: Scores) -> list[Found]:
        """Re-run trials first, by honest score; then the others, by search score."""
        found = []
        for trial in self.ledger.trials("COMPLETE"):
            if trial.value is not None:
                mean = statistics.fmean(trial.intermediate_values.values() or trial.values)
                scores = fresh.get(trial.number, {})
                found.append(Found(trial.number, trial.value, self.plan.chosen(trial), mean, scores))

        def place(one: Found) -> tuple[bool, float, float]:
            return one.honest is None, -(one.score if one.honest is None else one.honest), -one.on_the_way

        return sorted(found, key=place)

    def result(self, status: str, fresh: Scores) -> SearchResult:
        plan, study, ledger = self.plan, self.study, self.ledger
        ranking, lost = self._ranking(fresh), ledger.lost()
        if not ranking and status == "finished":
            errors = [text for key, text in study.user_attrs.items() if key.startswith("error:")]
            raise EnvFailed(f"every trial failed; the last error: {errors[-1] if errors else 'none'}")
        failed = {trial.number for trial in ledger.trials("FAIL")}
        counts = {"complete": len(ranking), "pruned": len(ledger.trials("PRUNED"))}
        counts |= {"failed": len(failed - lost), "lost": len(lost), "running": len(ledger.trials("RUNNING"))}
        preset = plan.preset(ranking[0]) if ranking else {}
        return SearchResult(plan.algorithm, plan.config.env, plan.folder, status, counts, ranking, preset, study)
