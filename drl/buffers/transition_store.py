"""N-step transitions, and the storage of a replay buffer.

`NStep` sums the rewards of up to n steps before they are stored, separately for each environment. The sum stops at the
first episode end, so the last rows of an episode use k < n steps; each row has the discount γ^k of its own k. After a
truncation the successor's value counts; after a termination it does not.

Stores are rings of fixed size, allocated at once: float rows for vectors, single frames for images, which are stacked
again when sampled, and structured arrays for observations with several parts.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np

from drl.core.contracts import VecStep
from drl.core.specs import ActionSpec, Array, DType, ObsSpec
from drl.core.state_files import RowLog, StateDict

PendingRow = list[Any]  # an incomplete transition: obs, action, reward so far, k so far, legal actions in obs


class NStepRows(NamedTuple):
    """Transitions ready to be stored, `[M, …]`."""

    obs: Array
    action: Array
    reward: Array  # Σ γ^i r_i over k steps
    terminated: Array  # whether the last of these steps was a termination
    discount: Array  # γ^k
    next_obs: Array  # true successor of the last of these steps
    env: Array  # which environment each row comes from
    next_action_mask: Array | None = None  # legal actions in `next_obs`; None: all
    action_mask: Array | None = None  # the same for `obs`


class NStep:
    """Turns single steps of N environments into n-step transitions, in order per environment."""

    def __init__(self, n: int, gamma: float, num_envs: int):
        self.n: int = n
        self.gamma: float = gamma
        self.pending: list[list[PendingRow]] = [[] for _ in range(num_envs)]

    def add(self, obs: Array, action: Array, step: VecStep, action_mask: Array | None = None) -> NStepRows | None:
        """Return the transitions that this step completed; None if there are none."""
        if self.n == 1:
            discount, envs = np.full(len(step.reward), self.gamma, np.float32), np.arange(len(step.reward))
            ends = (step.reward, step.terminated, discount, step.next_obs, envs)
            rows = NStepRows(obs, action, *ends, step.next_action_mask, action_mask)
            if step.valid.all():
                return rows
            return NStepRows(*(None if column is None else column[step.valid] for column in rows))  # type: ignore[arg-type]
        complete: list[tuple[object, ...]] = []
        masks: list[tuple[Array | None, Array | None]] = []  # after and before
        for env in np.flatnonzero(step.valid).tolist():
            waiting = self.pending[env]
            legal = None if action_mask is None else action_mask[env].copy()
            waiting.append([obs[env].copy(), np.copy(action[env]), 0.0, 0, legal])
            reward = float(step.reward[env])
            for row in waiting:
                row[2] += self.gamma ** row[3] * reward
                row[3] += 1
            ended = bool(step.terminated[env] or step.truncated[env])
            ready = len(waiting) if ended else int(len(waiting) == self.n)
            for old_obs, old_action, total, used, old_legal in waiting[:ready]:
                died = bool(step.terminated[env])
                complete.append((old_obs, old_action, total, died, self.gamma**used, step.next_obs[env], env))
                masks.append((None if step.next_action_mask is None else step.next_action_mask[env], old_legal))
            del waiting[:ready]
        if not complete:
            return None
        columns = [np.array(column) for column in zip(*complete, strict=True)]
        both = (None if column[0] is None else np.array(column) for column in zip(*masks, strict=True))
        return NStepRows(*columns[:7], *both)

    def cut(self) -> None:
        """Drop the transitions that wait for their n-th step."""
        self.pending = [[] for _ in self.pending]

    def state_dict(self) -> StateDict:
        return {"pending": [[list(row) for row in waiting] for waiting in self.pending]}

    def load_state_dict(self, state: StateDict) -> None:
        self.pending = [[list(row) for row in waiting] for waiting in state["pending"]]


class Store(Protocol):
    """Transitions by slot. `ROWS` are the names of its arrays `[capacity, …]`."""

    ROWS: tuple[str, ...]

    def write(self, slots: Array, rows: NStepRows) -> None:
        """Put rows into slots."""

    def read(self, slots: Array) -> tuple[Array, ...]:
        """Return columns of these slots: obs, action, reward, terminated, discount, next_obs."""

    def alive(self, slots: Array) -> Array | None:
        """Which slots can still be read; None: all that were written."""
        return None

    def state_dict(self, kept: Array | None) -> StateDict:
        """State beside `ROWS`, for the slots `kept`; None: for all."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore such a state."""
        return None


