"""`Log`, one per learning step, and `Episode`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, SupportsFloat

import numpy as np

from drl.core.errors import BadInput, shown
from drl.core.specs import Array, PlainValue
from drl.core.state_files import StateDict

# Bits that encode how an episode ended in one number. SUCCESS counts only together with REPORTED.
TRUNCATED, TERMINATED, SUCCESS, REPORTED = 1, 2, 4, 8

COUNTERS = ("env_steps", "episodes", "learning_steps")
GROUPS = ("rollout", "recent", "trainer", "learn", "evaluation", "info", "custom", "time")
NO_NUMBERS: Mapping[str, float] = {}  # never modified; a read-only proxy cannot be sent to other processes
MOST_LETTERS = 100  # of the name of a number
# The order in which groups are searched for a plain name.
LOOKUP = ("recent", "rollout", "trainer", "learn", "evaluation", "info", "custom", "time")
# Numbers that `print(log)` shows, if present.
HEADLINE = (
    "mean_ep_return", "loss", "policy_loss", "actor_loss", "value_loss", "critic_loss", "entropy", "approx_kl",
    "epsilon", "temperature",
)  # fmt: skip


class Change(NamedTuple):
    """An attribute that was set on an environment, before or during an episode."""

    after: int  # actions of the episode before it; -1: before its reset
    name: str
    value: PlainValue  # plain data; see `drl.envs.env_attributes.stored_or_lost`


@dataclass(frozen=True, eq=False)
class Played:
    """Data to replay an episode: its seed, its actions in the environment's units, and changed attributes."""

    seed: int
    actions: Array  # [length, …]
    changes: tuple[Change, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Played) or (self.seed, self.changes) != (other.seed, other.changes):
            return False
        return np.array_equal(self.actions, other.actions)


class Episode(NamedTuple):
    """One finished episode, with raw rewards."""

    episode_return: float
    length: int
    terminated: bool  # False: truncated
    success: bool | None  # see `judge_success`
    env_index: int  # index of the environment it ran in
    played: Played | None = None  # None: it cannot be replayed
    info: Mapping[str, float] = NO_NUMBERS  # the numbers in its last info

    def then(self, action: Array) -> "Episode":
        """Return this episode with one more action, whose outcome is unknown."""
        assert self.played is not None
        actions = [*self.played.actions, action]
        played = Played(self.played.seed, np.array(actions), self.played.changes)
        return self._replace(length=len(actions), played=played)

    def plain(self) -> list[PlainValue]:
        """Convert to plain data for a state dict."""
        played: list[PlainValue] = [None, None, []]
        if self.played is not None:
            played = [self.played.seed, self.played.actions, [list(change) for change in self.played.changes]]
        return [*self[:5], *played, dict(self.info)]

    @classmethod
    def from_plain(cls, state: Sequence[PlainValue]) -> "Episode":
        """Read from a state dict."""
        result, (seed, actions, changes, info) = state[:5], state[5:]
        played = None if seed is None else Played(seed, actions, tuple(Change(*change) for change in changes))
        return cls(*result)._replace(played=played, info=info)


@dataclass
class Log(Mapping[str, float]):
    """The metrics of one learning step. Stages read it; `add` adds your own metrics.

    Each group maps names to numbers; metrics that do not apply are absent. A log is also a read-only mapping with
    `group/name` as keys. A plain name is looked up in all groups, in `recent` before `rollout`.

    >>> log = Log(env_steps=8, episodes=1, learning_steps=1, recent={"mean_ep_return": 21.5}, learn={"loss": 0.5})
    >>> log["mean_ep_return"], log["learn/loss"], "entropy" in log
    (21.5, 0.5, False)
    >>> dict(log)  # doctest: +NORMALIZE_WHITESPACE
    {'env_steps': 8, 'episodes': 1, 'learning_steps': 1, 'recent/mean_ep_return': 21.5, 'learn/loss': 0.5}
    >>> print(log)
    step 8 · 1 episode · mean_ep_return 21.5 · loss 0.5
    """

    env_steps: int  # environment steps since the start, over all environments
    episodes: int  # finished episodes since the start
    learning_steps: int  # learning steps since the start
    rollout: dict[str, float] = field(default_factory=dict)  # of this learning step
    recent: dict[str, float] = field(default_factory=dict)  # over the last N episodes
    trainer: dict[str, float] = field(default_factory=dict)  # counters and current schedules
    learn: dict[str, float] = field(default_factory=dict)  # metrics of the algorithm, means over the step
    time: dict[str, float] = field(default_factory=dict)  # wall clock; the only group that differs between equal runs
    evaluation: dict[str, float] = field(default_factory=dict)  # added by the evaluation stage
    info: dict[str, float] = field(default_factory=dict)  # means over the last infos of episodes in this learning step
    custom: dict[str, float] = field(default_factory=dict)  # numbers from `add`
    finished: list[Episode] = field(default_factory=list)  # episodes that ended in this learning step

    def add(self, name: str, value: SupportsFloat) -> None:
        """Add a number to the group `custom`, for all trackers, files and plots. NaN and infinite numbers are skipped.

        >>> log = Log(env_steps=8, episodes=1, learning_steps=1)
        >>> log.add("level", 3)
        >>> log["level"], log["custom/level"]
        (3.0, 3.0)
        """
        if (why := wrong_name(name)) is not None:
            raise BadInput(f"log.add got the name {shown(name)}; {why}")
        if name in self or f"custom/{name}" in self:
            group = next((group for group in LOOKUP if name in self.groups[group]), "its counters")
            raise BadInput(f"log.add got the name {name!r}, which is in {group} of this log; choose another name")
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            raise BadInput(f"log.add({name!r}) got {shown(value)}; expected a number") from None
        if math.isfinite(number):
            self.custom[name] = number

    @property
    def counters(self) -> dict[str, float]:
        """The counters by name."""
        return {name: getattr(self, name) for name in COUNTERS}

    @property
    def groups(self) -> dict[str, dict[str, float]]:
        """The groups by name."""
        return {name: getattr(self, name) for name in GROUPS}

    def state_dict(self) -> StateDict:
        groups = {name: dict(numbers) for name, numbers in self.groups.items()}
        return self.counters | groups | {"finished": [episode.plain() for episode in self.finished]}

    @classmethod
    def from_state(cls, state: StateDict) -> "Log":
        """Read from a state dict."""
        return cls(**{**state, "finished": [Episode.from_plain(episode) for episode in state["finished"]]})

    def flat(self) -> dict[str, float]:
        """Return all numbers by `group/name`, counters first.

        >>> Log(env_steps=8, episodes=1, learning_steps=1, learn={"loss": 0.5}).flat()
        {'env_steps': 8, 'episodes': 1, 'learning_steps': 1, 'learn/loss': 0.5}
        """
        numbers = {f"{group}/{name}": value for group, part in self.groups.items() for name, value in part.items()}
        return self.counters | numbers

    def __getitem__(self, name: str) -> float:
        group, _, plain = name.partition("/")
        if plain and group in GROUPS:
            return self.groups[group][plain]
        groups = self.groups
        for numbers in (self.counters, *(groups[each] for each in LOOKUP)):
            if name in numbers:
                return numbers[name]
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


def wrong_name(name: object) -> str | None:
    """Return why a text cannot be the name of a metric; None: it can."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        return "expected a text that can be printed"
    return None if len(name) <= MOST_LETTERS else f"expected at most {MOST_LETTERS} letters"
