"""Train a preset with fresh seeds, as its stored result was measured, and compare the results.

Runs are in `RESULTS/reproduce/<preset>/`, answers in `RESULTS/reproductions.yaml`. The next call continues a run that
was stopped and counts the seeds of an undecided answer again; seeds of a decided answer are not reused.
"""

import datetime
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import drl
from drl.analysis.reproduction_test import Judgement, judge
from drl.core.errors import BadInput, DrlError, Interrupted, did_you_mean
from drl.core.log import Log
from drl.core.specs import PlainDict
from drl.experiment.one_call import make_experiment
from drl.runs.extras import Extras, Stage
from drl.runs.folder.run_folder import is_in_use, read_record, read_settings, runs_in
from drl.settings.experiment import Experiment
from drl.settings.preset_records import (
    FAIL,
    REPRODUCE,
    UNDECIDED,
    Record,
    all_records,
    keep_record,
    read_records,
    score_summary,
    settings_digest,
)
from drl.settings.presets import list_presets
from drl.tracking.curves import OF_ONE_RUN
from drl.tracking.files import read_metrics

FIRST_SEED = 10_000  # stored results and the choice of settings used only smaller seeds
EPISODES = 100  # evaluation episodes if the stored result does not name a number
# Settings that do not change what is learned. A run keeps one checkpoint, to continue after a stop.
LEAN: PlainDict = {"quiet": True, "plots": False, "video": False, "tensorboard": False, "record_episodes": False}
LEAN |= {"evaluate_every": 0, "num_checkpoints": 0, "keep_checkpoints": 1}
Say = Callable[[str], object]


@dataclass(frozen=True)
class Preset:
    """One preset and its stored result."""

    algorithm: str
    env: str
    stored: Record | None  # None: no stored result for these settings

    @property
    def name(self) -> str:
        """The name as typed by the user."""
        return f"{self.algorithm}/{self.env}"


@dataclass(frozen=True)
class Answer:
    """PASS, FAIL or UNDECIDED, and why."""

    preset: Preset
    record: Record | None  # of the new seeds; None: training failed
    judgement: Judgement | None  # None: there is no stored result to compare with
    error: DrlError | None = None  # why training failed

    @property
    def verdict(self) -> str:
        """PASS, FAIL or UNDECIDED."""
        return FAIL if self.record is None else str(self.record.verdict)

    def sentence(self) -> str:
        """The answer in words."""
        new, stored, judged = self.record, self.preset.stored, self.judgement
        if new is None:
            return f"{FAIL}: {self.preset.name} breaks in training: {self.error}"
        said = f"{self.verdict}: {self.preset.name} reaches {new.mean:g} with {_seeds(new.seeds)}"
        if stored is None or judged is None:
            return f"{said}; there is no stored result of these settings to compare with (--record keeps this one)"
        said += f", stored: {stored.mean:g} with {_seeds(stored.seeds)} ({stored.provenance}); "
        said += f"difference {judged.difference:+.4g}, 95 % interval {judged.low:+.4g} to {judged.high:+.4g}, "
        said += f"margin {judged.margin:.4g}"
        if self.verdict != UNDECIDED:
            return said
        if judged.more_seeds is None:
            return f"{said}; no number of new seeds would decide: the stored result has too few"
        more = judged.more_seeds
        return f"{said}; about {more} more would decide: drl reproduce {self.preset.name} --seeds {more}"


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def find_preset(name: str) -> Preset:
    """Find a preset by ALGORITHM/ENVIRONMENT, as listed by `drl list presets`."""
    presets = {f"{algorithm}/{env}": (algorithm, env) for algorithm, env in list_presets()}
    if name not in presets:
        raise BadInput(f"there is no preset {name!r:.80} (see `drl list presets`); {did_you_mean(name, presets)}")
    algorithm, env = presets[name]
    if env.endswith("*"):
        raise BadInput(f"{name} is a preset for every environment of {env[:-2]}, and none of them has a stored result")
    stored = read_records().get((algorithm, env))
    same = stored is not None and stored.settings == settings_digest(algorithm, env)
    return Preset(algorithm, env, stored if same else None)


def answers_file(results_dir: Path) -> Path:
    """Return the file of the answers of `drl reproduce`."""
    return results_dir / "reproductions.yaml"


