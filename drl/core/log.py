"""One `Log` per learning step, and the episodes that ended in it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from drl.core.specs import Array

# Bits that encode how an episode ended in one number. SUCCESS counts only together with REPORTED.
TRUNCATED, TERMINATED, SUCCESS, REPORTED = 1, 2, 4, 8

COUNTERS = ("env_steps", "episodes", "learning_steps")
GROUPS = ("rollout", "recent", "trainer", "learn", "evaluation", "time")
LOOKUP = (
    "recent",
    *(group for group in GROUPS if group != "recent"),
)  # the order in which groups are searched for a plain name
# What `print(log)` shows, if present.
HEADLINE = (
    "mean_ep_return", "loss", "policy_loss", "actor_loss", "value_loss", "critic_loss", "entropy", "approx_kl",
    "epsilon", "temperature",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Played:
    """What repeats an episode: its seed and its actions, in the environment's units."""

    seed: int
    actions: Array  # [length, …]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Played) and self.seed == other.seed and np.array_equal(self.actions, other.actions)


class Episode(NamedTuple):
    """One finished episode, from raw rewards."""

    episode_return: float
    length: int
    terminated: bool  # False: truncated
    success: bool | None  # see `judge_success`
    env_index: int  # index of the environment it ran in
    played: Played | None = None  # None: it cannot be repeated

    def then(self, action: Array) -> "Episode":
        """The same with one more action, whose outcome is unknown."""
        assert self.played is not None
        actions = [*self.played.actions, action]
        return self._replace(length=len(actions), played=Played(self.played.seed, np.array(actions)))

    def plain(self) -> list[Any]:
        """For a state dict."""
        played = [] if self.played is None else [self.played.seed, self.played.actions]
        return [*self[:5], *played]

    @classmethod
    def from_plain(cls, state: Sequence[Any]) -> "Episode":
        """From a state dict."""
        result, played = state[:5], state[5:]
        return cls(*result)._replace(played=Played(*played) if played else None)


@dataclass
class Log(Mapping[str, float]):
    """The numbers of one learning step. Stages read it and may add to `evaluation`.

    Groups map a plain name to a number; names that do not apply are absent. A log is also a read-only mapping from
    `group/name` to the number; a plain name finds the first group that has it, `recent` before `rollout`.

    >>> log = Log(env_steps=8, episodes=1, learning_steps=1, recent={"mean_ep_return": 21.5}, learn={"loss": 0.5})
    >>> log["mean_ep_return"], log["learn/loss"], "entropy" in log
    (21.5, 0.5, False)
    >>> dict(log)  # doctest: +NORMALIZE_WHITESPACE
    {'env_steps': 8, 'episodes': 1, 'learning_steps': 1, 'recent/mean_ep_return': 21.5, 'learn/loss': 0.5}
    >>> print(log)
    step 8 · 1 episode · mean_ep_return 21.5 · loss 0.5
    """

    env_steps: int  # environment steps since the start, whatever the number of environments
    episodes: int  # finished episodes since the start
    learning_steps: int  # learning steps since the start
    rollout: dict[str, float] = field(default_factory=dict)  # of this learning step
    recent: dict[str, float] = field(default_factory=dict)  # over the last N episodes
    trainer: dict[str, float] = field(default_factory=dict)  # counters and current schedules
    learn: dict[str, float] = field(default_factory=dict)  # what the algorithm reports, means over the step
    time: dict[str, float] = field(default_factory=dict)  # wall clock; the only group that differs between equal runs
    evaluation: dict[str, float] = field(default_factory=dict)  # added by the evaluation stage
    finished: list[Episode] = field(default_factory=list)  # episodes that ended in this learning step

    def state_dict(self) -> dict[str, Any]:
        counters = {name: getattr(self, name) for name in COUNTERS}
        groups = {name: dict(getattr(self, name)) for name in GROUPS}
        return counters | groups | {"finished": [episode.plain() for episode in self.finished]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Log":
        """From a state dict."""
        return cls(**{**state, "finished": [Episode.from_plain(episode) for episode in state["finished"]]})

    def flat(self) -> dict[str, float]:
        """All numbers under `group/name`, counters first.

        >>> Log(env_steps=8, episodes=1, learning_steps=1, learn={"loss": 0.5}).flat()
        {'env_steps': 8, 'episodes': 1, 'learning_steps': 1, 'learn/loss': 0.5}
        """
        flat: dict[str, float] = {name: getattr(self, name) for name in COUNTERS}
        for group in GROUPS:
            flat |= {f"{group}/{name}": value for name, value in getattr(self, group).items()}
        return flat

    def __getitem__(self, name: str) -> float:
        if name in COUNTERS:
            return getattr(self, name)  # type: ignore[no-any-return]
        group, _, plain = name.rpartition("/")
        for each in LOOKUP if not group else {group} & set(GROUPS):
            if plain in (numbers := getattr(self, each)):
                return numbers[plain]  # type: ignore[no-any-return]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.flat())

    def __len__(self) -> int:
        return len(self.flat())

    def __str__(self) -> str:
        count = f"step {self.env_steps:,} · {self.episodes:,} episode{'' if self.episodes == 1 else 's'}"
        shown = {name: self[name] for name in HEADLINE if name in self}
        shown |= {f"evaluation {name}": value for name, value in self.evaluation.items() if name == "mean_return"}
        return " · ".join([count, *(f"{name} {value:.4g}" for name, value in shown.items())])
