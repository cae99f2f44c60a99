"""`drl.reproduce`: train presets with fresh seeds, as their stored results were measured, and compare the results.

Runs are in `RESULTS/reproduce/<preset>/`, answers in `RESULTS/reproductions.yaml`. The next call continues a run that
was stopped and counts the seeds of an undecided answer again; seeds of a decided answer are not reused.

The test uses Student's t interval (95 %, pooled variance) of the difference of the means, new minus stored. PASS: all
of it is above minus the margin. FAIL: all of it is below. UNDECIDED: neither. If scores are roughly normal, at most
2.5 % of reproductions that are worse by the margin or more pass, and at most 2.5 % of the others fail. Scores with rare
failures are not normal: if 3 of 10 seeds fail, five seeds show no failure in 17 % of the cases.
"""

import datetime
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import drl
from drl.core.errors import BadInput, DrlError, Interrupted, did_you_mean, html_table, plural
from drl.core.log import Log
from drl.core.setting_rules import check_size, check_whole
from drl.core.specs import Array, PlainDict
from drl.runs.extras import Extras, Stage
from drl.runs.folder.run_folder import is_in_use, read_record, read_settings, runs_in
from drl.runs.one_call import make_experiment
from drl.settings.experiment import Experiment
from drl.settings.preset_records import (
    FAIL,
    PASS,
    RECORDS,
    REPRODUCE,
    UNDECIDED,
    Record,
    all_records,
    keep_record,
    read_records,
    score_summary,
    settings_digest,
)
from drl.settings.presets import list_presets, load_preset
from drl.tracking.curves import OF_ONE_RUN, t_975
from drl.tracking.files import read_metrics

FIRST_SEED = 10_000  # stored results and the choice of settings used only smaller seeds
EPISODES = 100  # evaluation episodes if the stored result does not name a number
ANSWERS = "reproductions.yaml"  # in the folder of results
STEPS_PER_MINUTE = 30_000  # if nothing was timed
MARGIN = 0.1  # share of the stored result
MOST_SEEDS = 1000  # largest number of seeds to recommend
FEWEST_EQUAL = 3  # new seeds that suffice if all scores, old and new, are equal
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
    def key(self) -> tuple[str, str]:
        """The preset in files of records."""
        return self.algorithm, self.env

    @property
    def name(self) -> str:
        """The name as typed by the user."""
        return f"{self.algorithm}/{self.env}"

    @property
    def changes(self) -> PlainDict:
        """The settings of the stored result that differ from the preset."""
        return {} if self.stored is None else self.stored.changes


@dataclass(frozen=True)
class Judgement:
    """Verdict on a stored result from the scores of new seeds."""

    verdict: str
    difference: float  # of the means, new minus stored
    low: float  # ends of its 95 % interval
    high: float
    margin: float
    more_seeds: int | None  # seeds to decide if means and spread stay; None: decided, or no number suffices


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
        answer = f"{self.verdict}: {self.preset.name} reaches {new.mean:g} with {plural(new.seeds, 'seed')}"
        if stored is None or judged is None:
            return f"{answer}; there is no stored result of these settings to compare with (--record keeps this one)"
        answer += (
            f", stored: {stored.mean:g} with {plural(stored.seeds, 'seed')} ({stored.provenance}); "
            f"difference {judged.difference:+.4g}, 95 % interval {judged.low:+.4g} to {judged.high:+.4g}, "
            f"margin {judged.margin:.4g}"
        )
        if self.verdict != UNDECIDED:
            return answer
        if judged.more_seeds is None:
            return f"{answer}; no number of new seeds would decide: the stored result has too few"
        more = judged.more_seeds
        return f"{answer}; about {more} more would decide: drl reproduce {self.preset.name} --seeds {more}"


