"""The replay buffer: the last `capacity` transitions, sampled uniformly or in proportion to their last error."""

from typing import TYPE_CHECKING, Protocol, Unpack

import numpy as np

from drl.buffers.sum_tree import AnySumTree, make_sum_tree
from drl.buffers.transition_store import FieldStore, FrameStore, NStep, NStepRows, PackedStore, Store
from drl.core.configs import ReplayConfig, changed_config
from drl.core.contracts import ReplayBatch, VecStep
from drl.core.errors import BadInput
from drl.core.seeding import generator_state, restore_generator, stream_of
from drl.core.settings import ReplaySettings
from drl.core.specs import Array, ManySpecs
from drl.core.state_files import RowLog, StateDict, StoredRows

if TYPE_CHECKING:
    from drl.buffers.hindsight_buffer import Goals


MASKS = ("action_mask", "next_action_mask")  # legal actions in `obs` and in `next_obs`


class DiscountConfig(Protocol):
    """An algorithm's config with a discount."""

    @property
    def gamma(self) -> float:
        """Discount per step."""


class ReplayBuffer:
    """Ready when an update is due: `gradient_steps` for every `train_every` environment steps after the warm-up.
    Updates due before there is a whole batch are skipped.

    Prioritized (Schaul et al., 2016): P(i) ∝ (|δ_i| + ε)^α, weights (size · P)^−β over the maximum of the batch. A new
    transition has the highest priority so far, so it is sampled soon.

    >>> import drl
    >>> with drl.make_vec_env("CartPole-v1", num_envs=2) as envs:
    ...     ReplayBuffer(envs, capacity=500, prioritized=True).config.capacity
    500
    """

    stops_anywhere: bool = True
    takes_sequences: bool = False
    hindsight = False  # whether it replaces goals

    def __init__(
        self,
        envs: ManySpecs,
        config: ReplayConfig | None = None,
        *,
        gamma: float | None = None,  # discount per step; None: that of the algorithm
        rng: np.random.Generator | None = None,
        frame_stack: int | None = None,  # frames per observation; None: as the environments say
        **settings: Unpack[ReplaySettings],
    ):
        obs_spec, action_spec, num_envs = envs.obs_spec, envs.action_spec, envs.num_envs
        config = changed_config(ReplayConfig, config, settings)
        frames: int = getattr(envs, "frame_stack", 1) if frame_stack is None else frame_stack
        if (config.her != "none") != self.hindsight:
            raise BadInput(f"her is {config.her!r}; a HindsightBuffer replaces goals, a ReplayBuffer takes her 'none'")
        self.config: ReplayConfig = config
        self.num_envs: int = num_envs
        self.rng: np.random.Generator = rng or stream_of(envs, "replay")
        self.gamma = gamma
        self.n_step: NStep = NStep(config.n_step, 0.99 if gamma is None else gamma, num_envs)
        self.store: Store
        if obs_spec.is_structured:
            self.store = FieldStore(config.capacity, obs_spec, action_spec)
        elif obs_spec.dtype == np.uint8 and len(obs_spec.shape) == 3:
            self.store = FrameStore(config.capacity, num_envs, frames, obs_spec, action_spec)
        else:
            self.store = PackedStore(config.capacity, config.batch_size, obs_spec, action_spec)
        self.masks: dict[str, Array] = {}  # [capacity, choices] by name in a batch; {} before the first mask
        self.tree: AnySumTree | None = make_sum_tree(config.capacity) if config.prioritized else None
        self.top_priority: float = 1.0  # maximum of |δ| + ε so far
        self.beta: float = config.priority_beta
        self.written: int = 0  # transitions so far; number n is at slot n % capacity
        self.size: int = 0
        self.env_steps: int = 0
        self.updates: int = 0
        self.missed: int = 0  # rounds of updates that lacked a whole batch
        self.begins: Array = np.ones(num_envs, bool)  # environments whose next row begins an episode
        self._ones = np.ones(config.batch_size, np.float32)

    @property
    def first_update(self) -> int:
        return max(self.config.warmup, self.config.batch_size)

    @property
    def updates_per_log(self) -> int:
        return self.config.updates_per_log

    def attach(self, config: object) -> None:
        gamma: float = getattr(config, "gamma", self.n_step.gamma)
        if self.gamma not in (None, gamma):
            raise BadInput(f"gamma is {gamma} in the algorithm and {self.gamma} in the buffer; leave out the second")
        self.gamma = self.n_step.gamma = gamma

    @property
    def ready(self) -> bool:
        return (self._rounds - self.missed) * self.config.gradient_steps > self.updates

    @property
    def _rounds(self) -> int:
        """Rounds of updates due since the warm-up."""
        return max(self.env_steps - self.config.warmup, 0) // self.config.train_every

    def add(self, obs: Array, action: Array, step: VecStep, action_mask: Array | None = None) -> None:
        if isinstance(self.store, FrameStore):
            self.store.observe(obs, step.next_obs, step.valid, self.begins)
            self.begins = np.where(step.valid, step.terminated | step.truncated, self.begins)
        self.env_steps += int(np.count_nonzero(step.valid))
        rows = self.n_step.add(obs, action, step, action_mask)
        if rows is not None and len(rows.reward):
            self._write(rows)
        self._miss()

    def _miss(self) -> None:
        """Skip the updates that are due without a whole batch."""
        if self.size < self.config.batch_size:
            self.missed = self._rounds - self.updates // self.config.gradient_steps

    def _write(self, rows: NStepRows) -> None:
        count = len(rows.reward)
        slots = np.arange(self.written, self.written + count) % self.config.capacity
        self._keep(slots, rows)
        self._raise(slots)
        self.written += count
        self.size = min(self.size + count, self.config.capacity)

    def _keep(self, slots: Array, rows: NStepRows) -> None:
        self.store.write(slots, rows)
        for name in MASKS:
            mask = getattr(rows, name)
            if mask is not None and name not in self.masks:
                self.masks[name] = np.ones((self.config.capacity, mask.shape[1]), bool)
            if name in self.masks:
                self.masks[name][slots] = True if mask is None else mask

    def _raise(self, slots: Array) -> None:
        """Give rows the highest priority so far."""
        if self.tree is not None:
            self.tree.set(slots, np.full(len(slots), self.top_priority**self.config.priority_alpha))

    def take(self) -> ReplayBatch:
        """Sample the batch of one update."""
        self.updates += 1
        slots = self._draw(self.config.batch_size)
        while (alive := self.store.alive(slots)) is not None and not alive.all():
            dead = slots[~alive]
            if self.tree is not None:
                self.tree.set(dead, np.zeros(len(dead)))
            slots = np.concatenate([slots[alive], self._draw(len(dead))])
        obs, action, reward, terminated, discount, next_obs = self.store.read(slots)
        columns = (obs, action, reward, terminated, discount, next_obs, self._weights(slots), slots)
        return ReplayBatch(*columns, **self._read_masks(slots, slots))

    def _read_masks(self, slots: Array, last: Array) -> dict[str, Array]:
        """Return the legal actions at the first step of each row and after its last one, if there are masks."""
        return {name: mask[last if name.startswith("next") else slots] for name, mask in self.masks.items()}

    def _draw(self, count: int) -> Array:
        if self.tree is None:
            return self.rng.integers(self.size, size=count)
        # Stratified: one mass from each of `count` equal parts of the total, for less variance.
        parts = (np.arange(count) + self.rng.random(count)) / count
        return self.tree.find(parts * self.tree.total)

    def _weights(self, slots: Array) -> Array:
        if self.tree is None:
            return self._ones
        probability = self.tree[slots] / self.tree.total
        weight = (self.size * probability) ** -self.beta
        self.beta = min(1.0, self.beta + self.config.priority_beta_step)
        return (weight / weight.max()).astype(np.float32)

    def remember(self, rnn_state: Array) -> None:
        """Ignore the state: recurrent agents do not learn from single transitions."""

    def update_priorities(self, index: Array, error: Array) -> None:
        """Set the error of each row of a batch: |δ|, or another non-negative error."""
        if self.tree is None:
            return
        priority = error.astype(np.float64) + self.config.priority_eps
        self.top_priority = max(self.top_priority, float(priority.max()))
        self.tree.set(index, priority**self.config.priority_alpha)

    def cut(self) -> None:
        self.n_step.cut()
        if isinstance(self.store, FrameStore):
            self.store.cut()
        self.begins[:] = True

    def _rings(self) -> list[tuple[slice, int, int | None]]:
        """Return each ring of slots, the number of rows written to it, and how many of them a checkpoint stores."""
        return [(slice(None), self.written, self.config.checkpoint_rows)]

    def _row_logs(self, array: Array) -> list[RowLog]:
        return [RowLog(array[slots], written, most) for slots, written, most in self._rings()]

    def state_dict(self) -> StateDict:
        kept = None if self.config.checkpoint_rows is None else self._stored_slots()
        return {
            "rows": {name: self._row_logs(getattr(self.store, name)) for name in self.store.ROWS},
            "store": self.store.state_dict(kept),
            "n_step": self.n_step.state_dict(),
            "tree": None if self.tree is None else self.tree[np.arange(self.config.capacity)],
            "numbers": [self.top_priority, self.beta],
            "counters": [self.written, self.size, self.env_steps, self.updates, self.missed],
            "capacity": self.config.capacity,
            "begins": self.begins.copy(),
            "masks": {name: self._row_logs(mask) for name, mask in self.masks.items()},
            "rng": generator_state(self.rng),
        }

    def _stored_slots(self) -> Array:
        """Return the slots of the rows that a checkpoint stores."""
        every = np.arange(self.config.capacity)
        parts = [RowLog(every[slots], written, most) for slots, written, most in self._rings()]
        return np.concatenate([log.stored().rows for log in parts])

    def load_state_dict(self, state: StateDict) -> str | None:
        if int(state["capacity"]) != self.config.capacity:
            raise BadInput(f"capacity is {self.config.capacity}; the stored replay has {state['capacity']}")
        self.n_step.load_state_dict(state["n_step"])
        self.top_priority, self.beta = (float(number) for number in state["numbers"])
        counters = (int(count) for count in state["counters"])
        self.written, self.size, self.env_steps, self.updates, self.missed = counters
        self.begins = np.array(state["begins"], bool)
        restore_generator(self.rng, state["rng"])
        self.store.load_state_dict(state["store"])
        for name in self.store.ROWS:
            self._put(getattr(self.store, name), state["rows"][name])
        self.masks = {}
        for name, stored in state["masks"].items():
            self.masks[name] = np.ones((self.config.capacity, *stored[0].rows.shape[1:]), bool)
            self._put(self.masks[name], stored)
        if self.tree is not None:
            self.tree.set(np.arange(self.config.capacity), state["tree"])
        return self._forget(next(iter(state["rows"].values())))

    def _put(self, array: Array, stored: list[StoredRows]) -> None:
        for (slots, _, _), rows in zip(self._rings(), stored, strict=True):
            rows.into(array[slots])

    def _forget(self, stored: list[StoredRows]) -> str | None:
        """Continue with the stored rows. Returns what is missing in them, if anything."""
        (rows,) = stored
        count = len(rows.rows)
        if count == self.size:
            return None
        missing = f"of {self.size} transitions in the replay the checkpoint has {count} (--checkpoint-rows)"
        old, new = np.arange(rows.first, rows.end) % self.config.capacity, np.arange(count)
        for array in (*(getattr(self.store, name) for name in self.store.ROWS), *self.masks.values()):
            array[new] = array[old]
        if self.tree is not None:
            priorities = np.zeros(self.config.capacity)
            priorities[new] = self.tree[old]
            self.tree.set(np.arange(self.config.capacity), priorities)
        self.written = self.size = count
        self._miss()
        return missing


def make_replay_buffer(
    learner: DiscountConfig,
    config: ReplayConfig,
    envs: ManySpecs,
    rng: np.random.Generator,
    frame_stack: int = 1,
    goals: "Goals | None" = None,  # of the environment; for hindsight replay
) -> ReplayBuffer:
    """Make the buffer of an algorithm's record."""
    if config.her != "none":
        from drl.buffers.hindsight_buffer import HindsightBuffer

        if goals is None:
            raise BadInput(f"her is {config.her!r}, without goals; pass goals=goal_functions(env_id) of drl.envs.goals")
        return HindsightBuffer(envs, goals, config, gamma=learner.gamma, rng=rng)
    return ReplayBuffer(envs, config, gamma=learner.gamma, rng=rng, frame_stack=frame_stack)
