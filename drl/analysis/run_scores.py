"""Scores by algorithm, environment and seed, read from folders of runs, and their normalization. Runs that are left out
are named with reasons."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from drl.core.errors import BadInput, DrlError, did_you_mean, plural
from drl.core.setting_rules import is_score
from drl.core.specs import Array, PlainDict, PlainValue
from drl.runs.folder.run_folder import read_record, read_settings, runs_in
from drl.settings.experiment import read_yaml
from drl.tracking.curves import distinct_names, learning_settings
from drl.tracking.files import read_metrics

REFERENCE = Path(__file__).with_name("reference_scores.yaml")
CHOICES = ("auto", "none", "reference", "minmax")  # of a normalization
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
    folders: Sequence[Path], labels: Sequence[str] = (), score: str = "auto", mixed_budgets: bool = False
) -> ScoreTable:
    """Read scores. Each folder holds the runs of one algorithm; folders with the same label belong together."""
    if score not in SCORES:
        raise BadInput(f"--score is {score!r:.80}; expected one of {', '.join(SCORES)}")
    left_out, notes = list[str](), list[str]()
    by_folder = {folder: list(_finished(folder, left_out)) for folder in folders}
    names = _labels(by_folder, labels)
    runs = [(names[folder], run) for folder, each in by_folder.items() for run in each]
    if score == "auto":
        score = "evaluation" if not runs or any(run.score is not None for _, run in runs) else "training"
    runs = _of_one_budget(_with_scores(runs, score, left_out), mixed_budgets, left_out, notes)
    _check_settings(runs)
    table = _tabulated(runs, left_out)
    for label in names.values():
        if label not in table:
            own = tuple(f"{folder}{end}" for folder, name in names.items() if name == label for end in ("/", ":"))
            why = next((f"; {reason}" for reason in left_out if reason.startswith(own)), "")
            raise BadInput(f"{label} has no run that can be compared{why}")
    words = "mean return of the last training episodes, not of an evaluation"
    if score == "evaluation":
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
    score, episodes = evaluation.get("mean_return"), evaluation.get("episodes")
    lists = [settings.get(name) for name in ("env_kwargs", "wrappers")]
    extras = [str(each) for items in lists if isinstance(items, list) for each in items]
    unit = "episodes" if settings.get("num_episodes") else "env_steps"
    budget, used, words = _budget(settings), record.get(unit), unit.removeprefix("env_")
    own = {name: value for name, value in learning_settings(run).items() if name not in BUDGETS}
    return RunScore(
        folder=run,
        env=f"{settings.get('env')}" + (f" ({', '.join(extras)})" if extras else ""),
        seed=int(record.get("seed", 0)),
        score=float(score) if is_score(score) else None,
        episodes=episodes if isinstance(episodes, int) else None,
        budget=f"{budget:,} {words}",
        early=f"it ended after {used:,} of {budget:,} {words}" if isinstance(used, int) and used < budget else None,
        algorithm=str(settings.get("algorithm")),
        settings=json.dumps(own, sort_keys=True, default=str),
    )


def _labels(runs_of: dict[Path, list[RunScore]], labels: Sequence[str]) -> dict[Path, str]:
    """Return a label per folder: as given; else the algorithm for folders with the default name ENV_ALGORITHM, so that
    several environments belong together; else the folder's name."""
    if labels:
        if len(labels) != len(runs_of):
            raise BadInput(
                f"--labels has {plural(len(labels), 'name')} for {plural(len(runs_of), 'folder')}; "
                "expected one for each"
            )
        return dict(zip(runs_of, labels, strict=True))
    algorithms = {folder: _default_name(folder, runs) for folder, runs in runs_of.items()}
    covered = [(name, run.env) for folder, name in algorithms.items() for run in runs_of[folder][:1]]
    if all(algorithms.values()) and len(set(covered)) == len(covered):
        return {folder: str(name) for folder, name in algorithms.items()}
    names = distinct_names([folder.resolve() for folder in runs_of])
    return {folder: names[folder.resolve()] for folder in runs_of}


def _default_name(folder: Path, runs: Sequence[RunScore]) -> str | None:
    """Return the algorithm if the folder has the default name of `drl train`."""
    algorithm = runs[0].algorithm if len({run.algorithm for run in runs}) == 1 else None
    return algorithm if folder.resolve().name.endswith(f"_{algorithm}") else None


Labeled = list[tuple[str, RunScore]]


