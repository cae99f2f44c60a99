"""Which boards a run has: TensorBoard, W&B, MLflow."""

import importlib.util
import os
import secrets
from pathlib import Path

from drl.core.errors import BadInput, MissingExtra
from drl.runs.run_folder import Run
from drl.settings.experiment import Experiment, RunConfig
from drl.tracking.files import read_metrics
from drl.tracking.guarded import Board
from drl.tracking.mlflow_runs import MlflowTracker
from drl.tracking.tensorboard_events import TensorBoardTracker
from drl.tracking.wandb_runs import WandbTracker


def check_boards(config: RunConfig) -> None:
    """Raise if a library is missing, before anything is written."""
    if config.wandb_project is not None and importlib.util.find_spec("wandb") is None:
        raise MissingExtra("tracking with Weights & Biases", "wandb", "wandb")
    if config.mlflow_experiment is not None and importlib.util.find_spec("mlflow") is None:
        raise MissingExtra("tracking with MLflow", "mlflow", "mlflow")


def check_server(mlflow_experiment: str | None) -> None:
    """Raise if runs on other machines would each have an MLflow of their own."""
    if mlflow_experiment is not None and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise BadInput("mlflow_experiment on a cluster needs a server that all nodes reach; set MLFLOW_TRACKING_URI")


def boards_of(experiment: Experiment, run: Run, group: str | None = None) -> list[Board]:
    """The boards of a new run, or those of the process that this one continues. `group`: of several seeds."""
    config, boards = experiment.run, list[Board]()
    if config.tensorboard:
        boards.append(TensorBoardTracker(run.folder / "tensorboard", experiment.to_flat()))
    wanted = {"wandb_id": config.wandb_project, "mlflow_id": config.mlflow_experiment}
    wanted = {name: where for name, where in wanted.items() if where is not None}
    if not wanted:
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
