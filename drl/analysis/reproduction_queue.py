"""`drl.reproduce`: one preset, or as many as time allows, ordered by the age of their last reproduction, then cost."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from drl.analysis.reproduction import Answer, Preset, Say, answers_file, find_preset, reproduce_preset
from drl.core.errors import BadInput, DrlError, html_table
from drl.core.setting_rules import check_size, check_whole
from drl.settings.preset_records import FAIL, PASS, RECORDS, UNDECIDED, all_records, keep_record
from drl.settings.presets import list_presets, load_preset

STEPS_PER_MINUTE = 30_000  # if nothing was timed


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
        rows = [_row(answer) for answer in self.answers]
        return html_table(("preset", "answer", "reached", "seeds", "stored"), rows, "" if rows else str(self))


def _row(answer: Answer) -> tuple[object, ...]:
    new, stored = answer.record, answer.preset.stored
    reached = (str(answer.error), "") if new is None else (f"{new.mean:g}", new.seeds)
    return answer.preset.name, answer.verdict, *reached, "" if stored is None else f"{stored.mean:g}"


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
    _check(preset, seeds, all, minutes, engine, record)
    from drl.runs.session import say as print_now

    say: Say = print_now if console else lambda text: None
    folder, answers = Path(results_dir), list[Answer]()
    for answer in _answers(preset, seeds, minutes, engine, folder, say):
        say(answer.sentence())
        answers.append(answer)
        if record and answer.record is not None:
            keep_record(answer.record)
    result = Reproduction(tuple(answers), preset)
    if all or not answers:
        say(str(result).splitlines()[-1])
    return result


def _answers(
    preset: str | None, seeds: int, minutes: float | None, engine: str | None, folder: Path, say: Say
) -> Iterator[Answer]:
    if preset is None:
        assert minutes is not None
        yield from reproduce_all(seeds, minutes, folder, engine=engine, say=say)
        return
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    one = reproduce_preset(find_preset(preset), seeds, folder, engine=engine, deadline=deadline, say=say)
    if one is not None:
        yield one


def _check(preset: str | None, seeds: int, all: bool, minutes: float | None, engine: str | None, record: bool) -> None:
    """Check the arguments before anything is trained."""
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


def queue(results_dir: Path) -> list[Preset]:
    """Return every preset for a single environment. Presets without a stored result come last."""
    presets = [find_preset(f"{algorithm}/{env}") for algorithm, env in list_presets() if not env.endswith("*")]
    answered = {record.preset: str(record.date) for record in all_records(answers_file(results_dir))}
    timed = {record.preset: record.minutes_per_run for record in all_records(answers_file(results_dir))}

    def order(preset: Preset) -> tuple[bool, str, float]:
        key = (preset.algorithm, preset.env)
        cost = timed.get(key) or (preset.stored.minutes_per_run if preset.stored else None)
        if cost is None:
            changes = preset.stored.changes if preset.stored else {}
            budget = ((load_preset(*key) or {}) | changes).get("total_timesteps", 100_000)
            cost = budget / STEPS_PER_MINUTE
        return preset.stored is None, answered.get(key, ""), cost

    return sorted(presets, key=order)


def reproduce_all(
    seeds: int, minutes: float, results_dir: Path, *, engine: str | None = None, say: Say = print
) -> Iterator[Answer]:
    """Yield answers until the time is over. A preset with a missing package is reported and skipped; a preset whose
    training breaks has failed. Undecided presets get more seeds after all others are answered."""
    deadline, waiting = time.monotonic() + 60 * minutes, queue(results_dir)
    while waiting:
        undecided = []
        for preset in waiting:
            if time.monotonic() >= deadline:
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
