"""Scores by algorithm, environment and seed, read from folders of runs. Runs left out are named with reasons."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from drl.core.errors import BadInput, DrlError, plural
from drl.core.setting_rules import is_score
from drl.core.specs import PlainDict, PlainValue
from drl.runs.folder.run_folder import read_record, read_settings, runs_in
from drl.tracking.curves import distinct_names, learning_settings
from drl.tracking.files import read_metrics

SCORES = ("auto", "evaluation", "training")
BUDGETS = ("total_timesteps", "num_episodes", "stop_at_return", "max_minutes")


class RunScore(NamedTuple):
    """One finished run."""

    folder: Path
    env: str
    seed: int
    score: float | None  # mean return of the final evaluation
    episodes: int | None  # episodes of the final evaluation
    budget: str
    early: str | None  # how it ended early; None: it used its whole budget
    algorithm: str
    settings: str  # settings that repetitions share, apart from the budget


@dataclass
class ScoreTable:
    """Scores of algorithms that can be compared."""

    scores: dict[str, dict[str, dict[int, float]]]  # label → environment → seed → score
    score_is: str  # description for the user
    left_out: list[str] = field(default_factory=list)  # runs with reasons
    notes: list[str] = field(default_factory=list)


def read_scores(
    given: Sequence[Path], labels: Sequence[str] = (), score: str = "auto", mixed_budgets: bool = False
) -> ScoreTable:
    """Read scores. Each folder holds the runs of one algorithm; folders with the same label belong together."""
    left_out, notes = list[str](), list[str]()
    found = {folder: list(_finished(folder, left_out)) for folder in given}
    names = _labels(found, labels)
    runs = [(names[folder], run) for folder, each in found.items() for run in each]
    kind = _score_kind(score, runs)
    runs = _of_one_budget(_with_scores(runs, kind, left_out), mixed_budgets, left_out, notes)
    _check_settings(runs)
    table = _tabulated(runs, left_out)
    for label in names.values():
        if label not in table:
            own = tuple(f"{folder}{end}" for folder, name in names.items() if name == label for end in ("/", ":"))
            why = next((f"; {reason}" for reason in left_out if reason.startswith(own)), "")
            raise BadInput(f"{label} has no run that can be compared{why}")
    words = "mean return of the last training episodes, not of an evaluation"
    if kind == "evaluation":
        episodes = sorted({run.episodes or 0 for _, run in runs})
        words = f"mean return of the final evaluation ({' or '.join(map(str, episodes))} episodes)"
    return ScoreTable({label: table[label] for label in dict.fromkeys(names.values())}, words, left_out, notes)


def runs_below(folder: Path) -> list[Path]:
    """Return the run at `folder`, or the runs in it or in its experiment folders."""
    if (folder / "run.json").exists():
        return [folder]
    runs = runs_in(folder) or [run for each in sorted(folder.glob("*/")) for run in runs_in(each)]
    if not runs:
        raise BadInput(f"{folder} holds no runs: expected {folder}/<run>/run.json; see `ls results/`")
    return runs


def _finished(folder: Path, left_out: list[str]) -> Iterator[RunScore]:
    for run in runs_below(folder):
        try:
            record, settings = read_record(run), read_settings(run)
        except DrlError as error:
            left_out.append(f"{run}: {error}")
            continue
        if record.get("status") != "finished":
            why = f" ({record['error']!s:.100})" if "error" in record else ""
            left_out.append(f"{run}: {record.get('status', 'unfinished')}{why}")
        elif not isinstance(_budget(settings), int):
            left_out.append(f"{run}: its budget is {_budget(settings)!r:.80}, which is no number")
        else:
            yield _score_of(run, record, settings)


def _budget(settings: PlainDict) -> PlainValue:
    return settings.get("num_episodes") or settings.get("total_timesteps") or 100_000


def _score_of(run: Path, record: PlainDict, settings: PlainDict) -> RunScore:
    evaluation = record.get("final_evaluation")
    evaluation = evaluation if isinstance(evaluation, dict) else {}
    episodes = evaluation.get("episodes")
    lists = [settings.get(name) for name in ("env_kwargs", "wrappers")]
    extras = [each for items in lists if isinstance(items, list) for each in items]
    env = str(settings.get("env")) + (f" ({', '.join(map(str, extras))})" if extras else "")
    unit = "episodes" if settings.get("num_episodes") else "env_steps"
    budget, used = _budget(settings), record.get(unit)
    ended = isinstance(used, int) and used < budget
    words = unit.removeprefix("env_")
    return RunScore(
        folder=run,
        env=env,
        seed=int(record.get("seed", 0)),
        score=_number(evaluation.get("mean_return")),
        episodes=episodes if isinstance(episodes, int) else None,
        budget=f"{budget:,} {words}",
        early=f"it ended after {used:,} of {budget:,} {words}" if ended else None,
        algorithm=str(settings.get("algorithm")),
        settings=json.dumps(
            {name: value for name, value in learning_settings(run).items() if name not in BUDGETS},
            sort_keys=True,
            default=str,
        ),
    )


def _labels(found: dict[Path, list[RunScore]], labels: Sequence[str]) -> dict[Path, str]:
    """Return a label per folder: as given; else the algorithm for folders with the default name ENV_ALGORITHM, so that
    several environments belong together; else the folder's name."""
    if labels:
        if len(labels) != len(found):
            raise BadInput(
                f"--labels has {plural(len(labels), 'name')} for {plural(len(found), 'folder')}; expected one for each"
            )
        return dict(zip(found, labels, strict=True))
    algorithms = {folder: _default_name(folder, runs) for folder, runs in found.items()}
    covered = [(name, run.env) for folder, name in algorithms.items() for run in found[folder][:1]]
    if all(algorithms.values()) and len(set(covered)) == len(covered):
        return {folder: str(name) for folder, name in algorithms.items()}
    names = distinct_names([folder.resolve() for folder in found])
    return {folder: names[folder.resolve()] for folder in found}


