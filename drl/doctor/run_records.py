"""Evidence about a run for the checks: its records, which are untrusted, and the play of its agent."""

import math
import os
import re
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np

from drl.agents.agent_env import EnvOptions, open_vec_env
from drl.agents.evaluation import check_fit, own_stream
from drl.core.agent_files import read_agent
from drl.core.contracts import Agent
from drl.core.errors import BadInput
from drl.core.specs import ActionSpec, Array, PlainDict
from drl.doctor.findings import Series
from drl.envs.env_config import EnvConfig
from drl.runs.folder.run_folder import find_agent_folder, read_record, read_settings
from drl.tracking.curves import EpisodeTable, column, episodes_of, trailing_mean
from drl.tracking.files import Row, evaluation_in, read_metrics

LEAST_ROWS, LEAST_EPISODES = 20, 20  # learning steps and episodes needed to judge learning
LEAST_UPDATES = 1000  # updates needed with a replay buffer, whose updates are small
FEW_ROWS = 5  # learning steps that suffice after LEAST_UPDATES updates
FIFTH = 5
LEAST_COMPARED = 10  # first and last episodes to compare, if there are enough
NUM_ENVS = 4  # in which the agent plays
FLAG = re.compile(r"--(?:no-)?([a-z][a-z-]+)")


