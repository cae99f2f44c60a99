"""The roles and what they hand to each other. Arrays cross rooms as NumPy, time-major `[T, N, …]`."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np

from drl.core.log import Episode, Log
from drl.core.normalize import ObsNormalizer
from drl.core.specs import ActionSpec, Array, ObsSpec
from drl.core.state_files import StateDict
from drl.core.transition import Batch


class VecStep(NamedTuple):
    """One step of N environments. Arrays are freshly owned by the receiver or valid until the next `step`."""

    reward: Array  # [N] float32
    terminated: Array  # [N] bool; wins over truncated when both would hold
    truncated: Array  # [N] bool
    next_obs: Array  # [N, …] true successors
    # [N, …] what to act on next: next_obs, or a new episode's first observation where one ended. Environments that
    # reset themselves one call later show the last observation again until their row with `valid` False is over.
    obs: Array
    valid: Array  # [N] bool; False where the environment only reset itself in this call and nothing happened
    episodes: list[Episode]  # those that ended in this step
    action_mask: Array | None = None  # [N, choices] bool: actions that are legal in `obs`; None: all are
    next_action_mask: Array | None = None  # the same for `next_obs`

    @property
    def over(self) -> Array:
        """[N] bool; where nothing of the past belongs to what comes next: an episode ended, or its reset row did."""
        over: Array = self.terminated | self.truncated | ~self.valid
        return over


class VecEnv(ABC):
    """N environments stepped together, closed at the end of a `with` block. `close` may be called twice."""

    vectorization: str  # how they are stepped: sync · async · native · envpool · jax
    env_id: str
    num_envs: int
    obs_spec: ObsSpec
    action_spec: ActionSpec
    action_mask: Array | None = None  # [N, choices] bool: what is legal now, after `reset` or `step`; None: everything

    @abstractmethod
    def reset(self) -> Array:
        """Begin a new episode everywhere. The first call seeds; later ones continue each environment's own stream."""

    @abstractmethod
    def step(self, action: Array) -> VecStep:
        """One step of every environment; `action` [N, …] in the environment's units."""

    @abstractmethod
    def state_dict(self) -> StateDict: ...

    @abstractmethod
    def load_state_dict(self, state: StateDict) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Exploration(Protocol):
    """How an agent leaves its best action while it trains. The agent owns it; the trainer tells it the time."""

    carries: bool  # whether it carries anything from step to step within an episode

    def at(self, env_steps: int) -> dict[str, float]:
        """From now on act as at this many environment steps. Returns what to log, such as epsilon."""
        ...

    def begin(self, envs: Array | None = None) -> None: ...  # new episodes everywhere, or where the mask says so
    def state_dict(self) -> StateDict: ...
    def load_state_dict(self, state: StateDict) -> None: ...


class Agent(Protocol):
    """The thin actor that survives training."""

    obs_spec: ObsSpec
    action_spec: ActionSpec
    normalizer: ObsNormalizer | None
    rng: np.random.Generator  # explores; evaluation puts its own in its place meanwhile
    variant: str  # of its model
    has_value: bool
    recurrent: bool  # whether it remembers; then it must learn where episodes begin
    rnn_state: (
        Array | None
    )  # [N, S] what it remembers of N environments; evaluation puts its own in its place meanwhile

    @property
    def exploration(self) -> Exploration | None: ...  # None: it samples from its policy, and nothing changes over time

    def act(self, obs: object, explore: bool = False, action_mask: Array | None = None) -> Array: ...
    def predict(self, obs: object) -> Array: ...  # act(obs)
    def sample(self, obs: object) -> Array: ...  # act(obs, explore=True)
    def decide(self, obs: Array, explore: bool = False, action_mask: Array | None = None) -> Array: ...
    def explain(self, obs: Array, action_mask: Array | None = None) -> dict[str, Array]: ...
    def begin(self, envs: Array | None = None) -> None: ...  # new episodes everywhere, or where the mask says so
    def recall(self, num_envs: int) -> Array: ...  # `rnn_state`, or zeros where there is none yet
    def save(self, folder: str | Path, **notes: object) -> None: ...
    def save_policy_net(self, path: str | Path) -> None: ...
    def state_dict(self) -> StateDict: ...
    def load_state_dict(self, state: StateDict) -> None: ...


class Learned(NamedTuple):
    """What one call of `learn` gives."""

    log: dict[str, float]  # numbers to log; a learning step shows the mean over the calls that report a name
    priority: Array | None = None  # [B] how wrong the learner was about each row of a replayed batch


BatchT = TypeVar("BatchT", bound=Batch, contravariant=True)
NewBatchT = TypeVar("NewBatchT", bound=Batch, covariant=True)


class Algorithm(Protocol[BatchT]):
    """A pure loss and the step that follows it. `progress` is the share of the budget used, for schedules."""

    needs: str  # the variant its model must have

    def learn(self, batch: BatchT, progress: float = 0.0) -> Learned: ...
    def predict(self, obs: Array) -> Array: ...  # what the agent chooses from: distribution parameters, action values
    def sync_target(self) -> None: ...  # online → target network, where there is one
    def state_dict(self) -> StateDict: ...
    def load_state_dict(self, state: StateDict) -> None: ...


class Buffer(Protocol[NewBatchT]):
    """What the learner sees. `take` hands out the batch of one learning step, once `ready`."""

    num_envs: int
    stops_anywhere: bool  # whether a run may end between any two steps; else a whole rollout or episode is needed
    takes_sequences: bool  # whether a recurrent agent can learn from it

    @property
    def ready(self) -> bool: ...
    def take(self) -> NewBatchT: ...
    def add(self, obs: Array, action: Array, step: VecStep, action_mask: Array | None = None) -> None: ...
    def remember(self, rnn_state: Array) -> None: ...  # before every `add`, what a recurrent agent remembers
    def update_priorities(self, index: Array, error: Array) -> None: ...  # of rows that `take` gave
    def state_dict(self) -> StateDict: ...
    def load_state_dict(self, state: StateDict) -> None: ...


class Tracker(Protocol):
    """Where logs go. `drl.tracking.guarded` makes sure that a failing tracker never stops training."""

    def write(self, log: Log) -> None: ...
    def close(self) -> None: ...