def _default_name(folder: Path, runs: Sequence[RunScore]) -> str | None:
    """Return the algorithm if the folder has the default name of `drl train`."""
    algorithms = {run.algorithm for run in runs}
    if len(algorithms) != 1:
        return None
    (algorithm,) = algorithms
    return algorithm if folder.resolve().name.endswith(f"_{algorithm}") else None


Labeled = list[tuple[str, RunScore]]


def _score_kind(score: str, runs: Labeled) -> str:
    if score not in SCORES:
        raise BadInput(f"--score is {score!r:.80}; expected one of {', '.join(SCORES)}")
    if score != "auto":
        return score
    return "evaluation" if not runs or any(run.score is not None for _, run in runs) else "training"


def _with_scores(runs: Labeled, kind: str, left_out: list[str]) -> Labeled:
    """Return the runs that have a score of this kind."""
    kept: Labeled = []
    for label, run in runs:
        try:
            score = _training_score(run.folder) if kind == "training" else run.score
        except DrlError as error:
            left_out.append(f"{run.folder}: {error}")
            continue
        if score is None:
            left_out.append(f"{run.folder}: it has no {kind} score")
        else:
            kept.append((label, run._replace(score=score)))
    return kept


def _training_score(folder: Path) -> float | None:
    rows = read_metrics(folder / "metrics.jsonl")
    return _number(rows[-1].get("recent/mean_ep_return")) if rows else None


def _number(value: PlainValue) -> float | None:
    """Return a score as a float, or None if it is not a number (run files are untrusted)."""
    return float(value) if is_score(value) else None


def _tabulated(runs: Labeled, left_out: list[str]) -> dict[str, dict[str, dict[int, float]]]:
    """Map label → environment → seed → score. Of two runs with the same seed, the newer counts."""
    table: dict[str, dict[str, dict[int, float]]] = {}
    newest_first = sorted(runs, key=lambda each: each[1].folder.name, reverse=True)
    for label, run in newest_first:
        scores = table.setdefault(label, {}).setdefault(run.env, {})
        if run.seed in scores:
            left_out.append(f"{run.folder}: {label} has a newer run with seed {run.seed} on {run.env}")
        else:
            assert run.score is not None
            scores[run.seed] = run.score
    return table


def _of_one_budget(runs: Labeled, mixed: bool, left_out: list[str], notes: list[str]) -> Labeled:
    """Return the runs with the most common budget of each environment; with `mixed`, all runs and a note."""
    kept: Labeled = []
    for env in dict.fromkeys(run.env for _, run in runs):
        here = [(label, run) for label, run in runs if run.env == env]
        budgets = Counter(run.budget for _, run in here)
        early = [run for _, run in here if run.early is not None]
        if mixed:
            kept += here
            if len(budgets) > 1 or early:
                notes.append(f"budgets on {env} are mixed: {', '.join(budgets)}; {len(early)} ended early")
            continue
        usual = max(budgets, key=lambda budget: (budgets[budget], budget))
        for label, run in here:
            if reason := run.early or (None if run.budget == usual else f"its budget is {run.budget}, not {usual}"):
                left_out.append(f"{run.folder}: {reason}; --mixed-budgets includes it")
            else:
                kept.append((label, run))
    return kept


def _check_settings(runs: Labeled) -> None:
    """Runs of one label in one environment must be repetitions."""
    groups: dict[tuple[str, str], RunScore] = {}
    for label, run in runs:
        other = groups.setdefault((label, run.env), run)
        if run.settings != other.settings:
            own, first = json.loads(run.settings), json.loads(other.settings)
            names = [name for name in {**own, **first} if own.get(name) != first.get(name)]
            raise BadInput(
                f"{label} has runs with different settings on {run.env} ({', '.join(names[:4])}): {other.folder} and "
                f"{run.folder}; give them as separate folders"
            )
