"""On-policy buffers: the last T steps of N environments `[T, N]`, or whole episodes for true returns (REINFORCE)."""

from typing import Protocol

import numpy as np

from drl.core.configs import NoSettings
from drl.core.contracts import RolloutBatch, VecStep
from drl.core.errors import BadInput
from drl.core.specs import Array, DType, ManySpecs
from drl.core.state_files import StateDict

WINDOW = ("obs", "action", "reward", "terminated", "truncated", "valid", "last_obs")  # arrays of a RolloutBuffer
EPISODE = ("obs", "action", "reward", "terminated", "truncated", "action_mask")  # rows of an EpisodeBuffer


class OnPolicyBuffer:
    """Rows that are used once: there are no priorities."""

    size_setting: str  # an algorithm's setting for the size of the buffer
    unit: str = ""  # of the size, in messages
    stops_anywhere: bool = False
    takes_sequences: bool = False
    updates_per_log: int = 1

    def __init__(self, envs: ManySpecs, size: int):
        self.num_envs: int = envs.num_envs
        self._size = size

    def attach(self, config: object) -> None:
        wanted = getattr(config, self.size_setting, self._size)
        if wanted != self._size:
            raise BadInput(
                f"the algorithm's {self.size_setting} is {wanted}, but the buffer collects {self._size}{self.unit}; "
                f"use {type(self).__name__}(envs, {wanted}), or leave the buffer out"
            )

    def remember(self, rnn_state: Array) -> None:
        """Ignore the state; see `RolloutBuffer`."""

    def update_priorities(self, index: Array, error: Array) -> None:
        """Ignore the errors."""


class RolloutBuffer(OnPolicyBuffer):
    """Collects exactly `length` steps of every environment, returns them once, and starts again.

    >>> import drl
    >>> with drl.make_vec_env("CartPole-v1", num_envs=2) as envs:
    ...     RolloutBuffer(envs, length=16).obs.shape
    (16, 2, 4)
    """

    size_setting: str = "rollout_length"
    unit: str = " steps"
    takes_sequences = True

    def __init__(self, envs: ManySpecs, length: int = 128):
        super().__init__(envs, length)
        obs_spec, action_spec, num_envs = envs.obs_spec, envs.action_spec, envs.num_envs
        self.length: int = length
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

    @property
    def ready(self) -> bool:
        return self.cursor == self.length

    def remember(self, rnn_state: Array) -> None:
        """Store a recurrent agent's state `[N, S]` at the start of the window; the learner recomputes the others."""
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
        """Return the window. Its arrays are reused: they are valid until the next `add`."""
        final_index, final_obs = self._finals()
        self.cursor, self.final_index, self.final_obs = 0, [], []
        rows = (self.obs, self.action, self.reward, self.terminated, self.truncated, self.valid)
        return RolloutBatch(*rows, self.last_obs, final_index, final_obs, self.rnn_state, self.action_mask)

    def _finals(self) -> tuple[Array, Array]:
        final_obs = np.asarray(self.final_obs, self.obs.dtype).reshape(-1, *self.obs.shape[2:])
        return np.asarray(self.final_index, np.int64), final_obs

    def cut(self) -> None:
        """Drop the rows of an unfinished window: their successors are lost."""
        self.cursor, self.final_index, self.final_obs, self.rnn_state = 0, [], [], None

    def state_dict(self) -> StateDict:
        final_index, final_obs = self._finals()
        return {name: getattr(self, name).copy() for name in WINDOW} | {
            "final_index": final_index,
            "final_obs": final_obs,
            "rnn_state": None if self.rnn_state is None else self.rnn_state.copy(),
            "action_mask": None if self.action_mask is None else self.action_mask.copy(),
            "cursor": self.cursor,
        }

    def load_state_dict(self, state: StateDict) -> str | None:
        for name in WINDOW:
            getattr(self, name)[:] = state[name]
        self.final_index = [int(i) for i in state["final_index"]]
        self.final_obs = list(state["final_obs"])
        self.rnn_state = None if state["rnn_state"] is None else np.array(state["rnn_state"], np.float32)
        masks = state["action_mask"]
        self.action_mask = None if masks is None else np.array(masks, bool)
        self.cursor = int(state["cursor"])
        return None


