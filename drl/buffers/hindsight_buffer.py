"""Hindsight experience replay: sampled transitions whose goal is one that their episode achieved."""

from typing import Any, Protocol, Unpack

import numpy as np

from drl.buffers.replay_buffer import ReplayBuffer
from drl.buffers.transition_store import NStep
from drl.core.configs import ReplayConfig
from drl.core.contracts import ReplayBatch, VecStep
from drl.core.errors import BadInput
from drl.core.settings import ReplaySettings
from drl.core.specs import Array, ManySpecs
from drl.core.state_files import StateDict, StoredRows

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
STATE = ("first", "last", "rows_written", "running", "lost")  # arrays of a HindsightBuffer beside its rows


class Goals(Protocol):
    """An environment's functions of encoded goals `[B, …]`; see `drl.envs.goals`."""

    def reward(self, achieved: Array, desired: Array) -> Array:
        """Reward for reaching `achieved` if `desired` was the goal."""

    def terminated(self, achieved: Array, desired: Array) -> Array | None:
        """Whether that ends an episode; None: keep the stored flag."""


class HindsightBuffer(ReplayBuffer):
    """Andrychowicz et al. (2017). Goals are replaced when a batch is drawn: a share `her_ratio` of its rows gets a goal
    that the same episode achieved at this step or later (`future`), at its last step (`final`) or at any (`episode`).
    Reward and termination follow from the environment's own functions. Rows of an episode that still runs keep their
    goal.

    Each environment has a ring of its own with single steps, so an episode is a range of places; a place is the number
    of a row in its environment. n steps are joined when a batch is drawn, up to the first end under the new goal.
    """

    hindsight = True

    def __init__(
        self,
        envs: ManySpecs,
        goals: Goals,  # `drl.goal_functions` of the environment
        config: ReplayConfig | None = None,
        *,
        gamma: float | None = None,
        rng: np.random.Generator | None = None,
        **settings: Unpack[ReplaySettings],
    ):
        if config is None:
            settings.setdefault("her", "future")
        super().__init__(envs, config, gamma=gamma, rng=rng, **settings)
        config, obs_spec, num_envs = self.config, envs.obs_spec, envs.num_envs
        if not {ACHIEVED, DESIRED} <= obs_spec.leaves.keys():
            raise BadInput(
                f"her is {config.her!r}, but the observation is a {obs_spec.kind} without the keys {ACHIEVED} and "
                f"{DESIRED}; use --her none, or an environment with goals and --frame-stack 1"
            )
        self.length: int = config.capacity // num_envs
        if self.length < config.n_step or self.length * num_envs < config.batch_size:
            least = num_envs * max(config.n_step, -(-config.batch_size // num_envs))
            raise BadInput(
                f"capacity is {config.capacity}, {self.length} steps for each of {num_envs} environments; hindsight "
                f"replay needs n_step steps of each and a whole batch: use --capacity {least} or more"
            )
        self.goals = goals
        fields = obs_spec.is_structured
        self.part: dict[str, Any] = {
            key: key if fields else np.s_[:, obs_spec.columns(key)] for key in (ACHIEVED, DESIRED)
        }
        self.n_step: NStep = NStep(1, self.n_step.gamma, num_envs)
        self.first: Array = np.zeros(config.capacity, np.int64)  # by slot: the place where its episode begins
        self.last: Array = np.zeros(config.capacity, np.int64)  # by slot: the place where its episode ended, or −1
        self.rows_written: Array = np.zeros(num_envs, np.int64)  # per environment since the start
        self.lost: Array = np.zeros(num_envs, np.int64)  # places before this one were not in the checkpoint
        self.running: Array = np.zeros(num_envs, np.int64)  # the place where the running episode begins

    @property
    def _oldest(self) -> Array:
        return np.maximum(self.rows_written - self.length, self.lost)

    @property
    def _complete(self) -> Array:
        """Places before this one have all their n steps."""
        return np.maximum(self.running, self.rows_written - self.config.n_step + 1)

    def _slots(self, env: Array | int, place: Array) -> Array:
        return env * self.length + place % self.length

    def add(self, obs: Array, action: Array, step: VecStep, action_mask: Array | None = None) -> None:
        before, envs = self._complete, np.flatnonzero(step.valid)
        rows = self.n_step.add(obs, action, step, action_mask)
        if rows is not None and len(envs):
            slots = self._slots(envs, self.rows_written[envs])
            self._keep(slots, rows)
            self.first[slots], self.last[slots] = self.running[envs], -1
            self.rows_written[envs] += 1
            for env in np.flatnonzero(step.valid & (step.terminated | step.truncated)).tolist():
                self._finish(env)
            self._prioritize(slots, before)
        self.env_steps += len(envs)
        self.size: int = int((self._complete - self._oldest).sum())
        self._miss()

    def _finish(self, env: int) -> None:
        last = int(self.rows_written[env]) - 1
        kept = np.arange(max(self.running[env], last - self.length + 1), last + 1)
        self.last[self._slots(env, kept)] = last
        self.running[env] = last + 1

    def _prioritize(self, new: Array, before: Array) -> None:
        """Give the rows completed since `before` the highest priority, and new incomplete rows none."""
        if self.tree is None:
            return
        self.tree.set(new, np.zeros(len(new)))
        ranges = enumerate(zip(before.tolist(), self._complete.tolist(), strict=True))
        self._raise(np.concatenate([self._slots(env, np.arange(*places)) for env, places in ranges]))

    def take(self) -> ReplayBatch:
        self.updates += 1
        slots = self._draw(self.config.batch_size)
        env = slots // self.length
        place = self._oldest[env] + (slots - self._oldest[env]) % self.length
        replaced, goal = self._choose_goals(env, place, slots)
        obs, action, reward, terminated, next_obs = self._step(slots, replaced, goal)
        end, discount, alive = slots, np.full(len(slots), self.n_step.gamma), np.ones(len(slots), bool)
        for k in range(1, self.config.n_step):
            alive &= (terminated == 0) & (self.last[slots] != place + k - 1)
            end = np.where(alive, self._slots(env, place + k), end)
            _, _, later, terminated, next_obs = self._step(end, replaced, goal)  # where not alive: the same step again
            reward = reward + np.where(alive, discount * later, 0.0)
            discount = np.where(alive, discount * self.n_step.gamma, discount)
        numbers = (reward.astype(np.float32), terminated, discount.astype(np.float32))
        columns = (obs, action, *numbers, next_obs, self._weights(slots), slots)
        return ReplayBatch(*columns, **self._read_masks(slots, end))

    def _draw(self, count: int) -> Array:
        if self.tree is not None:
            return super()._draw(count)
        oldest, rows = self._oldest, self._complete - self._oldest
        before = np.cumsum(rows) - rows
        rank = self.rng.integers(self.size, size=count)
        env = np.searchsorted(before, rank, side="right") - 1
        return self._slots(env, oldest[env] + rank - before[env])

    def _choose_goals(self, env: Array, place: Array, slots: Array) -> tuple[Array, Array]:
        """Choose the rows that get another goal [B] bool, and goals [B, …]."""
        last = self.last[slots]
        replaced = (self.rng.random(len(slots)) < self.config.her_ratio) & (last >= 0)
        begins = {"future": place, "final": last, "episode": np.maximum(self.first[slots], self._oldest[env])}
        begin, end = (np.where(replaced, bound, place) for bound in (begins[self.config.her], last))
        next_obs = self.store.read(self._slots(env, self.rng.integers(begin, end + 1)))[-1]
        return replaced, next_obs[self.part[ACHIEVED]].copy()

    def _step(self, slots: Array, replaced: Array, goal: Array) -> tuple[Array, Array, Array, Array, Array]:
        """Return single steps: obs, action, reward, terminated, next_obs; the `replaced` ones with another goal."""
        obs, action, reward, terminated, _, next_obs = (np.array(part) for part in self.store.read(slots))
        if replaced.any():
            goal = goal[replaced]
            obs[self.part[DESIRED]][replaced] = goal
            next_obs[self.part[DESIRED]][replaced] = goal
            achieved = next_obs[self.part[ACHIEVED]][replaced]
            reward[replaced] = self.goals.reward(achieved, goal)
            ends = self.goals.terminated(achieved, goal)
            if ends is not None:
                terminated[replaced] = ends
        return obs, action, reward, terminated, next_obs

    def cut(self) -> None:
        """End the running episodes with their last rows, as by a truncation."""
        before = self._complete
        for env in np.flatnonzero(self.rows_written > self.running).tolist():
            self._finish(env)
        self._prioritize(np.zeros(0, np.int64), before)
        super().cut()

    def _rings(self) -> list[tuple[slice, int, int | None]]:
        most = self.config.checkpoint_rows
        share = None if most is None else most // self.num_envs
        written = enumerate(self.rows_written.tolist())
        return [(slice(env * self.length, (env + 1) * self.length), count, share) for env, count in written]

    def state_dict(self) -> StateDict:
        return super().state_dict() | {name: getattr(self, name).copy() for name in STATE}

    def load_state_dict(self, state: StateDict) -> str | None:
        for name in STATE:
            getattr(self, name)[:] = state[name]
        return super().load_state_dict(state)

    def _forget(self, stored: list[StoredRows]) -> str | None:
        """Keep the rows at their places; those before `lost` are no longer drawn."""
        counts = [len(rows.rows) for rows in stored]
        if sum(counts) == int(np.minimum(self.rows_written, self.length).sum()):
            return None
        missing = f"of {self.size} transitions in the replay the checkpoint has {sum(counts)} (--checkpoint-rows)"
        self.cut()
        self.lost[:] = [rows.first for rows in stored]
        self.size = int((self._complete - self._oldest).sum())
        if self.tree is not None:
            lost = np.setdiff1d(np.arange(self.config.capacity), self._stored_slots())
            self.tree.set(lost, np.zeros(len(lost)))
        self._miss()
        return missing
