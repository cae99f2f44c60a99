"""The interfaces between the parts of the package. Arrays between them are NumPy, time-major `[T, N, …]`."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np

from drl.core.golden_pairs import GoldenInputs
from drl.core.log import Episode, Log
from drl.core.normalize import ObsNormalizer
from drl.core.specs import ActionSpec, Array, ObsSpec, PlainDict
from drl.core.state_files import StateDict
from drl.core.transition import Batch


class VecStep(NamedTuple):
    """One step of N environments. The arrays are valid at least until the next `step`."""

    reward: Array  # [N] float32
    terminated: Array  # [N] bool; takes precedence over truncated
    truncated: Array  # [N] bool
    next_obs: Array  # [N, …] true successors
    # [N, …] what to act on next: next_obs, or the first observation of a new episode. Environments that reset one call
    # later repeat the last observation until their row with `valid` False is over.
    obs: Array
    valid: Array  # [N] bool; False where the environment only reset itself in this call
    episodes: list[Episode]  # those that ended in this step
    action_mask: Array | None = None  # [N, choices] bool: legal actions in `obs`; None: all
    next_action_mask: Array | None = None  # the same for `next_obs`

    @property
    def over(self) -> Array:
        """[N] bool; where the next row begins a new episode: an episode or its reset row ended here."""
        over: Array = self.terminated | self.truncated | ~self.valid
        return over


class VecEnv(ABC):
    """N environments stepped together. A `with` block closes them; `close` may be called twice."""

    vectorization: str  # how they are stepped: sync · async · native · envpool · jax · parallel
    env_id: str
    num_envs: int
    obs_spec: ObsSpec
    action_spec: ActionSpec
    action_mask: Array | None = None  # [N, choices] bool: legal actions after `reset` or `step`; None: all

    @abstractmethod
    def reset(self) -> Array:
        """Begin a new episode in all environments."""

    @abstractmethod
    def step(self, action: Array) -> VecStep:
        """One step of every environment; `action` [N, …] in the environment's units."""

    @abstractmethod
    def state_dict(self) -> StateDict: ...

    @abstractmethod
    def load_state_dict(self, state: StateDict) -> str | None:
        """Go back to where the environments were, within their episodes. Returns why that is not possible, if it is
        not; then `reset` begins new episodes."""

    def repeats(self, env_steps: int) -> bool:
        """Whether they can take a step again that an exception has broken off, after `env_steps` steps in all."""
        return False

    def running_episode(self, index: int) -> Episode | None:
        """The episode that environment `index` is in, if it can be repeated."""
        return None

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Exploration(Protocol):
    """How an agent explores while it trains. It belongs to the agent; the trainer sets its time."""

    carries: bool  # whether it has state within an episode

    def at(self, env_steps: int) -> dict[str, float]:
        """Set the number of environment steps. Returns what to log, such as epsilon."""
        ...

    def begin(self, envs: Array | None = None) -> None: ...  # new episodes in all environments, or in those of the mask
    def state_dict(self) -> StateDict: ...
    def load_state_dict(self, state: StateDict) -> None: ...


class Agent(Protocol):
    """Acts with a trained model. It is what remains after training."""

    obs_spec: ObsSpec
    action_spec: ActionSpec
    normalizer: ObsNormalizer | None
    rng: np.random.Generator  # for exploration; evaluation replaces it temporarily
    variant: str  # of its model
    notes: PlainDict  # about its training, such as its environment; on its card
    has_value: bool
    recurrent: bool  # whether it has an `rnn_state`; then `begin` must be called when episodes begin
    rnn_state: Array | None  # [N, S] of N environments; evaluation replaces it temporarily
    golden_inputs: GoldenInputs | None  # observations whose actions are stored with it; None: random ones

    @property
    def exploration(self) -> Exploration | None: ...  # None: it samples from its policy

    def act(self, obs: object, explore: bool = False, action_mask: Array | None = None) -> Array: ...
    def predict(self, obs: object) -> Array: ...  # act(obs)
    def sample(self, obs: object) -> Array: ...  # act(obs, explore=True)
    def decide(self, obs: Array, explore: bool = False, action_mask: Array | None = None) -> Array: ...
    def explain(self, obs: Array, action_mask: Array | None = None) -> dict[str, Array]: ...
    def begin(self, envs: Array | None = None) -> None: ...  # new episodes in all environments, or in those of the mask
    def recall(self, num_envs: int) -> Array: ...  # `rnn_state`, or zeros if it is None
    def save(self, folder: str | Path, **notes: object) -> None: ...
    def save_policy_net(self, path: str | Path) -> None: ...
    def state_dict(self) -> StateDict: ...
    def load_state_dict(self, state: StateDict) -> None: ...


