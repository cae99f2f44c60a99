"""What a run has written, as the checks need it: numbers over steps, episodes, settings. Nothing of it is trusted."""

import math
import os
import re
from functools import cached_property
from pathlib import Path

import gymnasium as gym
import numpy as np

from drl.core.agent_files import read_agent
from drl.core.errors import BadInput
from drl.core.specs import ActionSpec, Array, PlainDict
from drl.doctor.findings import Series
from drl.experiment.run_folder import find_agent_folder, read_record, read_settings
from drl.tracking.curves import column, episodes_of, trailing_mean
from drl.tracking.files import Row, evaluation_in, read_metrics

LEAST_ROWS, LEAST_EPISODES = 20, 20  # learning steps and episodes before anything is said about learning
LEAST_UPDATES = 1000  # the same for algorithms with a replay buffer, whose updates are small
FEW_ROWS = 5  # learning steps are enough where they have made that many updates
FIFTH = 5
LEAST_COMPARED = 10  # first and last episodes, if there are so many
FLAG = re.compile(r"--(?:no-)?([a-z][a-z-]+)")


class RunRecords:
    """The records of one run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.record: PlainDict = read_record(folder)
        self.settings: PlainDict = read_settings(folder)
        metrics = folder / "metrics.jsonl"
        self.rows: list[Row] = read_metrics(metrics) if os.path.lexists(metrics) else []
        finished = [episode for row in self.rows for episode in row.get("finished", ())]
        table = np.array(finished, float).reshape(len(finished), 4)  # null becomes NaN
        self.returns: Array = table[:, 0]
        self.lengths: Array = table[:, 1]
        self.terminated: Array = table[:, 2] > 0

    def setting(self, name: str, default: float) -> float:
        """A setting that is a number."""
        value = self.settings.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default

    def advice(self, *options: str) -> str:
        """Those of the options whose flags this run's algorithm has."""
        known = {"wrapper", *self.settings}
        kept = [text for text in options if all(flag.replace("-", "_") in known for flag in FLAG.findall(text))]
        return ", or ".join(kept or options)

    @property
    def slower(self) -> str:
        """The advice to learn more slowly."""
        return f"--learning-rate {self.setting('learning_rate', 1e-3) / 10:g} (a tenth of it)"

    @property
    def env_steps(self) -> int:
        return int(self.rows[-1].get("env_steps") or 0) if self.rows else 0

    @property
    def used(self) -> float:
        """The share of the budget that is used, in [0, 1]."""
        if budget := self.setting("num_episodes", 0.0):
            return min(len(self.returns) / budget, 1.0)
        budget = self.setting("total_timesteps", 100_000.0)
        return min(self.env_steps / budget, 1.0) if budget > 0 else 1.0

    @cached_property
    def early(self) -> bool:
        """Whether there is too little to judge learning by."""
        learned = sum(any(name.startswith("learn/") for name in row) for row in self.rows)
        few = "train_every" in self.settings and self.updates < LEAST_UPDATES
        return learned < self.least_rows or len(self.returns) < LEAST_EPISODES or few

    @property
    def least_rows(self) -> int:
        """Learning steps to judge by: a few are enough if they were long."""
        return FEW_ROWS if self.updates >= LEAST_UPDATES else LEAST_ROWS

    @cached_property
    def updates(self) -> int:
        """Gradient steps so far."""
        if rounds := self.setting("train_every", 0.0):
            steps = max(self.env_steps - self.setting("warmup", 0.0), 0.0)
            return int(steps / rounds * self.setting("gradient_steps", 1.0))
        logged = self.series("trainer/gradient_steps")
        return len(self.rows) if logged is None else int(min(logged.y.sum(), 1e15))

    @cached_property
    def improved(self) -> bool:
        """Whether the last fifth of the episodes is better than the first, beyond chance, or solves the environment."""
        count = max(len(self.returns) // FIFTH, min(LEAST_COMPARED, len(self.returns) // 2))
        return self.solved or is_better(self.returns[:count], self.returns[-count:])

    @cached_property
    def solved(self) -> bool:
        """Whether the last episodes reach the `reward_threshold` of an environment that is used as registered."""
        spec = gym.registry.get(str(self.settings.get("env")))
        changed = self.settings.get("wrappers") or self.settings.get("env_kwargs")
        threshold = None if spec is None or changed else spec.reward_threshold
        return threshold is not None and len(self.returns) > 0 and bool(last_fifth(self.returns).mean() >= threshold)

    @property
    def begins_trained(self) -> bool:
        """Whether its first agent had learned before."""
        return bool(self.settings.get("from_agent") or self.record.get("forked_from"))

    def series(self, name: str, limit: float | None = None) -> Series | None:
        """A column of metrics.jsonl, where it has numbers; None: it has none."""
        values = column(self.rows, name)
        there = np.isfinite(values)
        return Series(name, column(self.rows, "env_steps")[there], values[there], limit) if there.any() else None

    def learned(self, name: str, limit: float | None = None, rows: int | None = None) -> Series | None:
        """What the algorithm reports; None also if there are too few numbers to judge, fewer than `rows`."""
        series = self.series(f"learn/{name}", limit)
        return series if series is not None and len(series.y) >= (rows or self.least_rows) else None

    def smooth_returns(self) -> Series:
        """Returns of episodes, as a trailing mean over a tenth of them."""
        window = max(10, len(self.returns) // 10)
        smooth = trailing_mean(self.returns, window)
        return Series(f"return, mean of {window} episodes", episodes_of(self.rows).env_steps, smooth)

    @cached_property
    def action_spec(self) -> ActionSpec | None:
        """Of the agent that the run keeps; None: it keeps none yet."""
        try:
            card, _ = read_agent(find_agent_folder(self.folder))
        except BadInput:
            return None
        return ActionSpec.from_json(card["action_spec"])

    def evaluations(self) -> list[tuple[Row, PlainDict]]:
        """Rows of metrics with the evaluation that was made at them, the final one with the last row."""
        found: list[tuple[Row, PlainDict]] = []
        for row in self.rows:
            if numbers := evaluation_in(row):
                found.append((row, numbers))
        final = self.record.get("final_evaluation")
        return found + ([(self.rows[-1], final)] if isinstance(final, dict) and self.rows else [])


def is_better(first: Array, last: Array) -> bool:
    """Whether the mean of the second is higher, by more than 2 standard errors."""
    if min(len(first), len(last)) < 2:
        return False
    error = math.sqrt(np.nanvar(first) / len(first) + np.nanvar(last) / len(last))
    return bool(np.nanmean(last) - np.nanmean(first) > max(2 * error, 1e-9))


def halves(series: Series) -> tuple[Array, Array]:
    """The first and the second half of a series."""
    return series.y[: len(series.y) // 2], series.y[len(series.y) // 2 :]


def last_fifth(values: Array) -> Array:
    """The newest values."""
    return values[-max(len(values) // FIFTH, 1) :]


def first_fifth(values: Array) -> Array:
    """The oldest values."""
    return values[: max(len(values) // FIFTH, 1)]