def _with_scores(runs: Labeled, kind: str, left_out: list[str]) -> Labeled:
    """Return the runs that have a score of this kind."""
    scored: Labeled = []
    for label, run in runs:
        score: PlainValue = run.score
        if kind == "training":
            try:
                score = next(reversed(read_metrics(run.folder / "metrics.jsonl")), {}).get("recent/mean_ep_return")
            except DrlError as error:
                left_out.append(f"{run.folder}: {error}")
                continue
        if is_score(score):
            scored.append((label, run._replace(score=float(score))))
        else:
            left_out.append(f"{run.folder}: it has no {kind} score")
    return scored


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
    comparable: Labeled = []
    for env in dict.fromkeys(run.env for _, run in runs):
        here = [(label, run) for label, run in runs if run.env == env]
        budgets = Counter(run.budget for _, run in here)
        early = [run for _, run in here if run.early is not None]
        if mixed:
            comparable += here
            if len(budgets) > 1 or early:
                notes.append(f"budgets on {env} are mixed: {', '.join(budgets)}; {len(early)} ended early")
            continue
        usual = max(budgets, key=lambda budget: (budgets[budget], budget))
        for label, run in here:
            if reason := run.early or (None if run.budget == usual else f"its budget is {run.budget}, not {usual}"):
                left_out.append(f"{run.folder}: {reason}; --mixed-budgets includes it")
            else:
                comparable.append((label, run))
    return comparable


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


# ── normalization ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Normalization:
    """The scores that become 0 and 1 in each environment."""

    words: str  # description for the user
    low: Mapping[str, float]
    high: Mapping[str, float]
    target: float | None  # target of the optimality gap; None: unknown

    def __call__(self, env: str, scores: Array) -> Array:
        low, high = self.low.get(env, 0.0), self.high.get(env, 1.0)
        return (scores - low) / (high - low)


def read_references() -> dict[str, PlainDict]:
    """Read `random`, `target` and a description of the target per environment."""
    return {entry["env"]: entry for entry in read_yaml(REFERENCE)["scores"]}


def choose_normalization(choice: str, scores: Mapping[str, Sequence[float]]) -> Normalization:
    """Return the normalization for `choice`: one of CHOICES, or a YAML file with `ENV: [LOW, HIGH]`. `scores` are all
    scores by environment."""
    envs, references = list(scores), read_references()
    if choice == "auto":
        choice = "none" if len(envs) == 1 else "reference"
    if choice == "none":
        if len(envs) > 1:
            raise BadInput(f"--normalize none is for one environment, and there are {len(envs)}: {', '.join(envs)}")
        words, known = "none, these are returns", references.get(envs[0])
        if known is None:
            return Normalization(words, {}, {}, None)
        words += f"; the optimality gap is to {known['target']:g} ({known['target_is']})"
        return Normalization(words, {}, {}, known["target"])
    if choice == "reference":
        if missing := [env for env in envs if env not in references]:
            raise BadInput(
                f"no reference scores are known for {', '.join(missing)}; type --normalize minmax, or --normalize "
                "FILE.yaml with a line for each environment: ENV: [LOW, HIGH]"
            )
        low = {env: float(references[env]["random"]) for env in envs}
        high = {env: float(references[env]["target"]) for env in envs}
        words = "0 is a random policy, 1 the target: " + _scale(envs, low, high, references)
        return Normalization(words, low, high, 1.0)
    if choice == "minmax":
        low, high = {env: min(scores[env]) for env in envs}, {env: max(scores[env]) for env in envs}
        if flat := [env for env in envs if low[env] == high[env]]:
            raise BadInput(f"all scores of {flat[0]} are {low[flat[0]]:g}; --normalize minmax needs different ones")
        words = "0 is the worst run of this comparison, 1 the best: " + _scale(envs, low, high)
        return Normalization(words, low, high, 1.0)
    return _from_file(choice, envs)


def _from_file(path: str, envs: Sequence[str]) -> Normalization:
    if not path.endswith((".yaml", ".yml")):
        raise BadInput(f"--normalize is {path!r:.80}; {did_you_mean(path, CHOICES)}, or a YAML file of your own")
    content = read_yaml(path)
    low, high = dict[str, float](), dict[str, float]()
    for env in envs:
        ends = content.get(env)
        plain = isinstance(ends, list) and all(type(end) in (int, float) and math.isfinite(end) for end in ends)
        if not isinstance(ends, list) or not plain or len(ends) != 2 or ends[0] >= ends[1]:
            raise BadInput(f"{path} has {env}: {ends!r:.80}; expected two numbers, the lower one first: [0, 500]")
        low[env], high[env] = float(ends[0]), float(ends[1])
    return Normalization(f"by {path}: {_scale(envs, low, high)}", low, high, 1.0)


def _scale(
    envs: Sequence[str],
    low: Mapping[str, float],
    high: Mapping[str, float],
    references: Mapping[str, PlainDict] | None = None,
) -> str:
    what = {env: f" ({references[env]['target_is']})" if references else "" for env in envs}
    return "; ".join(f"{env} {low[env]:g} … {high[env]:g}{what[env]}" for env in envs)