class RunRecords:
    """The records of one run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.record: PlainDict = read_record(folder)
        self.settings: PlainDict = read_settings(folder)
        metrics = folder / "metrics.jsonl"
        self.rows: list[Row] = read_metrics(metrics) if os.path.lexists(metrics) else []
        self.episodes: EpisodeTable = episodes_of(self.rows)
        self.returns: Array = self.episodes.returns

    def setting(self, name: str, default: float) -> float:
        """Return a numeric setting."""
        value = self.settings.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default

    def advice(self, *options: str) -> str:
        """Join the options whose flags this run's algorithm has."""
        known = {"wrapper", *self.settings}
        fitting = [text for text in options if all(flag.replace("-", "_") in known for flag in FLAG.findall(text))]
        return ", or ".join(fitting or options)

    @property
    def slower(self) -> str:
        """The advice to reduce the learning rate."""
        return f"--learning-rate {self.setting('learning_rate', 1e-3) / 10:g} (a tenth)"

    @property
    def env_steps(self) -> int:
        return int(self.rows[-1].get("env_steps") or 0) if self.rows else 0

    @property
    def used(self) -> float:
        """Used share of the budget, in [0, 1]."""
        if budget := self.setting("num_episodes", 0.0):
            return min(len(self.returns) / budget, 1.0)
        budget = self.setting("total_timesteps", 100_000.0)
        return min(self.env_steps / budget, 1.0) if budget > 0 else 1.0

    @cached_property
    def early(self) -> bool:
        """Whether there is too little data to judge learning."""
        learned = sum(any(name.startswith("learn/") for name in row) for row in self.rows)
        few = "train_every" in self.settings and self.updates < LEAST_UPDATES
        return learned < self.least_rows or len(self.returns) < LEAST_EPISODES or few

    @property
    def least_rows(self) -> int:
        """Learning steps needed for a judgement; fewer if they were long."""
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
        """Whether the last fifth of the episodes is significantly better than the first, or solves the environment."""
        count = max(len(self.returns) // FIFTH, min(LEAST_COMPARED, len(self.returns) // 2))
        return self.solved or is_better(self.returns[:count], self.returns[-count:])

    @cached_property
    def solved(self) -> bool:
        """Whether the last episodes reach the `reward_threshold` of an environment with its registered settings."""
        spec = gym.registry.get(str(self.settings.get("env")))
        changed = self.settings.get("wrappers") or self.settings.get("env_kwargs")
        threshold = None if spec is None or changed else spec.reward_threshold
        return threshold is not None and len(self.returns) > 0 and bool(last_fifth(self.returns).mean() >= threshold)

    def series(self, name: str, limit: float | None = None) -> Series | None:
        """Return the numbers of a column of metrics.jsonl; None if it has none."""
        values = column(self.rows, name)
        there = np.isfinite(values)
        return Series(name, column(self.rows, "env_steps")[there], values[there], limit) if there.any() else None

    def learned(self, name: str, limit: float | None = None, rows: int | None = None) -> Series | None:
        """Return a metric of the updates; None also if there are fewer than `rows` numbers, too few to judge."""
        series = self.series(f"learn/{name}", limit)
        return series if series is not None and len(series.y) >= (rows or self.least_rows) else None

    def smooth_returns(self) -> Series:
        """Return episode returns smoothed by a trailing mean over a tenth of them."""
        window = max(10, len(self.returns) // 10)
        smooth = trailing_mean(self.returns, window)
        return Series(f"return, mean of {window} episodes", self.episodes.env_steps, smooth)

    @cached_property
    def action_spec(self) -> ActionSpec | None:
        """Action spec of the saved agent; None if there is none yet."""
        try:
            card, _ = read_agent(find_agent_folder(self.folder))
        except BadInput:
            return None
        return ActionSpec.from_json(card["action_spec"])

    def evaluations(self) -> list[tuple[Row, PlainDict]]:
        """Return rows of metrics with their evaluations; the final evaluation belongs to the last row."""
        evaluations = [(row, numbers) for row in self.rows if (numbers := evaluation_in(row))]
        final = self.record.get("final_evaluation")
        return evaluations + ([(self.rows[-1], final)] if isinstance(final, dict) and self.rows else [])


def is_better(first: Array, last: Array) -> bool:
    """Whether the mean of `last` is higher than that of `first` by more than 2 standard errors."""
    if min(len(first), len(last)) < 2:
        return False
    error = math.sqrt(np.nanvar(first) / len(first) + np.nanvar(last) / len(last))
    return bool(np.nanmean(last) - np.nanmean(first) > max(2 * error, 1e-9))


def last_half(series: Series) -> Array:
    """The newer half of the values."""
    return series.y[len(series.y) // 2 :]


def last_fifth(values: Array) -> Array:
    """The newest values."""
    return values[-max(len(values) // FIFTH, 1) :]


def first_fifth(values: Array) -> Array:
    """The oldest values."""
    return values[: max(len(values) // FIFTH, 1)]


class AgentPlay(NamedTuple):
    """Observations and actions of the agent without exploration."""

    agent: Agent
    obs: Array  # [M, …] encoded
    actions: Array  # [M, …] in the policy's units
    rewards: Array  # [M]
    policy: Array | None  # [M, choices] probabilities of discrete actions
    values: Array | None  # [M] predicted values


def play_agent(agent: Agent, config: EnvConfig, steps: int, seed: int, vectorization: str) -> AgentPlay:
    """Let the agent play `steps` steps in a few parallel environments."""
    options: EnvOptions = {"vectorization": vectorization}
    rows: list[tuple[Array, Array, Array]] = []
    policies, values = list[Array](), list[Array]()
    with open_vec_env(config, NUM_ENVS, seed, seeds_stream="evaluation", **options) as envs, own_stream(agent, seed):
        check_fit(agent, envs.obs_spec, envs.action_spec, config.env)
        obs = envs.reset()
        agent.begin()
        for _ in range(-(-steps // NUM_ENVS)):
            explained = agent.explain_encoded(obs, envs.action_mask)
            action = agent.decide(obs, False, envs.action_mask)
            step = envs.step(agent.action_spec.to_env(action))
            rows.append((obs.copy(), action, step.reward))
            if "policy" in explained and agent.action_spec.kind == "discrete":
                policies.append(explained["policy"])
            if "value" in explained or "q" in explained:
                values.append(explained["value"] if "value" in explained else explained["q"].max(axis=-1))
            obs = step.obs
            if agent.recurrent:
                agent.begin(step.over)
    all_obs, actions, rewards = (np.concatenate(column) for column in zip(*rows, strict=True))
    policy, value = (np.concatenate(parts) if parts else None for parts in (policies, values))
    return AgentPlay(agent, all_obs, actions, rewards, policy, value)