@dataclass(frozen=True, repr=False)
class Reproduction:
    """The result of `reproduce`: answers in order. An undecided preset may have several."""

    answers: tuple[Answer, ...]
    asked: str | None  # the preset; None: all presets

    @property
    def verdicts(self) -> dict[str, str]:
        """The last answer for each preset: PASS, FAIL or UNDECIDED."""
        return {answer.preset.name: answer.verdict for answer in self.answers}

    @property
    def verdict(self) -> str:
        """The worst verdict: FAIL, else UNDECIDED, else PASS. UNDECIDED without an answer."""
        return max(self.verdicts.values(), key=[PASS, UNDECIDED, FAIL].index, default=UNDECIDED)

    def __str__(self) -> str:
        sentences = [answer.sentence() for answer in self.answers]
        if self.asked is None:
            counts = Counter(self.verdicts.values())
            sentences.append(f"presets: {', '.join(f'{counts[each]} {each}' for each in (PASS, FAIL, UNDECIDED))}")
        elif not sentences:
            sentences.append(f"{UNDECIDED}: {self.asked}: the time is over; the same command continues")
        return "\n".join(sentences)

    def __repr__(self) -> str:
        return f"Reproduction({self.asked or 'all'!r}, verdict={self.verdict!r}, answers={len(self.answers)})"

    def _repr_html_(self) -> str:
        rows = []
        for answer in self.answers:
            new, stored = answer.record, answer.preset.stored
            reached = (str(answer.error), "") if new is None else (f"{new.mean:g}", new.seeds)
            rows.append((answer.preset.name, answer.verdict, *reached, "" if stored is None else f"{stored.mean:g}"))
        return html_table(("preset", "answer", "reached", "seeds", "stored"), rows, "" if rows else str(self))


def reproduce(
    preset: str | None = None,
    *,
    seeds: int = 5,
    all: bool = False,
    minutes: float | None = None,
    engine: str | None = None,
    results_dir: str | Path = "results",
    record: bool = False,
    console: bool = False,
) -> Reproduction:
    """Train a preset as its stored result was measured, with fresh seeds, and answer PASS, FAIL or UNDECIDED.

    `preset` is ALGORITHM/ENVIRONMENT; `all` reproduces as many presets as fit into `minutes` of wall time. The next
    call continues a run that the time limit stopped and counts the `seeds` of an undecided answer. `engine` defaults to
    the engine of the stored result. Runs go to reproduce/ in `results_dir`, answers to reproductions.yaml. `record`
    also stores the result with the presets, in a clone of the repository. `console=True` prints answers as they come.
    """
    if all == (preset is not None):
        raise BadInput("give one preset, such as ppo/CartPole-v1 (see `drl list presets`), or --all --minutes M")
    if all and minutes is None:
        raise BadInput("--all needs a time limit: --all --minutes 60")
    if minutes is not None and not 0 < minutes < float("inf"):
        raise BadInput(f"--minutes is {minutes:g}; expected a number above 0")
    check_whole("--seeds", seeds)
    check_size("num_seeds", seeds)
    if engine not in (None, "torch", "jax"):
        raise BadInput(f"--engine is {engine!r:.80}; expected torch or jax")
    if record and not (RECORDS.parents[3] / ".git").exists():
        raise BadInput(f"--record writes {RECORDS} and works only in a clone of the repository; leave it out")
    from drl.runs.session import say as print_now

    say: Say = print_now if console else lambda text: None
    folder, completed = Path(results_dir), list[Answer]()
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    answers: Iterable[Answer | None]
    if preset is None:
        answers = reproduce_all(seeds, deadline, folder, engine=engine, say=say)
    else:
        answers = [reproduce_preset(find_preset(preset), seeds, folder, engine=engine, deadline=deadline, say=say)]
    for answer in filter(None, answers):
        say(answer.sentence())
        completed.append(answer)
        if record and answer.record is not None:
            keep_record(answer.record)
    result = Reproduction(tuple(completed), preset)
    if all or not completed:
        say(str(result).splitlines()[-1])
    return result


def queue(results_dir: Path) -> list[Preset]:
    """Return every preset for a single environment. Presets without a stored result come last."""
    presets = [find_preset(f"{algorithm}/{env}") for algorithm, env in list_presets() if not env.endswith("*")]
    answered = {record.preset: record for record in all_records(results_dir / ANSWERS)}

    def order(preset: Preset) -> tuple[bool, str, float]:
        stored, answer = preset.stored, answered.get(preset.key)
        settings = (load_preset(*preset.key) or {}) | preset.changes
        cost: float = settings.get("total_timesteps", 100_000) / STEPS_PER_MINUTE
        for record in (stored, answer):  # the latest that was timed
            cost = (record and record.minutes_per_run) or cost
        return stored is None, str(answer.date) if answer else "", cost

    return sorted(presets, key=order)