class PackedStore(Store):
    """Vector observations: a transition is one row of float32, so a batch is a single gather.

    Integers up to 2^24 are exact in float32; actions are far smaller.
    """

    ROWS: tuple[str, ...] = ("rows",)

    def __init__(self, capacity: int, batch_size: int, obs_spec: ObsSpec, action_spec: ActionSpec):
        self.capacity = capacity
        self.obs_shape: tuple[int, ...] = obs_spec.shape
        self.action_shape: tuple[int, ...] = action_spec.policy_shape
        self.action_dtype: DType = action_spec.policy_dtype
        wide, acts = int(np.prod(self.obs_shape)), max(action_spec.entries, 1)
        ends = np.cumsum([wide, wide, acts, 1, 1, 1])
        self.columns: list[slice] = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        self.rows: Array = np.zeros((capacity, ends[-1]), np.float32)
        self._batch = np.zeros((batch_size, ends[-1]), np.float32)

    def write(self, slots: Array, rows: NStepRows) -> None:
        count = len(slots)
        parts = (rows.obs, rows.next_obs, rows.action, rows.reward, rows.terminated, rows.discount)
        for column, part in zip(self.columns, parts, strict=True):
            self.rows[slots, column] = np.reshape(part, (count, -1))

    def read(self, slots: Array) -> tuple[Array, ...]:
        """Return views of one buffer."""
        np.take(self.rows, slots, axis=0, out=self._batch, mode="clip")  # "raise" would copy through a buffer
        obs, next_obs, action, reward, terminated, discount = (self._batch[:, column] for column in self.columns)
        shape = (len(slots), *self.obs_shape)
        actions = action.reshape(len(slots), *self.action_shape).astype(self.action_dtype)
        return obs.reshape(shape), actions, reward[:, 0], terminated[:, 0], discount[:, 0], next_obs.reshape(shape)


