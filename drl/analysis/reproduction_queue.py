"""`drl reproduce --all`: as many presets as the time allows, the least recently reproduced first, then the cheapest."""

import time
from collections.abc import Iterator
from pathlib import Path

from drl.analysis.reproduction import Answer, Preset, Say, answers_file, find_preset, reproduce
from drl.core.errors import BadInput, DrlError
from drl.experiment.preset_records import UNDECIDED, all_records
from drl.experiment.presets import list_presets, load_preset

STEPS_PER_MINUTE = 30_000  # where nothing was timed


def queue(results_dir: Path) -> list[Preset]:
    """Every preset of one environment. Those without a stored result come last."""
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
    """Answers, until the time is over. A preset that cannot be made here, for lack of a package, is named and left out;
    one that breaks in training has failed. Undecided ones get further seeds when all others are answered."""
    deadline, waiting = time.monotonic() + 60 * minutes, queue(results_dir)
    while waiting:
        undecided = []
        for preset in waiting:
            if time.monotonic() >= deadline:
                return
            try:
                answer = reproduce(preset, seeds, results_dir, engine=engine, deadline=deadline, say=say)
            except BadInput as error:
                say(f"{preset.name}: left out: {error}")
                continue
            except DrlError as error:
                answer = Answer(preset, None, None, error)
            if answer is None:
                say(f"{preset.name}: the time is over; the same command goes on here")
                return
            yield answer
            if answer.verdict == UNDECIDED and answer.judgement is not None and answer.judgement.more_seeds:
                undecided.append(preset)
        waiting = undecided
