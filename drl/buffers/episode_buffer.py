"""The buffer of whole episodes, for learners that need true returns (REINFORCE)."""

from typing import Protocol

import numpy as np

from drl.core.configs import NoSettings
from drl.core.contracts import VecStep
from drl.core.errors import BadInput
from drl.core.specs import Array, DType, ManySpecs
from drl.core.state_files import StateDict
from drl.core.transition import RolloutBatch

_ROWS = ("obs", "action", "reward", "terminated", "truncated", "action_mask")


class EpisodeBuffer:
    """Collects `num_episodes` whole episodes; a batch holds them one after another in a single column.

    With one environment this is textbook REINFORCE. With several, episodes that are still running stay in the buffer,
    so some of their rows come from the policy before the last update.
    """

    stops_anywhere: bool = False
    takes_sequences: bool = False
    updates_per_log: int = 1  # an episode has at least one step
    first_update: int = 1

    def __init__(self, envs: ManySpecs, num_episodes: int = 1):
        self.num_episodes: int = num_episodes
        self.num_envs: int = envs.num_envs
        self.obs_shape: tuple[int, ...] = envs.obs_spec.shape
        self.obs_dtype: DType = envs.obs_spec.dtype
        self.running: list[dict[str, list[Array]]] = [_empty() for _ in range(envs.num_envs)]
        self.complete: list[dict[str, Array]] = []  # stacked rows of each episode, and its final observation

    def attach(self, config: object) -> None:
        wanted = getattr(config, "episodes_per_step", self.num_episodes)
        if wanted != self.num_episodes:
            raise BadInput(
                f"the algorithm's episodes_per_step is {wanted}, but the buffer collects {self.num_episodes}; use "
                f"EpisodeBuffer(envs, {wanted}), or leave the buffer out"
            )

    @property
    def ready(self) -> bool:
        return len(self.complete) >= self.num_episodes

    def add(self, obs: Array, action: Array, step: VecStep, action_mask: Array | None = None) -> None:
        for env in np.flatnonzero(step.valid):
            rows = self.running[env]
            legal = True if action_mask is None else action_mask[env].copy()  # True: all
            values = (obs[env].copy(), np.copy(action[env]), *(flag[env] for flag in step[:3]), legal)
            for name, value in zip(_ROWS, values, strict=True):
                rows[name].append(value)
            if step.terminated[env] or step.truncated[env]:
                self.complete.append(_stack(rows) | {"final_obs": step.next_obs[env].copy()})
                self.running[env] = _empty()

    def take(self) -> RolloutBatch:
        episodes, self.complete = self.complete, []
        rows = {name: np.concatenate([episode[name] for episode in episodes])[:, None] for name in _ROWS}
        ends = np.cumsum([len(episode["reward"]) for episode in episodes]) - 1
        finals = np.stack([episode["final_obs"] for episode in episodes])
        rows["reward"] = rows["reward"].astype(np.float32)
        valid = np.ones_like(rows["terminated"])
        legal = rows.pop("action_mask")
        masks = legal if legal.ndim == 3 else None
        last = {"last_obs": finals[-1:], "final_index": ends, "final_obs": finals}
        return RolloutBatch(**rows, valid=valid, **last, action_mask=masks)

    def remember(self, rnn_state: Array) -> None:
        """Recurrent agents learn from rollouts."""

    def update_priorities(self, index: Array, error: Array) -> None:
        """Episodes are used once; there are no priorities."""

    def cut(self) -> None:
        self.running = [_empty() for _ in range(self.num_envs)]

    def state_dict(self) -> StateDict:
        return {"running": [_stack(rows) for rows in self.running], "complete": list(self.complete)}

    def load_state_dict(self, state: StateDict) -> str | None:
        self.running = [{name: list(rows[name]) for name in _ROWS} for rows in state["running"]]
        self.complete = list(state["complete"])
        return None


def _empty() -> dict[str, list[Array]]:
    return {name: [] for name in _ROWS}


def _stack(rows: dict[str, list[Array]]) -> dict[str, Array]:
    return {name: np.array(values) for name, values in rows.items()}


class EpisodesConfig(Protocol):
    """What the buffer reads from an algorithm's config."""

    @property
    def episodes_per_step(self) -> int:
        """Complete episodes per learning step."""


def make_episode_buffer(
    learner: EpisodesConfig,
    config: NoSettings,
    envs: ManySpecs,
    rng: np.random.Generator,
    frame_stack: int = 1,
) -> EpisodeBuffer:
    """For an algorithm's record."""
    return EpisodeBuffer(envs, learner.episodes_per_step)