def reproduce_preset(
    preset: Preset,
    seeds: int,
    results_dir: Path,
    *,
    engine: str | None = None,
    deadline: float | None = None,
    say: Say = print,
) -> Answer | None:
    """Train `seeds` fresh seeds and answer; None if `deadline` (a `time.monotonic` time) comes first. `engine` defaults
    to the engine of the stored result."""
    experiment = _experiment(preset, engine, results_dir)
    earlier = [each for each in all_records(answers_file(results_dir)) if each.preset == (preset.algorithm, preset.env)]
    compared = set() if preset.stored is None else preset.stored.all_seeds
    changes = {} if preset.stored is None else preset.stored.changes
    carried = {seed: score for seed, score in _carried(earlier, experiment, changes).items() if seed not in compared}
    used = set().union(*(record.all_seeds for record in earlier))
    folder = Path(experiment.run.results_dir) / str(experiment.run.name)
    there = {seed: run for seed, run in _runs(folder, experiment).items() if seed not in used}
    if carried:
        say(f"{preset.name}: continues an undecided answer with {_seeds(len(carried))}")
    scores, minutes, steps = dict[int, float](), list[float](), 0
    for seed in _chosen(preset, there, used, _all_seeds(folder), seeds):
        run = _trained(experiment, seed, there.get(seed), deadline)
        if run is None:
            return None
        record = read_record(run)
        scores[seed], steps = float(record["final_evaluation"]["mean_return"]), int(record["env_steps"])
        minutes.append(_minutes(run))
        say(f"{preset.name}: seed {seed} reaches {scores[seed]:.4g} ({minutes[-1]:.2g} min)")
    summary = score_summary(carried | scores)
    judgement = None if preset.stored is None else judge(preset.stored, list(summary["scores"].values()))
    kept = Record(
        algorithm=preset.algorithm,
        env=preset.env,
        engine=experiment.run.engine,
        steps=steps,
        command=f"drl reproduce {preset.name} --seeds {summary['seeds']}" + (f" --engine {engine}" if engine else ""),
        settings=settings_digest(preset.algorithm, preset.env),
        provenance=REPRODUCE,
        changes=changes,
        episodes=experiment.run.evaluation_episodes,
        minutes=round(sorted(minutes)[len(minutes) // 2], 2),
        version=drl.__version__,
        date=datetime.date.today().isoformat(),
        verdict=UNDECIDED if judgement is None else judgement.verdict,
        **summary,
    )
    keep_record(kept, answers_file(results_dir))
    return Answer(preset, kept, judgement)


def _experiment(preset: Preset, engine: str | None, results_dir: Path) -> Experiment:
    algorithm, _, named = preset.algorithm.partition("/")
    stored = preset.stored
    settings: PlainDict = LEAN | (stored.changes if stored else {})
    settings["evaluation_episodes"] = (stored.episodes if stored else None) or EPISODES
    if engine or stored:
        settings["engine"] = engine or (stored.engine if stored else None)
    settings["name"] = re.sub(r"[^\w.-]+", "_", preset.name)
    settings["results_dir"] = str(results_dir / "reproduce")
    return make_experiment(algorithm, preset.env, preset=named or True, **settings)


def _carried(earlier: list[Record], experiment: Experiment, changes: PlainDict) -> dict[int, float]:
    """Return the scores of the last answer if it is undecided and has the same settings as this experiment."""
    for record in earlier[-1:]:
        run = experiment.run
        here = (settings_digest(*record.preset), changes, run.engine, run.evaluation_episodes, drl.__version__)
        there = (record.settings, record.changes, record.engine, record.episodes, record.version)
        if record.verdict == UNDECIDED and here == there and record.scores is not None:
            return record.scores
    return {}


def _runs(folder: Path, experiment: Experiment) -> dict[int, Path]:
    """Return the runs with the same settings and version, by seed."""
    wanted = _comparable(experiment.to_flat())
    return {
        int(read_record(run)["seed"]): run
        for run in runs_in(folder)
        if _comparable(read_settings(run)) == wanted
        and read_record(run).get("versions", {}).get("drl") == drl.__version__
        and not is_in_use(run)
    }


def _all_seeds(folder: Path) -> set[int]:
    return {int(read_record(run)["seed"]) for run in runs_in(folder)}


def _comparable(settings: PlainDict) -> PlainDict:
    kept = {name: value for name, value in settings.items() if name not in OF_ONE_RUN}
    return kept | {"evaluation_episodes": settings.get("evaluation_episodes")}


def _chosen(preset: Preset, there: dict[int, Path], used: set[int], tried: set[int], seeds: int) -> list[int]:
    """Return seeds whose runs were started already, then new seeds."""
    known = {FIRST_SEED - 1} | used | tried
    for record in all_records():
        if record.preset == (preset.algorithm, preset.env):
            known |= record.all_seeds
    fresh = range(max(known) + 1, max(known) + 1 + seeds)
    return [*sorted(there), *fresh][:seeds]


def _trained(experiment: Experiment, seed: int, run: Path | None, deadline: float | None) -> Path | None:
    """Train one seed and return its run; None if the deadline came first."""
    from drl.runs.launch import continue_run, train

    if run is not None and read_record(run).get("status") == "finished":
        return run
    if deadline is not None and time.monotonic() >= deadline:
        return None
    one = Experiment.from_flat(experiment.to_flat() | {"seed": seed}, REPRODUCE)
    extras = Extras.of(one, stages=() if deadline is None else (until(deadline),))
    finished = train(one, extras, console=False) if run is None else continue_run(run, one, extras, console=False)
    if finished.status == "finished":
        return finished.folder
    if deadline is not None and time.monotonic() >= deadline:
        return None
    raise Interrupted()  # by the user; the next call continues the run


def until(deadline: float) -> Stage:
    """Return a stage that stops a run at the deadline like Ctrl-C, so that it can continue later."""

    def stage(logs: Iterator[Log]) -> Iterator[Log]:
        for log in logs:
            yield log
            if time.monotonic() >= deadline:
                raise KeyboardInterrupt

    return stage


def _minutes(run: Path) -> float:
    """Wall time of training, over all processes of the run."""
    rows = read_metrics(run / "metrics.jsonl")
    return sum(float(row.get("time/time_elapsed") or 0.0) for row in rows) / 60