class Taken(NamedTuple):
    """One step of N environments, as a buffer stores it."""

    obs: Array  # [N, …] what the agent saw
    action: Array  # [N, …] in the policy's units
    step: VecStep
    action_mask: Array | None = None  # [N, choices] legal actions in `obs`; None: all
    rnn_state: Array | None = None  # [N, S] of a recurrent agent, before it saw `obs`


class AnyCollector(Protocol):
    """Where a trainer's steps come from: this process, or others (drl/cluster)."""

    num_envs: int
    obs_spec: ObsSpec
    action_spec: ActionSpec
    vectorization: str
    obs: Array | None  # what the environments show now; None before the first step
    in_env_step: bool  # whether the environments are taking a step, or an exception has broken that off
    lost: str | None  # why running episodes were given up since the trainer last looked; None: they were not

    def attach(self, agent: Agent) -> None: ...  # the learner's agent, before the first step
    def step(self, env_steps: int) -> Taken: ...  # `env_steps`: environment steps so far, for exploration
    def learned(self) -> None: ...  # the agent's weights have changed
    @property
    def may_stop(self) -> bool: ...  # whether `state_dict` describes it all
    def repeats(self, env_steps: int) -> bool: ...  # whether it can take a step again that was broken off
    def crashed_episode(self, index: int) -> Episode | None: ...  # with the action that failed
    def numbers(self) -> dict[str, float]: ...  # to log
    def begin_anew(self) -> None: ...  # give up the running episodes; new ones begin at the next step
    def state_dict(self) -> StateDict: ...
    def load_state_dict(self, state: StateDict) -> str | None: ...  # returns why it is inexact, if it is


class Learned(NamedTuple):
    """What one call of `learn` gives."""

    log: dict[str, float]  # numbers to log; a learning step reports their means over its calls
    priority: Array | None = None  # [B] error of each row of a replay batch


BatchT = TypeVar("BatchT", bound=Batch, contravariant=True)
NewBatchT = TypeVar("NewBatchT", bound=Batch, covariant=True)


class Algorithm(Protocol[BatchT]):
    """A loss and its optimizer step. `progress` is the share of the budget used, for schedules."""

    needs: str  # the variant its model must have

    def learn(self, batch: BatchT, progress: float = 0.0) -> Learned: ...
    def predict(self, obs: Array) -> Array: ...  # distribution parameters or action values
    def sync_target(self) -> None: ...  # online → target network, if there is one
    def state_dict(self) -> StateDict: ...
    def load_state_dict(self, state: StateDict) -> None: ...


class Buffer(Protocol[NewBatchT]):
    """Collects what the learner learns from. `take` gives the batch of one learning step, once `ready`.

    A `state_dict` refers to the replay's rows and does not copy them: write it to disk before the next `add`.
    """

    num_envs: int
    stops_anywhere: bool  # whether a run may end after any step, or only after a whole rollout or episode
    takes_sequences: bool  # whether a recurrent agent can learn from it

    @property
    def ready(self) -> bool: ...
    def take(self) -> NewBatchT: ...
    def add(self, obs: Array, action: Array, step: VecStep, action_mask: Array | None = None) -> None: ...
    def remember(self, rnn_state: Array) -> None: ...  # of a recurrent agent, before every `add`
    def update_priorities(self, index: Array, error: Array) -> None: ...  # of rows from `take`
    def cut(self) -> None: ...  # the running episodes of all environments are given up
    def state_dict(self) -> StateDict: ...
    def load_state_dict(self, state: StateDict) -> str | None: ...  # returns what the state lacks, if it lacks anything


class Tracker(Protocol):
    """Writes logs somewhere. With `drl.tracking.guarded` a failing tracker does not stop training."""

    def write(self, log: Log) -> None: ...
    def close(self) -> None: ...
