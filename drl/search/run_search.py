"""`search`: better settings for an algorithm on an environment, by many short runs. Needs Optuna (extra `search`)."""

import contextlib
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from drl.algorithms.search_dimensions import Space
from drl.core.errors import EnvFailed, html_table
from drl.core.processes import LocalProcesses
from drl.core.specs import PlainDict
from drl.runs.stop_signals import StopSignals
from drl.search.search_plan import Found, SearchConfig, SearchPlan, merged, starting_point
from drl.search.search_report import SHOWN, Commands, Display, write_report
from drl.search.search_worker import WORK, Job, Outcome, TrialPool
from drl.search.study import STOPPED, Ledger, claim, open_study, optuna, release, seed_number, storage_errors
from drl.settings.presets import load_preset
from drl.tracking.jobs import JobBar, JobTable

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.pruners import BasePruner
    from optuna.trial import FrozenTrial


FRESH_SEEDS = 1_000_003  # first seed of the re-runs, far from the seeds of the trials


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
        return _search(plan, study, commands or Commands(), console)


def _search(plan: SearchPlan, study: "Study", commands: Commands, console: bool) -> SearchResult:
    config, ledger = plan.config, Ledger(study)
    with (
        StopSignals() as signals,
        Display(config, plan.name) as display,
        contextlib.ExitStack() as stack,
    ):
        pool = stack.enter_context(_open_pool(config, display.bar))
        lost = ledger.fail_stale()
        ledger.ask_again()
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial(starting_point(plan.space, plan.start_flat))
        finished = len(ledger.trials("COMPLETE", "PRUNED", "FAIL")) - len(ledger.lost())
        display.begin(finished, lost, ledger.trials("COMPLETE"))
        if why := pool.check(plan.fixed() | plan.budget):
            display.bar.say(f"trials run in this process, because a worker process cannot: {why}")
        work = _Work(plan, study, ledger, pool, signals, display)
        work.run_trials()
        fresh = work.run_again(_ranking(plan, study, {})[: config.rerun_best])
    result = _result(plan, study, ledger, signals.status, fresh)
    write_report(result, config, commands, console)
    return result


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

    def __init__(
        self, plan: SearchPlan, study: "Study", ledger: Ledger, pool: TrialPool, signals: StopSignals, display: Display
    ):
        self.plan, self.study, self.ledger = plan, study, ledger
        self.pool, self.signals, self.display = pool, signals, display
        self.running: dict[int, Trial] = {}

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

        for job, outcome in self.pool.run(next_job, lambda *_: False, self._stop):
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


def _ranking(plan: SearchPlan, study: "Study", fresh: dict[int, dict[int, float | None]]) -> list[Found]:
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
    plan: SearchPlan, study: "Study", ledger: Ledger, status: str, fresh: dict[int, dict[int, float | None]]
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
