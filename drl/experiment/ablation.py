"""Ablation: add every switch of an algorithm alone to the plain one, and remove it alone from the full one."""

import concurrent.futures
import contextlib
import functools
import json
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np

from drl.core.algorithms import ALGORITHMS, find_algorithm
from drl.core.errors import BadInput, EnvFailed, Interrupted
from drl.core.state_files import PlainDict, write_json
from drl.experiment.ablation_picture import draw_ablation
from drl.experiment.config import Experiment
from drl.experiment.evaluation import evaluate
from drl.experiment.finished import Finished
from drl.experiment.stop_signals import STATUS
from drl.tracking.forest_plots import interval_of
from drl.tracking.job_bar import JobBar
from drl.tracking.job_table import JobTable

Switches = Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]]  # name → settings when on, when off


class Row(TypedDict):
    """One variant in the table of an ablation."""

    variant: str
    mean_return: float
    low_95: float | None  # ends of the 95 % interval; None with fewer than three seeds
    high_95: float | None
    returns: list[float]  # of each seed


def variants(switches: Switches) -> dict[str, PlainDict]:
    """Name → settings: plain, plain + one, full, full − one."""

    def settings(on: set[str]) -> PlainDict:
        merged: PlainDict = {}
        for name, (yes, no) in switches.items():
            merged |= yes if name in on else no
        return merged

    everything = set(switches)
    named = {"plain": settings(set())} | {f"plain + {name}": settings({name}) for name in switches}
    named |= {"full": settings(everything)}
    return named | {f"full - {name}": settings(everything - {name}) for name in switches}


def ablate(base: Experiment, seeds: int, workers: int | None = None, episodes: int = 50) -> tuple[Path, list[Row]]:
    """Run every variant with every seed, `workers` at a time (1, or all on a cluster). Writes a table of evaluations,
    best first, and a plot.

    The folder is `results/<name>/`; each variant has a folder inside it. Finished runs are not repeated, so a stopped
    ablation continues.
    """
    switches = find_algorithm(base.algorithm).switches
    if not switches:
        able = ", ".join(record.name for record in ALGORITHMS.values() if record.switches)
        raise BadInput(f"ablate is for {able}, whose parts are switches; {base.algorithm} has none")
    folder = Path(base.run.results_dir) / (base.run.name or f"{base.run.env.replace('/', '_')}_ablation")
    jobs = [(name, seed) for seed in range(seeds) for name in variants(switches)]
    missing = [(name, seed) for name, seed in jobs if not _result(folder, name, seed).exists()]
    scores: Iterator[tuple[str, int, float]]
    with contextlib.ExitStack() as stack:
        there = len(jobs) - len(missing)
        if base.scaling.cluster is None:
            pool = stack.enter_context(concurrent.futures.ProcessPoolExecutor(workers or 1))
            futures = {pool.submit(_run, base, folder, *each, episodes): each for each in missing}
            bar = stack.enter_context(JobBar(base.run.quiet))  # after the workers, whose output it must not catch
            scores = ((*futures[future], future.result()) for future in concurrent.futures.as_completed(futures))
        else:
            bar = progress = stack.enter_context(JobTable(base.run.quiet))
            answers = _on_cluster(base, folder, missing, episodes, progress, workers)
            scores = stack.enter_context(contextlib.closing(answers))
        bar.begin("ablation", len(jobs), there)
        for name, seed, score in scores:
            bar.advance(f"{name:24} seed {seed}  {score:8.2f}")
    results = {name: [_read(folder, name, seed) for seed in range(seeds)] for name in variants(switches)}
    table = _table(results)
    write_json(folder / "ablation.json", table)
    runs = {name: [folder / name / result["run"] for result in each] for name, each in results.items()}
    draw_ablation(runs, {row["variant"]: row["returns"] for row in table}, list(switches), folder / "ablation.png")
    return folder, table


def _run(base: Experiment, folder: Path, name: str, seed: int, episodes: int) -> float:
    """Train one seed of one variant and return the mean return of its evaluation."""
    from drl.experiment.launch import train

    finished = train(_experiment(base, folder, name, seed), console=False)
    return _keep(folder, name, seed, finished.folder, _evaluated(finished, base, seed, episodes))


def _on_cluster(
    base: Experiment,
    folder: Path,
    missing: list[tuple[str, int]],
    episodes: int,
    table: JobTable,
    workers: int | None,
) -> Generator[tuple[str, int, float]]:
    """`_run` on the nodes of a cluster. If runs fail the others go on, and the first error is raised at the end."""
    from drl.experiment.cluster_runs import RunJob, alone, train_on_cluster

    jobs, orders, failed, stopped = dict[str, tuple[str, int]](), list[RunJob](), list[str](), list[int]()
    for name, seed in missing:
        # A run that is lost with its node goes on from here.
        one = _experiment(alone(base), folder, name, seed, keep_checkpoints=1)
        jobs[label := f"{name}, seed {seed}"] = (name, seed)
        after = functools.partial(_evaluated, base=base, seed=seed, episodes=episodes)
        orders.append(RunJob(label, one, after=after))
    for job, answer in train_on_cluster(orders, base.scaling, table, workers):
        name, seed = jobs[job.name]
        if answer.folder is None:
            failed.append(f"{job.name}: {answer.error}")
        elif answer.result is None:
            stopped += [number for number, status in STATUS.items() if status == answer.status]
        else:
            yield name, seed, _keep(folder, name, seed, answer.folder, answer.result)
    if failed:
        raise EnvFailed(f"{len(failed)} of {len(orders)} runs failed; {failed[0]}; the same command repeats them")
    if stopped:
        raise Interrupted(stopped[0])


def _experiment(base: Experiment, folder: Path, name: str, seed: int, keep_checkpoints: int = 0) -> Experiment:
    lean: PlainDict = {"quiet": True, "video": False, "plots": False, "tensorboard": False}
    lean |= {"evaluate_every": 0, "keep_checkpoints": keep_checkpoints, "num_checkpoints": 0}
    run = base.run
    place: PlainDict = {"seed": seed, "name": name, "results_dir": str(folder)}
    if run.wandb_project is not None or run.mlflow_experiment is not None:
        place["group"] = run.group or folder.name
    flat = base.to_flat() | variants(find_algorithm(base.algorithm).switches)[name] | lean | place
    return Experiment.from_flat(flat, name)


def _evaluated(finished: Finished, base: Experiment, seed: int, episodes: int) -> PlainDict:
    return dict(evaluate(finished.agent, base.run.env_config, episodes, seed=10_000 + seed).summary())


def _keep(folder: Path, name: str, seed: int, run: Path, summary: PlainDict) -> float:
    write_json(_result(folder, name, seed), summary | {"seed": seed, "run": run.name})
    return float(summary["mean_return"])


def _result(folder: Path, name: str, seed: int) -> Path:
    return folder / name / f"seed_{seed}.json"


def _read(folder: Path, name: str, seed: int) -> PlainDict:
    result: PlainDict = json.loads(_result(folder, name, seed).read_text())
    return result


def _table(results: Mapping[str, list[PlainDict]]) -> list[Row]:
    rows: list[Row] = []
    for name, of_seeds in results.items():
        returns = [float(result["mean_return"]) for result in of_seeds]
        mean, low, high = interval_of(np.array(returns))
        rows.append({"variant": name, "mean_return": mean, "low_95": low, "high_95": high, "returns": returns})
    return sorted(rows, key=lambda row: -row["mean_return"])
