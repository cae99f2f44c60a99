"""Counters and recent episodes of a run, and the `Log` of one learning step made from them."""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from statistics import fmean
from typing import Any

from drl.core.errors import NonFinite
from drl.core.log import Episode, Log, rates

SETTINGS = ("learning_rate", "clip_range", "gradient_steps")  # logged beside the counters, not as results
MAY_BE_NAN = ("explained_variance",)  # of a rollout whose returns are all equal: nothing to explain


class TrainingStats:
    """What every trainer keeps of a run, however its learning steps come about."""

    def __init__(self, window: int, total_timesteps: int | None = None, num_episodes: int | None = None):
        self.total_timesteps, self.num_episodes = total_timesteps, num_episodes  # the budget: one of them, or none
        self.env_steps = 0
        self.learning_steps = 0
        self.episodes = 0
        self.recent: deque[Episode] = deque(maxlen=window)
        self.finished: list[Episode] = []  # since the last learning step
        self.new_steps = 0  # environment steps since then
        self.reward_sum = 0.0  # of all environments since then
        self.seconds = 0.0  # of work so far

    @property
    def progress(self) -> float:
        """Share of the budget used so far, in [0, 1]; 0 where none is given."""
        if self.total_timesteps:
            return min(self.env_steps / self.total_timesteps, 1.0)
        return min(self.episodes / self.num_episodes, 1.0) if self.num_episodes else 0.0

    def note(self, steps: int, reward: float, episodes: Iterable[Episode]) -> None:
        """What happened in the environments."""
        self.env_steps += steps
        self.new_steps += steps
        self.reward_sum += reward
        for episode in episodes:
            self.episodes += 1
            self.recent.append(episode)
            self.finished.append(episode)

    def log(self, learned: dict[str, float], elapsed: float, counters: dict[str, float] | None = None) -> Log:
        """Close a learning step that took `elapsed` seconds; `learned` is what the algorithm reports."""
        self.learning_steps += 1
        self.seconds += elapsed
        steps = self.new_steps
        rollout = {"rollout_len": float(steps), "mean_reward": self.reward_sum / steps if steps else 0.0}
        trainer: dict[str, float] = {
            "episodes_count": self.episodes,
            "timesteps_count": self.env_steps,
            "rollouts_count": self.learning_steps,
        }
        if self.total_timesteps:
            trainer["total_timesteps"] = self.total_timesteps
        trainer |= counters or {}
        trainer |= {name: learned.pop(name) for name in SETTINGS if name in learned}
        log = Log(
            env_steps=self.env_steps,
            episodes=self.episodes,
            learning_steps=self.learning_steps,
            rollout=_episode_means(self.finished) | rollout,
            recent=_recent_means(self.recent),
            trainer=trainer,
            learn={name: value for name, value in learned.items() if not math.isnan(value) or name not in MAY_BE_NAN},
            time={"time_elapsed": elapsed, "steps_per_second": self.env_steps / max(self.seconds, 1e-9)},
            finished=self.finished,
        )
        self.finished, self.new_steps, self.reward_sum = [], 0, 0.0
        _check_finite(log)
        return log

    def state_dict(self) -> dict[str, Any]:
        return {
            "counters": [self.env_steps, self.learning_steps, self.episodes, self.new_steps],
            "numbers": [self.reward_sum, self.seconds],
            "recent": [list(episode) for episode in self.recent],
            "finished": [list(episode) for episode in self.finished],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env_steps, self.learning_steps, self.episodes, self.new_steps = (int(n) for n in state["counters"])
        self.reward_sum, self.seconds = (float(number) for number in state["numbers"])
        self.recent = deque((Episode(*e) for e in state["recent"]), maxlen=self.recent.maxlen)
        self.finished = [Episode(*e) for e in state["finished"]]


class TrainerLoop(ABC):
    """A generator of logs that keeps a journal: what every trainer is. It ends at the budget that its config states;
    where none is given it never does."""

    stats: TrainingStats

    def __call__(self) -> Iterator[Log]:
        while not self.over:
            yield self.step()

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        return self.stats.progress >= 1.0

    @abstractmethod
    def step(self) -> Log:
        """One learning step."""

    @property
    def in_sync(self) -> bool:
        """Whether the agent is as the last log left it, not already ahead."""
        return True

    @property
    def env_steps(self) -> int:
        return self.stats.env_steps

    @property
    def episodes(self) -> int:
        return self.stats.episodes

    @property
    def learning_steps(self) -> int:
        return self.stats.learning_steps


def _episode_means(episodes: Collection[Episode]) -> dict[str, float]:
    if not episodes:
        return {}
    return {
        "mean_ep_len": fmean([e.length for e in episodes]),
        "mean_ep_return": fmean([e.episode_return for e in episodes]),
    }


def _recent_means(episodes: deque[Episode]) -> dict[str, float]:
    if not episodes:
        return {}
    return _episode_means(episodes) | rates(episodes) | {"window": len(episodes)}


def _check_finite(log: Log) -> None:
    bad = [name for name, value in log.flat().items() if not math.isfinite(value)]
    if bad:
        raise NonFinite(
            f"{', '.join(bad)} became non-finite at environment step {log.env_steps}; "
            f"try a smaller learning rate, gradient clipping (--max-grad-norm) or reward normalization"
        )
