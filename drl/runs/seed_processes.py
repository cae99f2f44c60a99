"""Several seeds, each in a process of its own: on this machine, or on the nodes of a cluster."""

import contextlib
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from drl.agents.load_agent import load_agent
from drl.core.agent_files import open_agent
from drl.runs.extras import Extras
from drl.runs.folder.finished import Finished
from drl.runs.many_runs import RunFailed, progress_of, train_many
from drl.runs.packed_run import Answer
from drl.settings.experiment import Experiment


def train_in_processes(experiment: Experiment, extras: Extras, console: bool) -> list[Finished]:
    """Train every seed, `workers` at a time; the runs in the order of their seeds. A signal is passed on: every run is
    saved, and no other is started. If runs fail the others go on, and the first error is raised at the end."""
    config, answers, quiet = experiment.run, dict[str, Answer](), experiment.run.quiet or not console
    seeds = config.all_seeds
    if config.wandb_project is not None or config.mlflow_experiment is not None:
        together = config.group or f"{experiment.algorithm}_{config.env}_seeds_{'_'.join(map(str, seeds))}"[:100]
        config = replace(config, group=together)
    runs = {f"seed {seed}": replace(experiment, run=config.with_seed(seed)) for seed in seeds}
    with (
        progress_of(experiment.scaling, quiet) as bar,
        contextlib.closing(train_many(runs, experiment.scaling, bar, config.workers, extras)) as ended,
    ):
        bar.begin(f"{len(seeds)} seeds" if len(seeds) > 1 else "1 run", len(seeds), 0)
        for name, answer in ended:
            answers[name] = answer
            score = f", mean return {answer.evaluation['mean_return']:.2f}" if answer.evaluation else ""
            bar.advance(f"{name}: {answer.error or answer.status}{score}")
    told = {name: answers[name] for name in runs if name in answers}
    for name, answer in told.items():
        if answer.folder is None:
            raise RunFailed(f"{name}: {answer.error}", answer)
    return [
        Finished(answer.folder, _agent_of(answer.folder, extras.model), None, answer.status, answer.evaluation)
        for answer in told.values()
        if answer.folder is not None
    ]


def _agent_of(folder: Path, model: Any) -> Any:
    """The agent of a run. A user's own module is filled with the weights, so every agent gets its own."""
    is_model = any(hasattr(model, method) for method in ("parameters", "apply")) and not isinstance(model, type)
    if model is not None and not is_model:  # it makes models
        stored = open_agent(folder)
        model = model(stored.obs_spec, stored.action_spec)
    return load_agent(folder, copy.deepcopy(model))
