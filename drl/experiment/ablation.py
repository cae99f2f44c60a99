"""Ablation: add every switch of an algorithm alone to the plain one, and remove it alone from the full one."""

import concurrent.futures
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np

from drl.core.algorithms import ALGORITHMS, find_algorithm
from drl.core.errors import BadInput
from drl.core.state_files import PlainDict, write_json
from drl.experiment.config import Experiment
from drl.experiment.evaluation import evaluate
from drl.tracking.curves import t_975
from drl.tracking.job_bar import JobBar
from drl.tracking.plots import plot_compare

Switches = Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]]  # name → settings when on, when off


class Row(TypedDict):
    """One variant in the table of an ablation."""

    variant: str
    mean_return: float
    half_width_95: float | None  # None with a single seed


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


def ablate(base: Experiment, seeds: int, workers: int = 1, episodes: int = 50) -> tuple[Path, list[Row]]:
    """Run every variant with every seed. Writes a table of evaluations, best first, and a plot with 95 % bands.

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
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        futures = {pool.submit(_run, base, folder, name, seed, episodes): (name, seed) for name, seed in missing}
        with JobBar(base.run.quiet) as bar:  # after the workers have started, whose output it must not catch
            bar.begin("ablation", len(jobs), len(jobs) - len(missing))
            for future in concurrent.futures.as_completed(futures):
                name, seed = futures[future]
                bar.advance(f"{name:24} seed {seed}  {future.result():8.2f}")
    table = _table(folder, list(variants(switches)), seeds)
    write_json(folder / "ablation.json", table)
    runs = [run.parent for name in variants(switches) for run in sorted((folder / name).glob("*/run.json"))]
    plot_compare(runs, folder / "ablation.png")
    return folder, table


def _run(base: Experiment, folder: Path, name: str, seed: int, episodes: int) -> float:
    """Train one seed of one variant and return the mean return of its evaluation."""
    from drl.experiment.launch import train

    lean: PlainDict = {"quiet": True, "video": False, "plots": False, "tensorboard": False}
    lean |= {"evaluate_every": 0, "keep_checkpoints": 0, "num_checkpoints": 0}
    run = base.run
    place: PlainDict = {"seed": seed, "name": name, "results_dir": str(folder)}
    if run.wandb_project is not None or run.mlflow_experiment is not None:
        place["group"] = run.group or folder.name
    flat = base.to_flat() | variants(find_algorithm(base.algorithm).switches)[name] | lean | place
    experiment = Experiment.from_flat(flat, name)
    finished = train(experiment, console=False)
    summary = evaluate(
        finished.agent,
        run.env,
        episodes,
        seed=10_000 + seed,
        frame_stack=run.frame_stack,
        env_kwargs=run.env_arguments,
    ).summary()
    write_json(_result(folder, name, seed), summary | {"seed": seed, "run": finished.folder.name})
    return float(summary["mean_return"])


def _result(folder: Path, name: str, seed: int) -> Path:
    return folder / name / f"seed_{seed}.json"


def _table(folder: Path, names: list[str], seeds: int) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        files = [_result(folder, name, seed) for seed in range(seeds)]
        returns = np.array([json.loads(file.read_text())["mean_return"] for file in files])
        half = None
        if seeds > 1:
            half = float(t_975(np.array(seeds - 1)) * returns.std(ddof=1) / np.sqrt(seeds))
        rows.append({"variant": name, "mean_return": float(returns.mean()), "half_width_95": half})
    return sorted(rows, key=lambda row: -row["mean_return"])
