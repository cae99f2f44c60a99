"""Groups of runs that may be averaged: runs of one experiment folder that differ at most in the seed."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from drl.core.errors import DrlError
from drl.core.safe_files import MOST_SETTINGS, parse_yaml, read_inside
from drl.core.specs import PlainDict

# Settings that do not change what is learned. Runs that differ only in these count as repetitions.
OF_ONE_RUN = {
    "seed", "num_seeds", "name", "results_dir", "quiet", "threads", "plots", "video", "tensorboard", "wandb_project",
    "evaluate_every", "evaluation_episodes", "checkpoint_every", "keep_checkpoints", "num_checkpoints", "max_minutes",
    "best_after", "compile", "checkpoint_minutes", "checkpoint_rows", "fallback_dir", "record_episodes",
    "worker_timeout", "mlflow_experiment", "group", "license", "log_every", "info_keys",
}  # fmt: skip
SHOWN = 4  # most settings named in a label
FORKED_AT = "forked_at"  # the step at which a fork begins, named like a setting


def grouped_runs(run_dirs: Sequence[Path], labels: Sequence[str] | None = None) -> dict[str, list[Path]]:
    """Map labels to runs that are repetitions. A label is the experiment's name and the settings that differ.

    `labels`, one per run, replace the experiments: only runs with the same label may be repetitions.
    Runs without a readable `config.yaml` count as equal. A run that is given twice counts once.
    """
    folders = [run_dir.resolve().parent for run_dir in run_dirs]
    names = distinct_names(list(dict.fromkeys(folders))) if folders else {}
    labels = [names[folder] for folder in folders] if labels is None else labels
    groups: dict[tuple[str, str], list[Path]] = {}
    settings: dict[tuple[str, str], PlainDict] = {}
    for run_dir, label in zip(run_dirs, labels, strict=True):
        own = learning_settings(run_dir)
        key = (label, json.dumps(own, sort_keys=True, default=str))
        group = groups.setdefault(key, [])
        if run_dir.resolve() not in [other.resolve() for other in group]:
            group.append(run_dir)
        settings[key] = own
    labeled: dict[str, list[Path]] = {}
    for key, runs in groups.items():
        siblings = [other for (label, _), other in zip(groups, settings.values(), strict=True) if label == key[0]]
        text = ", ".join([key[0], *_differing(settings[key], siblings)])
        numbered = (f"{text} ({number})" for number in itertools.count(2))
        # Groups that differ only in settings that are not shown still get distinct labels.
        labeled[next(each for each in itertools.chain([text], numbered) if each not in labeled)] = runs
    return labeled


def _differing(own: PlainDict, all_of_them: list[PlainDict]) -> list[str]:
    """Return `name=value` of the settings that distinguish a group from its siblings."""
    names = dict.fromkeys(name for one in all_of_them for name in one)
    distinct = [name for name in names if any(one.get(name) != own.get(name) for one in all_of_them)]
    shown = [f"{name}={_short(own.get(name))}" for name in distinct[:SHOWN] if name in own or name != FORKED_AT]
    return shown + ([f"and {len(distinct) - SHOWN} more"] if len(distinct) > SHOWN else [])


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def learning_settings(run_dir: Path) -> PlainDict:
    """Return the settings that a run has in common with its repetitions."""
    path = run_dir / "config.yaml"
    try:
        content = parse_yaml(read_inside(run_dir, path, MOST_SETTINGS)) if path.is_file() else None
    except ValueError:
        content = None
    settings = {str(k): v for k, v in content.items() if k not in OF_ONE_RUN} if isinstance(content, dict) else {}
    origin = origin_of(run_dir)  # a fork continues another run and does not repeat it
    return settings if origin is None else settings | {FORKED_AT: origin.env_steps}


class Origin(NamedTuple):
    """Where a fork begins."""

    run_dir: Path  # the other run
    env_steps: int


def origin_of(run_dir: Path) -> Origin | None:
    """Return the origin of a fork; None if the run is not a fork."""
    try:
        origin = json.loads(read_inside(run_dir, run_dir / "run.json"))["forked_from"]
        return Origin(run_dir.resolve().parent / Path(origin["run"]).name, int(origin["env_steps"]))
    except (DrlError, ValueError, KeyError, TypeError):
        return None


def distinct_names(folders: list[Path]) -> dict[Path, str]:
    """Return the last part of each path, or as many parts as needed to make them distinct."""
    for parts in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = {folder: "/".join(folder.parts[-parts:]) for folder in folders}
        if len(set(names.values())) == len(folders):
            break
    return names