def reproduce_all(
    seeds: int, deadline: float | None, results_dir: Path, *, engine: str | None = None, say: Say = print
) -> Iterator[Answer]:
    """Yield answers for all presets until `deadline` (a `time.monotonic` time). A preset with a missing package is
    reported and skipped; a preset whose training breaks has failed. Undecided presets get more seeds after all others
    are answered."""
    waiting = queue(results_dir)
    while waiting:
        undecided = []
        for preset in waiting:
            if _over(deadline):
                return
            try:
                answer = reproduce_preset(preset, seeds, results_dir, engine=engine, deadline=deadline, say=say)
            except BadInput as error:
                say(f"{preset.name}: left out: {error}")
                continue
            except DrlError as error:
                answer = Answer(preset, None, None, error)
            if answer is None:
                say(f"{preset.name}: the time is over; the same command continues")
                return
            yield answer
            if answer.verdict == UNDECIDED and answer.judgement is not None and answer.judgement.more_seeds:
                undecided.append(preset)
        waiting = undecided


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
    earlier = [each for each in all_records(results_dir / ANSWERS) if each.preset == preset.key]
    carried = _carried(preset, earlier, experiment)
    used = set().union(*(record.all_seeds for record in earlier))
    folder = Path(experiment.run.results_dir) / str(experiment.run.name)
    there = {seed: run for seed, run in _runs(folder, experiment).items() if seed not in used}
    if carried:
        say(f"{preset.name}: continues an undecided answer with {plural(len(carried), 'seed')}")
    scores, minutes, steps = dict[int, float](), list[float](), 0
    for seed in _chosen(preset, there, used, {int(read_record(run)["seed"]) for run in runs_in(folder)}, seeds):
        run = _trained(experiment, seed, there.get(seed), deadline)
        if run is None:
            return None
        record = read_record(run)
        scores[seed], steps = float(record["final_evaluation"]["mean_return"]), int(record["env_steps"])
        rows = read_metrics(run / "metrics.jsonl")
        minutes.append(sum(float(row.get("time/time_elapsed") or 0.0) for row in rows) / 60)  # over all processes
        say(f"{preset.name}: seed {seed} reaches {scores[seed]:.4g} ({minutes[-1]:.2g} min)")
    summary = score_summary(carried | scores)
    judgement = None if preset.stored is None else judge(preset.stored, list(summary["scores"].values()))
    answer = Record(
        algorithm=preset.algorithm,
        env=preset.env,
        engine=experiment.run.engine,
        steps=steps,
        command=f"drl reproduce {preset.name} --seeds {summary['seeds']}" + (f" --engine {engine}" if engine else ""),
        settings=settings_digest(*preset.key),
        provenance=REPRODUCE,
        changes=preset.changes,
        episodes=experiment.run.evaluation_episodes,
        minutes=round(sorted(minutes)[len(minutes) // 2], 2),
        version=drl.__version__,
        date=datetime.date.today().isoformat(),
        verdict=UNDECIDED if judgement is None else judgement.verdict,
        **summary,
    )
    keep_record(answer, results_dir / ANSWERS)
    return Answer(preset, answer, judgement)


def _experiment(preset: Preset, engine: str | None, results_dir: Path) -> Experiment:
    algorithm, _, named = preset.algorithm.partition("/")
    stored = preset.stored
    settings: PlainDict = LEAN | preset.changes
    settings["evaluation_episodes"] = (stored.episodes if stored else None) or EPISODES
    if engine or stored:
        settings["engine"] = engine or (stored.engine if stored else None)
    settings["name"] = re.sub(r"[^\w.-]+", "_", preset.name)
    settings["results_dir"] = str(results_dir / "reproduce")
    return make_experiment(algorithm, preset.env, preset=named or True, **settings)


def _carried(preset: Preset, earlier: list[Record], experiment: Experiment) -> dict[int, float]:
    """Return the scores of the last answer if it is undecided and has the same settings as this experiment."""
    if not earlier or earlier[-1].verdict != UNDECIDED or earlier[-1].scores is None:
        return {}
    last, run = earlier[-1], experiment.run
    here = (settings_digest(*last.preset), preset.changes, run.engine, run.evaluation_episodes, drl.__version__)
    if here != (last.settings, last.changes, last.engine, last.episodes, last.version):
        return {}
    compared = set() if preset.stored is None else preset.stored.all_seeds
    return {seed: score for seed, score in earlier[-1].scores.items() if seed not in compared}


def _runs(folder: Path, experiment: Experiment) -> dict[int, Path]:
    """Return the runs with the same settings and version, by seed."""
    wanted = _comparable(experiment.to_flat())
    runs = [run for run in runs_in(folder) if _comparable(read_settings(run)) == wanted and not is_in_use(run)]
    records = [(run, read_record(run)) for run in runs]
    return {int(each["seed"]): run for run, each in records if each.get("versions", {}).get("drl") == drl.__version__}


def _comparable(settings: PlainDict) -> PlainDict:
    shared = {name: value for name, value in settings.items() if name not in OF_ONE_RUN}
    return shared | {"evaluation_episodes": settings.get("evaluation_episodes")}


def _chosen(preset: Preset, there: dict[int, Path], used: set[int], tried: set[int], seeds: int) -> list[int]:
    """Return seeds whose runs were started already, then new seeds."""
    known = {FIRST_SEED - 1} | used | tried
    for record in all_records():
        if record.preset == preset.key:
            known |= record.all_seeds
    fresh = range(max(known) + 1, max(known) + 1 + seeds)
    return [*sorted(there), *fresh][:seeds]


def _trained(experiment: Experiment, seed: int, run: Path | None, deadline: float | None) -> Path | None:
    """Train one seed and return its run; None if the deadline came first."""
    from drl.runs.launch import continue_run, train

    if run is not None and read_record(run).get("status") == "finished":
        return run
    if _over(deadline):
        return None
    one = Experiment.from_flat(experiment.to_flat() | {"seed": seed}, REPRODUCE)
    extras = Extras.of(one, stages=() if deadline is None else (until(deadline),))
    finished = train(one, extras, console=False) if run is None else continue_run(run, one, extras, console=False)
    if finished.status == "finished":
        return finished.folder
    if _over(deadline):
        return None
    raise Interrupted()  # by the user; the next call continues the run


def _over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def until(deadline: float) -> Stage:
    """Return a stage that stops a run at the deadline like Ctrl-C, so that it can continue later."""

    def stage(logs: Iterator[Log]) -> Iterator[Log]:
        for log in logs:
            yield log
            if time.monotonic() >= deadline:
                raise KeyboardInterrupt

    return stage


# ── verdict ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def judge(stored: Record, scores: Sequence[float]) -> Judgement:
    """Compare the scores of new seeds with a stored result."""
    margin = margin_of(stored)
    new = np.asarray(scores, float)
    difference, variance = float(new.mean()) - stored.mean, _pooled_variance(stored, new)

    def interval(more: int) -> tuple[float, float]:
        count = len(new) + more
        degrees = stored.seeds + count - 2
        if degrees < 1 or (variance == 0.0 and count < FEWEST_EQUAL):
            return -math.inf, math.inf
        half = float(t_975(np.array(degrees))) * math.sqrt(variance * (1 / stored.seeds + 1 / count))
        return difference - half, difference + half

    low, high = interval(0)
    verdict, more = _verdict(low, high, margin), None
    if verdict == UNDECIDED:
        ahead = range(1, MOST_SEEDS + 1)
        more = next((seeds for seeds in ahead if _verdict(*interval(seeds), margin) != UNDECIDED), None)
    return Judgement(verdict, difference, low, high, margin, more)


def margin_of(stored: Record) -> float:
    """Return a tenth of the stored result, or the standard deviation over its seeds if that is larger."""
    return max(MARGIN * abs(stored.mean), math.sqrt(stored_variance(stored) or 0.0))


def _verdict(low: float, high: float, margin: float) -> str:
    if low >= -margin:
        return PASS
    return FAIL if high < -margin else UNDECIDED


def stored_variance(stored: Record) -> float | None:
    """Variance of the stored scores over seeds; None for a single seed. If no spread was stored, the smallest variance
    that the worst seed implies: all other scores are equal."""
    count = stored.seeds
    if count == 1:
        return None
    if stored.scores is not None:
        return float(np.var(list(stored.scores.values()), ddof=1))
    if stored.std is not None:
        return stored.std**2 * count / (count - 1)
    return count * ((stored.mean - stored.worst) / (count - 1)) ** 2


def _pooled_variance(stored: Record, new: Array) -> float:
    """Variance of stored and new scores together. They are equal by hypothesis, and a few equal new scores prove
    nothing."""
    own = float(new.var(ddof=1)) if len(new) > 1 else 0.0
    spread = stored_variance(stored) or 0.0
    if stored.scores is None and stored.std is None:
        spread = max(spread, own)  # the stored spread is only a lower bound
    return ((stored.seeds - 1) * spread + (len(new) - 1) * own) / max(stored.seeds + len(new) - 2, 1)