class EpisodeBuffer(OnPolicyBuffer):
    """Collects `num_episodes` whole episodes; a batch holds them one after another in a single column.

    With one environment this is textbook REINFORCE. With several, episodes that are still running stay in the buffer,
    so some of their rows come from the policy before the last update.
    """

    size_setting: str = "episodes_per_step"
    first_update: int = 1  # an episode has at least one step

    def __init__(self, envs: ManySpecs, num_episodes: int = 1):
        super().__init__(envs, num_episodes)
        self.num_episodes: int = num_episodes
        self.obs_shape: tuple[int, ...] = envs.obs_spec.shape
        self.obs_dtype: DType = envs.obs_spec.dtype
        self.running: list[dict[str, list[Array]]] = [_empty() for _ in range(envs.num_envs)]
        self.complete: list[dict[str, Array]] = []  # stacked rows of each episode, and its final observation

    @property
    def ready(self) -> bool:
        return len(self.complete) >= self.num_episodes

    def add(self, obs: Array, action: Array, step: VecStep, action_mask: Array | None = None) -> None:
        for env in np.flatnonzero(step.valid):
            rows = self.running[env]
            legal = True if action_mask is None else action_mask[env].copy()  # True: all
            values = (obs[env].copy(), np.copy(action[env]), *(flag[env] for flag in step[:3]), legal)
            for name, value in zip(EPISODE, values, strict=True):
                rows[name].append(value)
            if step.terminated[env] or step.truncated[env]:
                self.complete.append(_stack(rows) | {"final_obs": step.next_obs[env].copy()})
                self.running[env] = _empty()

    def take(self) -> RolloutBatch:
        episodes, self.complete = self.complete, []
        rows = {name: np.concatenate([episode[name] for episode in episodes])[:, None] for name in EPISODE}
        ends = np.cumsum([len(episode["reward"]) for episode in episodes]) - 1
        finals = np.stack([episode["final_obs"] for episode in episodes])
        rows["reward"] = rows["reward"].astype(np.float32)
        valid = np.ones_like(rows["terminated"])
        legal = rows.pop("action_mask")
        masks = legal if legal.ndim == 3 else None
        last = {"last_obs": finals[-1:], "final_index": ends, "final_obs": finals}
        return RolloutBatch(**rows, valid=valid, **last, action_mask=masks)

    def cut(self) -> None:
        self.running = [_empty() for _ in range(self.num_envs)]

    def state_dict(self) -> StateDict:
        return {"running": [_stack(rows) for rows in self.running], "complete": list(self.complete)}

    def load_state_dict(self, state: StateDict) -> str | None:
        self.running = [{name: list(rows[name]) for name in EPISODE} for rows in state["running"]]
        self.complete = list(state["complete"])
        return None


def _empty() -> dict[str, list[Array]]:
    return {name: [] for name in EPISODE}


def _stack(rows: dict[str, list[Array]]) -> dict[str, Array]:
    return {name: np.array(values) for name, values in rows.items()}


class OnPolicyConfig(Protocol):
    """The sizes of buffers in an algorithm's config, which has one of them."""

    rollout_length: int  # steps of every environment per learning step
    episodes_per_step: int  # complete episodes per learning step


def make_rollout_buffer(
    learner: OnPolicyConfig, config: NoSettings, envs: ManySpecs, rng: np.random.Generator, frame_stack: int = 1
) -> RolloutBuffer:
    """Make the buffer of an algorithm's record."""
    return RolloutBuffer(envs, learner.rollout_length)


def make_episode_buffer(
    learner: OnPolicyConfig, config: NoSettings, envs: ManySpecs, rng: np.random.Generator, frame_stack: int = 1
) -> EpisodeBuffer:
    """Make the buffer of an algorithm's record."""
    return EpisodeBuffer(envs, learner.episodes_per_step)
