"""One `Log` per learning step, and the episodes that ended in it."""

from dataclasses import dataclass, field
from typing import NamedTuple

TRUNCATED, TERMINATED, SUCCESS = 1, 2, 4  # bits that tell how an episode ended, where it has to be one number


class Episode(NamedTuple):
    """One finished episode, from raw rewards."""

    episode_return: float
    length: int
    terminated: bool  # False: cut by a clock
    success: bool  # the world's own `is_success` where it reports one, else `terminated`
    world: int  # index of the world it ran in


@dataclass
class Log:
    """What one learning step did. Stages read it and may add to `evaluation`.

    Groups map a plain name to a number; a field that does not apply is left out.
    """

    env_steps: int  # environment steps since the start, whatever the number of worlds
    episodes: int  # finished episodes since the start
    learning_steps: int  # how many `next()` the trainer has answered
    rollout: dict[str, float] = field(default_factory=dict)  # of this learning step
    recent: dict[str, float] = field(default_factory=dict)  # over the last N episodes
    trainer: dict[str, float] = field(default_factory=dict)  # counters and current schedules
    learn: dict[str, float] = field(default_factory=dict)  # what the algorithm reports, means over the step
    time: dict[str, float] = field(default_factory=dict)  # wall clock; the only group that differs between equal runs
    evaluation: dict[str, float] = field(default_factory=dict)  # added by the evaluation stage
    finished: list[Episode] = field(default_factory=list)  # episodes that ended in this learning step

    def flat(self) -> dict[str, float]:
        """All numbers under `group/name`, counters first.

        >>> Log(env_steps=8, episodes=1, learning_steps=1, learn={"loss": 0.5}).flat()
        {'env_steps': 8, 'episodes': 1, 'learning_steps': 1, 'learn/loss': 0.5}
        """
        flat: dict[str, float] = {
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "learning_steps": self.learning_steps,
        }
        for group in ("rollout", "recent", "trainer", "learn", "evaluation", "time"):
            flat |= {f"{group}/{name}": value for name, value in getattr(self, group).items()}
        return flat
