"""Results of the presets: our measurements in `records/measured.yaml`; published scores and optima in `published.yaml`.

A measurement is a `Record`, made by `drl reproduce` or by a script of benchmarks/. A preset may have several; the one
with the most seeds is its stored result, which reproductions are compared with. The table of `drl list presets` and
docs/zoo.md, `zoo_rows`, lists reproductions only, with all their seeds, PASS or not.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import yaml

from drl.core.errors import UnusableFile
from drl.core.safe_files import write_atomically
from drl.core.setting_rules import is_score
from drl.core.specs import PlainDict
from drl.settings.experiment import read_yaml
from drl.settings.presets import list_presets, load_preset

RECORDS = Path(__file__).parent / "records" / "measured.yaml"
PUBLISHED = RECORDS.with_name("published.yaml")
HEADER = (
    "# Measurements; what is not known is left out. `drl reproduce --record` and `learning.py --record` write them.\n"
)
REPRODUCE = "drl reproduce"  # the provenance of its records
PASS, FAIL, UNDECIDED = "PASS", "FAIL", "UNDECIDED"
COLUMNS = ("algorithm", "environment", "score", "worst seed", "seeds", "steps", "time", "answer", "published")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measurement of a preset. Scores are mean returns of deterministic evaluation episodes."""

    algorithm: str
    env: str
    engine: str
    steps: int  # environment steps of each run
    seeds: int
    first_seed: int
    mean: float  # over the seeds
    worst: float  # seed
    command: str  # repeats it
    settings: str  # `settings_digest` of the measured preset
    provenance: str  # drl reproduce, or a script of benchmarks/
    changes: PlainDict = field(default_factory=dict)  # settings that differ from the preset's, such as the budget
    std: float | None = None  # over the seeds, divided by their number
    episodes: int | None = None  # evaluation episodes per seed
    minutes: float | None = None  # wall time of a run; of all of them if they were one program
    cpu_minutes: float | None = None  # the same in CPU time
    version: str | None = None  # of drl
    date: str | None = None
    scores: dict[int, float] | None = None  # by seed
    verdict: str | None = None  # of a reproduction: PASS, FAIL or UNDECIDED

    @property
    def preset(self) -> tuple[str, str]:
        """Algorithm and environment."""
        return self.algorithm, self.env

    @property
    def conditions(self) -> tuple[object, ...]:
        """How it was measured. Scores of equal conditions belong together."""
        return self.engine, self.settings, self.changes, self.episodes

    @property
    def all_seeds(self) -> set[int]:
        """The trained seeds."""
        return set(self.scores or range(self.first_seed, self.first_seed + self.seeds))

    @property
    def minutes_per_run(self) -> float | None:
        """Training time of one seed, if known."""
        minutes = self.cpu_minutes if self.cpu_minutes is not None else self.minutes
        return None if minutes is None else minutes / (self.seeds if "--at-once" in self.command else 1)


def settings_digest(algorithm: str, env: str) -> str:
    """Return a digest of all settings of a preset."""
    content = json.dumps(load_preset(algorithm, env), sort_keys=True)
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()[:12]}"  # the prefix: 1234e5678 would be a number


def decimals(mean: float) -> int:
    """Return the number of decimal places of a stored score."""
    return 1 if abs(mean) >= 10 else 3


def score_summary(scores: Mapping[int, float]) -> PlainDict:
    """Return the statistics of a record, rounded, from scores by seed.

    >>> score_summary({7: 1.0, 8: 2.0})
    {'seeds': 2, 'first_seed': 7, 'mean': 1.5, 'worst': 1.0, 'std': 0.5, 'scores': {7: 1.0, 8: 2.0}}
    """
    values = np.array(list(scores.values()))
    digits = decimals(values.mean())
    numbers: PlainDict = {"seeds": len(values), "first_seed": min(scores)}
    numbers |= {"mean": round(float(values.mean()), digits), "worst": round(float(values.min()), digits)}
    std = round(float(values.std()), digits) if len(values) > 1 else None
    return numbers | {"std": std, "scores": {seed: float(score) for seed, score in scores.items()}}


def all_records(path: Path | None = None) -> list[Record]:
    """Read all measurements of a file in order; by default those that ship with drl."""
    path = path or RECORDS
    if not path.exists():
        return []
    try:
        records = [Record(**entry) for entry in read_yaml(path).get("measured", [])]
    except TypeError as error:
        raise UnusableFile(f"{path} is not a file of records: {error}") from None
    for record in records:
        scores = {} if record.scores is None else record.scores
        known = isinstance(scores, dict) and all(type(seed) is int and is_score(scores[seed]) for seed in scores)
        if not known or not all(map(is_score, (record.mean, record.worst, record.seeds, record.first_seed))):
            raise UnusableFile(f"{path} is not a file of records: that of {record.preset} has no numbers as scores")
    return records


