"""On-policy buffers: the last T steps of N environments `[T, N]`, or whole episodes for true returns (REINFORCE)."""

from typing import Protocol

import numpy as np

from drl.core.configs import NoSettings
from drl.core.contracts import RolloutBatch, VecStep
from drl.core.errors import BadInput
from drl.core.specs import Array, DType, ManySpecs
from drl.core.state_files import StateDict


class RolloutBuffer:
    """Collects exactly `length` steps of every environment, gives them once, and starts again.

    >>> import drl
    >>> with drl.make_vec_env("CartPole-v1", num_envs=2) as envs:
    ...     RolloutBuffer(envs, length=16).obs.shape
    (16, 2, 4)
    """

    stops_anywhere: bool = False
    takes_sequences: bool = True
    updates_per_log = 1

    def __init__(self, envs: ManySpecs, length: int = 128):
        obs_spec, action_spec, num_envs = envs.obs_spec, envs.action_spec, envs.num_envs
        self.length: int = length
        self.num_envs: int = num_envs
        self.first_update: int = length * num_envs
        self.obs: Array = np.zeros((length, num_envs, *obs_spec.shape), obs_spec.dtype)
        self.action: Array = np.zeros((length, num_envs, *action_spec.policy_shape), action_spec.policy_dtype)
        self.reward: Array = np.zeros((length, num_envs), np.float32)
        self.terminated: Array = np.zeros((length, num_envs), bool)
        self.truncated: Array = np.zeros((length, num_envs), bool)
        self.valid: Array = np.zeros((length, num_envs), bool)
        self.last_obs: Array = np.zeros((num_envs, *obs_spec.shape), obs_spec.dtype)
        self.final_index: list[int] = []
        self.final_obs: list[Array] = []
        self.action_mask: Array | None = None  # [T, N, choices]; None before the first mask
        self.rnn_state: Array | None = None  # of a recurrent agent at the start of the window
        self.cursor: int = 0

    def attach(self, config: object) -> None:
        wanted = getattr(config, "rollout_length", self.length)
        if wanted != self.length:
            raise BadInput(
                f"the algorithm's rollout_length is {wanted}, but the buffer collects {self.length} steps; use "
                f"RolloutBuffer(envs, {wanted}), or leave the buffer out"
            )

    @property
    def ready(self) -> bool:
        return self.cursor == self.length

    def remember(self, rnn_state: Array) -> None:
        """Call before every `add` with a recurrent agent's state `[N, S]`. The first of the window is stored; the
        learner recomputes the others from it."""
        if self.cursor == 0:
            self.rnn_state = rnn_state.copy()

    def add(self, obs: Array, action: Array, step: VecStep, action_mask: Array | None = None) -> None:
        t = self.cursor
        if action_mask is not None:
            if self.action_mask is None:
                self.action_mask = np.ones((self.length, *action_mask.shape), bool)
            self.action_mask[t] = action_mask
        self.obs[t] = obs
        self.action[t] = action
        self.reward[t] = step.reward
        self.terminated[t] = step.terminated
        self.truncated[t] = step.truncated
        self.valid[t] = step.valid
        if step.episodes:
            for env in np.flatnonzero(step.terminated | step.truncated):
                self.final_index.append(t * self.num_envs + int(env))
                self.final_obs.append(step.next_obs[env].copy())
        self.cursor = t + 1
        if self.cursor == self.length:
            self.last_obs[:] = step.obs

    def take(self) -> RolloutBatch:
        """The window. Its arrays are reused: they are valid until the next `add`."""
        final_index = np.asarray(self.final_index, np.int64)
        final_obs = np.asarray(self.final_obs, self.obs.dtype).reshape(-1, *self.obs.shape[2:])
        self.cursor, self.final_index, self.final_obs = 0, [], []
        rows = (self.obs, self.action, self.reward, self.terminated, self.truncated, self.valid)
        return RolloutBatch(*rows, self.last_obs, final_index, final_obs, self.rnn_state, self.action_mask)

    def update_priorities(self, index: Array, error: Array) -> None:
        """Rollouts are used once; there are no priorities."""

    def cut(self) -> None:
        """The rows of an unfinished window are given up: what would follow them is lost."""
        self.cursor, self.final_index, self.final_obs, self.rnn_state = 0, [], [], None

    def state_dict(self) -> StateDict:
        names = ("obs", "action", "reward", "terminated", "truncated", "valid", "last_obs")
        arrays = {name: getattr(self, name).copy() for name in names}
        finals = np.asarray(self.final_obs, self.obs.dtype).reshape(-1, *self.obs.shape[2:])
        return arrays | {
            "final_index": np.asarray(self.final_index, np.int64),
            "final_obs": finals,
            "rnn_state": None if self.rnn_state is None else self.rnn_state.copy(),
            "action_mask": None if self.action_mask is None else self.action_mask.copy(),
            "cursor": self.cursor,
        }

    def load_state_dict(self, state: StateDict) -> str | None:
        for name in ("obs", "action", "reward", "terminated", "truncated", "valid", "last_obs"):
            getattr(self, name)[:] = state[name]
        self.final_index = [int(i) for i in state["final_index"]]
        self.final_obs = list(state["final_obs"])
        self.rnn_state = None if state["rnn_state"] is None else np.array(state["rnn_state"], np.float32)
        masks = state["action_mask"]
        self.action_mask = None if masks is None else np.array(masks, bool)
        self.cursor = int(state["cursor"])
        return None


class RolloutConfig(Protocol):
    """What the buffer reads from an algorithm's config."""

    @property
    def rollout_length(self) -> int:
        """Steps of every environment per learning step."""


def make_rollout_buffer(
    learner: RolloutConfig,
    config: NoSettings,
    envs: ManySpecs,
    rng: np.random.Generator,
    frame_stack: int = 1,
) -> RolloutBuffer:
    """For an algorithm's record."""
    return RolloutBuffer(envs, learner.rollout_length)


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