class FrameStore(Store):
    """Stacked images: every frame is stored once (uint8 stays uint8).

    Each environment has its own ring of frames. A transition stores the positions of its newest frame and of its
    successor's; a stack is the frames up to such a position. The whole first stack of an episode is stored, so any
    padding is reproduced. That costs `stack` frames per episode; the ring has room for about 1.1 frames per transition.
    If episodes are so short that frames are overwritten too soon, the oldest transitions are no longer `alive`.
    """

    ROWS: tuple[str, ...] = ("action", "numbers", "env", "place", "next_place")

    def __init__(self, capacity: int, num_envs: int, stack: int, obs_spec: ObsSpec, action_spec: ActionSpec):
        self.capacity: int = capacity
        self.stack: int = stack
        self.num_envs: int = num_envs
        # Channels of one frame first.
        self.frame_shape: tuple[int, ...] = (obs_spec.shape[0] // stack, *obs_spec.shape[1:])
        self.ring: int = int(1.1 * capacity / num_envs) + 4 * stack
        self.frames: Array = np.zeros((num_envs, self.ring, *self.frame_shape), obs_spec.dtype)
        self.written: Array = np.zeros(num_envs, np.int64)  # frames per environment since the start
        self.action: Array = np.zeros((capacity, *action_spec.policy_shape), action_spec.policy_dtype)
        self.numbers: Array = np.zeros((capacity, 3), np.float32)  # reward, terminated, discount
        self.env: Array = np.zeros(capacity, np.int64)
        self.place: Array = np.zeros(capacity, np.int64)  # number of the newest frame of obs in its environment
        self.next_place: Array = np.zeros(capacity, np.int64)
        self._lag: list[list[int]] = [[] for _ in range(num_envs)]  # positions of steps whose rows are not yet written

    def observe(self, obs: Array, next_obs: Array, valid: Array, begins: Array) -> None:
        """Store the new frames of one step of every environment. Call it before `write` for the same step."""
        for env in np.flatnonzero(valid).tolist():
            if begins[env]:
                self._append(env, obs[env].reshape(self.stack, *self.frame_shape))
            self._lag[env].append(int(self.written[env]) - 1)
            self._append(env, next_obs[env].reshape(self.stack, *self.frame_shape)[-1:])

    def cut(self) -> None:
        """Forget the steps whose rows were not written."""
        self._lag = [[] for _ in self._lag]

    def _append(self, env: int, frames: Array) -> None:
        for frame in frames:
            self.frames[env, self.written[env] % self.ring] = frame
            self.written[env] += 1

    def write(self, slots: Array, rows: NStepRows) -> None:
        self.action[slots] = rows.action
        self.numbers[slots] = np.stack([rows.reward, rows.terminated, rows.discount], axis=1)
        self.env[slots] = rows.env
        for slot, env in zip(slots.tolist(), rows.env.tolist(), strict=True):
            self.place[slot] = self._lag[env].pop(0)  # rows of an environment come in the order of its steps
            self.next_place[slot] = self.written[env] - 1

    def alive(self, slots: Array) -> Array:
        """Which transitions still have all their frames."""
        oldest_kept = self.written[self.env[slots]] - self.ring
        return self.place[slots] - self.stack + 1 >= oldest_kept

    def read(self, slots: Array) -> tuple[Array, ...]:
        env, numbers = self.env[slots], self.numbers[slots]
        obs, next_obs = (self._stacks(env, place[slots]) for place in (self.place, self.next_place))
        return obs, self.action[slots], numbers[:, 0], numbers[:, 1], numbers[:, 2], next_obs

    def _stacks(self, env: Array, place: Array) -> Array:
        window = (place[:, None] + np.arange(1 - self.stack, 1)) % self.ring  # [B, stack], oldest first
        frames = self.frames[env[:, None], window]  # [B, stack, channels, …]
        return frames.reshape(len(env), -1, *self.frame_shape[1:])

    def state_dict(self, kept: Array | None) -> StateDict:
        most: list[int | None] = [None] * self.num_envs
        if kept is not None:  # the frames from the oldest one that these transitions need
            for env in range(self.num_envs):
                places = self.place[kept[self.env[kept] == env]]
                oldest = int(places.min()) - self.stack + 1 if len(places) else int(self.written[env]) - self.stack
                most[env] = int(self.written[env]) - oldest
        frames = [RowLog(*each) for each in zip(self.frames, self.written.tolist(), most, strict=True)]
        return {"frames": frames, "written": self.written.copy(), "lag": [list(lag) for lag in self._lag]}

    def load_state_dict(self, state: StateDict) -> None:
        for frames, stored in zip(self.frames, state["frames"], strict=True):
            stored.into(frames)
        self.written[:] = state["written"]
        self._lag = [[int(place) for place in lag] for lag in state["lag"]]


class FieldStore(Store):
    """Observations with several parts, unchanged: images stay uint8."""

    ROWS: tuple[str, ...] = ("obs", "next_obs", "action", "numbers")

    def __init__(self, capacity: int, obs_spec: ObsSpec, action_spec: ActionSpec):
        self.obs: Array = np.zeros(capacity, obs_spec.dtype)
        self.next_obs: Array = np.zeros(capacity, obs_spec.dtype)
        self.action: Array = np.zeros((capacity, *action_spec.policy_shape), action_spec.policy_dtype)
        self.numbers: Array = np.zeros((capacity, 3), np.float32)  # reward, terminated, discount

    def write(self, slots: Array, rows: NStepRows) -> None:
        self.obs[slots], self.next_obs[slots], self.action[slots] = rows.obs, rows.next_obs, rows.action
        self.numbers[slots] = np.stack([rows.reward, rows.terminated, rows.discount], axis=1)

    def read(self, slots: Array) -> tuple[Array, ...]:
        numbers = (np.ascontiguousarray(column) for column in self.numbers[slots].T)
        return (self.obs[slots], self.action[slots], *numbers, self.next_obs[slots])