def read_records(path: Path | None = None) -> dict[tuple[str, str], Record]:
    """Return the stored results by (algorithm, env): the first record with the most seeds. A reproduction that did not
    pass is no result, unless there was nothing to compare it with."""
    stored: dict[tuple[str, str], Record] = {}
    for record in all_records(path):
        other = stored.get(record.preset)
        if record.verdict == FAIL or (record.verdict == UNDECIDED and other is not None):
            continue
        if other is None or other.verdict == UNDECIDED or record.seeds > other.seeds:
            stored[record.preset] = record
    return {preset: stored[preset] for preset in sorted(stored)}


def keep_record(record: Record, path: Path | None = None) -> None:
    """Add a record to a file. A script's record replaces earlier ones of scripts for the same preset; a reproduction
    replaces only an undecided one whose seeds it includes. Both replace records of outdated settings."""
    path = path or RECORDS
    records = [other for other in all_records(path) if not _replaces(record, other)] + [record]
    entries = [asdict(each) for each in sorted(records, key=lambda each: each.preset)]
    known = [{name: value for name, value in entry.items() if value not in (None, {})} for entry in entries]
    text = yaml.safe_dump({"measured": known}, sort_keys=False, allow_unicode=True, width=1000)
    write_atomically(path, (HEADER + text).encode())


def _replaces(new: Record, old: Record) -> bool:
    if new.preset != old.preset:
        return False
    if new.settings != old.settings:
        return True
    if new.provenance != REPRODUCE:
        return old.provenance != REPRODUCE
    return old.verdict == UNDECIDED and old.all_seeds <= new.all_seeds


def reproductions(path: Path | None = None) -> dict[tuple[str, str], Record]:
    """Return the reproductions by (algorithm, env): the newest record, with the seeds of all earlier ones that were
    measured in the same way."""
    together: dict[tuple[str, str], Record] = {}
    for record in all_records(path):
        if record.provenance != REPRODUCE:
            continue
        earlier = together.get(record.preset)
        if earlier is not None and record.conditions == earlier.conditions:
            record = replace(record, **score_summary((earlier.scores or {}) | (record.scores or {})))
        together[record.preset] = record
    return together


def zoo_rows() -> list[tuple[str, ...]]:
    """Return a row of the table for every preset, with a text for each of the COLUMNS."""
    records, published = reproductions(), read_yaml(PUBLISHED)
    return [_row(algorithm, env, records.get((algorithm, env)), published) for algorithm, env in list_presets()]


def train_command(algorithm: str, env: str) -> str:
    """Return the command that trains with a preset, on one environment if it is for a whole namespace.

    >>> train_command("ppo", "CartPole-v1"), train_command("dqn/rainbow", "ALE/*")
    ('drl train ppo --env CartPole-v1', 'drl train dqn --env ALE/Pong-v5 --preset rainbow')
    """
    name, _, preset = algorithm.partition("/")
    return f"drl train {name} --env {env.replace('ALE/*', 'ALE/Pong-v5')}" + (f" --preset {preset}" if preset else "")


def _row(algorithm: str, env: str, record: Record | None, published: PlainDict) -> tuple[str, ...]:
    budget = (load_preset(algorithm, env) or {}).get("total_timesteps", 0)
    scores = [entry for entry in published["scores"] if (entry["algorithm"], entry["env"]) == (algorithm, env)]
    others = [_published(entry) for entry in scores]
    others += [f"{shown_score(entry['score'])} is optimal" for entry in published["optima"] if entry["env"] == env]
    if record is None:
        return algorithm, env, "not reproduced", "", "", f"{budget:,}", "", "", "; ".join(others)
    score = shown_score(record.mean) + ("" if record.std is None else f" ± {shown_score(record.std)}")
    steps = f"{record.steps:,}" + (f" of {budget:,}" if record.steps < budget else "")
    time = "" if record.minutes is None else f"{record.minutes:.2g} min"
    numbers = (score, shown_score(record.worst), str(record.seeds), steps, time)
    return algorithm, env, *numbers, str(record.verdict), "; ".join(others)


def _published(entry: PlainDict) -> str:
    """Return a published score with its source, the environment if it is another version, and the budget."""
    words = [entry["source"]]
    words += [entry["other_env"]] if "other_env" in entry else []
    words += [f"{entry['steps']:,} steps"] if "steps" in entry else []
    return f"{shown_score(entry['score'])} ({', '.join(words)})"


def shown_score(value: float) -> str:
    """Return a number with at most four significant digits.

    >>> [shown_score(value) for value in (12089.939, -83.353, 500.0, 0.0454)]
    ['12,090', '-83.35', '500', '0.0454']
    """
    return f"{float(f'{value:.4g}'):,.10g}"
