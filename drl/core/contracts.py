"""The interfaces between the parts of the package. Arrays between them are NumPy, time-major `[T, N, …]`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol, Self, TypeVar

import numpy as np

from drl.core.errors import BadInput
from drl.core.golden_pairs import Acting
from drl.core.log import Episode, Log
from drl.core.normalize import ObsNormalizer
from drl.core.specs import ActionSpec, AnyArray, Array, EnvValue, ObsSpec, PlainDict
from drl.core.state_files import StateDict


class Stateful(Protocol):
    """A part with a state that checkpoints store."""

    def state_dict(self) -> StateDict:
        """Return the state as plain data and arrays."""

    def load_state_dict(self, state: StateDict) -> None:
        """Restore such a state."""


class VecStep(NamedTuple):
    """One step of N environments. The arrays are valid at least until the next `step`."""

    reward: Array  # [N] float32
    terminated: Array  # [N] bool; takes precedence over truncated
    truncated: Array  # [N] bool
    next_obs: Array  # [N, …] true successors
    # [N, …] observations to act on next: next_obs, or the first observation of a new episode. Environments with
    # NEXT_STEP autoreset repeat the last observation until their row with `valid` False is over.
    obs: Array
    valid: Array  # [N] bool; False where the environment only reset itself in this call
    episodes: list[Episode]  # episodes that ended in this step
    action_mask: Array | None = None  # [N, choices] bool: legal actions in `obs`; None: all
    next_action_mask: Array | None = None  # the same for `next_obs`

    @property
    def over(self) -> Array:
        """[N] bool; True where the next row starts a new episode."""
        over: Array = self.terminated | self.truncated | ~self.valid
        return over


@dataclass(frozen=True)
class Transition:
    """Transitions of one or many environments. `next_obs` is the true successor, even at the end of an episode: its
    value is 0 if `terminated`, and counts if only `truncated`."""

    obs: Array
    action: Array  # in the policy's units
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: Array


@dataclass(frozen=True)
class Batch:
    """A batch of experience from a buffer."""

    obs: Array
    action: Array  # in the policy's units
    reward: Array

    def normalized(self, normalizer: ObsNormalizer) -> Self:
        """Return this batch with observations normalized as they were when the agent acted."""
        raise NotImplementedError


@dataclass(frozen=True)
class RolloutBatch(Batch):
    """A window of experience, time-major. The successor of row t is row t + 1 of `obs`, or `last_obs`. Where an episode
    ended, it is in `final_obs`, and its flat position (t · N + n) is in `final_index`."""

    obs: Array  # [T, N, …]
    action: Array  # [T, N, …] in the policy's units
    reward: Array  # [T, N]
    terminated: Array  # [T, N] bool
    truncated: Array  # [T, N] bool
    valid: Array  # [T, N] bool; False in rows where an environment only reset itself
    last_obs: Array  # [N, …]
    final_index: Array  # [E] int
    final_obs: Array  # [E, …]
    rnn_state: Array | None = None  # [N, S] of a recurrent agent at the start of the window
    action_mask: Array | None = None  # [T, N, choices] bool: legal actions; None: all

    def normalized(self, normalizer: ObsNormalizer) -> Self:
        obs, last_obs, final_obs = (normalizer(array) for array in (self.obs, self.last_obs, self.final_obs))
        return replace(self, obs=obs, last_obs=last_obs, final_obs=final_obs)

    def transition(self) -> Transition:
        """Return the valid rows with all successors, flattened to `[B, …]`."""
        next_obs = np.concatenate([self.obs[1:], self.last_obs[None]])
        next_obs.reshape(-1, *self.last_obs.shape[1:])[self.final_index] = self.final_obs
        rows = (self.obs, self.action, self.reward, self.terminated, self.truncated, next_obs)
        return Transition(*(array[self.valid] for array in rows))


@dataclass(frozen=True)
class ReplayBatch(Batch):
    """Transitions sampled from a replay buffer, `[B, …]`. The arrays are overwritten by the next batch."""

    obs: Array
    action: Array
    reward: Array  # discounted sum over k steps
    terminated: Array  # 1.0 where the value of `next_obs` is 0
    discount: Array  # γ^k, where k is the number of steps in the n-step return
    next_obs: Array
    weight: Array  # importance weights, at most 1; all 1 in uniform replay
    index: Array  # position of each row in the buffer
    next_action_mask: Array | None = None  # [B, choices] bool: legal actions in `next_obs`; None: all
    action_mask: Array | None = None  # the same for `obs`

    def normalized(self, normalizer: ObsNormalizer) -> Self:
        return replace(self, obs=normalizer(self.obs), next_obs=normalizer(self.next_obs))


class EnvChange(NamedTuple):
    """A call of `set`, or of `call` for a method that returns nothing."""

    name: str
    value: object = None  # new value of the attribute
    arguments: tuple[tuple[object, ...], dict[str, object]] | None = None  # of a method; None: an attribute was set


class ChangeableEnvs(Protocol):
    """Environments whose attributes can be set, in this process or in others."""

    def set(self, name: str, value: object) -> None:
        """Set an attribute that every environment has."""

    def call(self, name: str, /, *args: object, **kwargs: object) -> object:
        """Call a method of every environment."""


class ReachableEnvs(ChangeableEnvs, Protocol):
    """Environments whose attributes can be read as well."""

    def get(self, name: str) -> list[EnvValue]:
        """Return the attribute of every environment."""

    def call(self, name: str, /, *args: object, **kwargs: object) -> list[EnvValue]:
        """Call a method of every environment and return the results."""

    @property
    def changes(self) -> list[EnvChange]:
        """Changes to repeat in new environments."""


def repeat_changes(changes: Sequence[EnvChange], envs: ChangeableEnvs) -> None:
    """Apply the same changes to other environments."""
    for name, value, arguments in changes:
        if arguments is None:
            envs.set(name, value)
        else:
            envs.call(name, *arguments[0], **arguments[1])


class VecEnv(ABC):
    """N environments stepped together. A `with` block closes them; `close` may be called twice."""

    unreachable = "its vectorization offers no way into them"  # why `get`, `set` and `call` are refused

    vectorization: str  # how they are stepped: sync · async · native · envpool · jax · parallel
    env_id: str
    num_envs: int
    obs_spec: ObsSpec
    action_spec: ActionSpec
    action_mask: Array | None = None  # [N, choices] bool: legal actions after `reset` or `step`; None: all
    frame_stack: int = 1  # frames per observation
    seed: int = 0  # root seed, also for agents, buffers and algorithms built for these environments

    @abstractmethod
    def reset(self) -> Array:
        """Start a new episode in every environment and return the observations."""

    @abstractmethod
    def step(self, action: Array) -> VecStep:
        """Step every environment; `action` [N, …] is in the environment's units."""

    @abstractmethod
    def state_dict(self) -> StateDict:
        """State of the environments within their episodes."""

    @abstractmethod
    def load_state_dict(self, state: StateDict) -> str | None:
        """Restore the environments within their episodes. If that is impossible, return the reason; `reset` then starts
        new episodes."""

    def repeats(self, env_steps: int) -> bool:
        """Whether an interrupted environment step can be replayed, after `env_steps` steps in total."""
        return False

    def running_episode(self, index: int) -> Episode | None:
        """Return the current episode of environment `index`, if it can be replayed."""
        return None

    def get(self, name: str) -> list[EnvValue]:
        """Return the attribute `name` of every environment, searched from the outermost wrapper inward. A vector
        environment that has the attribute itself returns one value, a multi-agent game one for each copy."""
        raise self._unreachable("get", name)

    def set(self, name: str, value: object) -> None:
        """Set an attribute of every environment where `get` finds it. Raises if an environment does not have it. The
        value applies immediately and survives `load_state_dict`."""
        raise self._unreachable("set", name)

    def call(self, name: str, /, *args: object, **kwargs: object) -> list[EnvValue]:
        """Call a method of every environment, found as by `get`, and return the results. `load_state_dict` does not
        repeat calls; use `set` for lasting changes."""
        raise self._unreachable("call", name)

    def _unreachable(self, what: str, name: str) -> BadInput:
        return BadInput(f"cannot {what} {name!r} of {self.env_id!r}: {self.unreachable}")

    @property
    def changes(self) -> list[EnvChange]:
        """Changes to repeat in new environments, in order: attributes set, and calls that returned nothing."""
        return []

    @abstractmethod
    def close(self) -> None:
        """End worker processes and release resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Exploration(Stateful, Protocol):
    """Exploration of an agent in training, with its state within episodes and its random stream. It belongs to the
    agent; the trainer sets the step count."""

    carries: bool  # whether it has state within an episode

    def begin_training(self, first_update: int) -> None:
        """Set the number of environment steps before the first update, which random starts depend on."""

    def at(self, env_steps: int) -> dict[str, float]:
        """Set the number of environment steps. Returns numbers to log, such as epsilon."""
        ...

    def begin(self, envs: Array | None = None) -> None:
        """Start new episodes in all environments, or where the mask `envs` is True."""


class Agent(Acting, Stateful, Protocol):
    """Acts with a model, during training and afterwards. Its state: weights, normalizer, exploration, random stream."""

    normalizer: ObsNormalizer | None
    rng: np.random.Generator  # for exploration; evaluation replaces it temporarily
    variant: str  # model variant
    notes: PlainDict  # about its training, such as the environment; stored on its card
    has_value: bool

    @property
    def exploration(self) -> Exploration | None:
        """Exploration in training; None: actions are sampled from the policy."""

    def act(self, obs: object, explore: bool = False, action_mask: Array | None = None) -> Array:
        """Return actions in the environment's units for one observation or a batch; greedy ones without `explore`."""

    def predict(self, obs: object) -> Array:
        """`act(obs)`."""

    def sample(self, obs: object) -> Array:
        """`act(obs, explore=True)`."""

    def explain(self, obs: object, action_mask: Array | None = None) -> dict[str, Array]:
        """Return network outputs for one observation or a batch, as in `act`: state values, probabilities or Q-values
        by name."""

    def explain_encoded(self, obs: Array, action_mask: Array | None = None) -> dict[str, Array]:
        """`explain` for a batch of encoded observations."""

    def begin(self, envs: Array | None = None) -> None:
        """Start new episodes in all environments, or where the mask `envs` is True."""

    def recall(self, num_envs: int) -> Array:
        """Return `rnn_state`, or zeros if it is None."""

    def save(self, folder: str | Path, **notes: object) -> None:
        """Save the agent to a folder for `drl.load_agent`; `notes` are stored on its card."""

    def save_policy_net(self, path: str | Path) -> None:
        """Save the policy's parameters as a plain `.pth` file."""


class CollectedStep(NamedTuple):
    """One step of N environments, as a buffer stores it."""

    obs: Array  # [N, …] what the agent saw
    action: Array  # [N, …] in the policy's units
    step: VecStep
    action_mask: Array | None = None  # [N, choices] legal actions in `obs`; None: all
    rnn_state: Array | None = None  # [N, S] of a recurrent agent, before it saw `obs`


class AnyCollector(ReachableEnvs, Protocol):
    """Collects environment steps for a trainer, in this process or in others (drl/cluster)."""

    num_envs: int
    obs_spec: ObsSpec
    action_spec: ActionSpec
    vectorization: str
    obs: Array | None  # current observations; None before the first step
    in_env_step: bool  # whether an environment step is running or was interrupted by an exception
    lost: str | None  # reason why running episodes were lost since the trainer's last check; None: none were

    def attach(self, agent: Agent) -> None:
        """Act with the learner's agent; called before the first step."""

    def step(self, env_steps: int) -> CollectedStep:
        """Step all environments; exploration depends on `env_steps`, the number of steps so far."""

    def learned(self) -> None:
        """Called when the agent's weights have changed."""

    @property
    def may_stop(self) -> bool:
        """Whether `state_dict` is complete now, so that training may stop."""

    def repeats(self, env_steps: int) -> bool:
        """Whether an interrupted environment step can be replayed."""

    def crashed_episode(self, index: int) -> Episode | None:
        """Return the episode in which an environment failed, including the failing action."""

    def numbers(self) -> dict[str, float]:
        """Return numbers to log."""

    def begin_anew(self) -> None:
        """Drop the running episodes; the next step starts new ones."""

    def state_dict(self) -> StateDict:
        """State of the environments within their episodes."""

    def load_state_dict(self, state: StateDict) -> str | None:
        """Restore such a state. Returns the reason if the result is inexact."""


class Loss(NamedTuple):
    """The result of a loss: a scalar to minimize and metrics to log, as PyTorch tensors or JAX arrays.

    >>> Loss(2.0, {"policy_loss": 2.0}).plus(0.5, penalty=0.5)
    Loss(value=2.5, metrics={'policy_loss': 2.0, 'penalty': 0.5}, priority=None, statistics=())
    """

    value: AnyArray  # scalar
    metrics: dict[str, AnyArray]  # scalars, or one number per row `[B]`, whose mean is logged
    priority: AnyArray = None  # [B] error of each row of a replay batch
    statistics: AnyArray = ()  # means and variances of this batch, for batch renormalization

    def plus(self, value: AnyArray, **metrics: AnyArray) -> "Loss":
        """Return this loss with an additional term and additional metrics."""
        return self._replace(value=self.value + value, metrics=self.metrics | metrics)

    def __add__(self, other: object) -> NoReturn:
        raise BadInput("a loss is not a number: write loss.plus(term, name=metric) to add a term")

    @staticmethod
    def checked(loss: object, who: str) -> "Loss":
        """Raise unless `loss` is a Loss whose value is a scalar."""
        if not isinstance(loss, Loss):
            raise BadInput(f"a loss of {who} returned {loss!r:.80}; expected drl.Loss(value, metrics)")
        if shape := tuple(getattr(loss.value, "shape", ())):
            raise BadInput(f"the value of a loss of {who} has the shape {shape}; expected a scalar, such as its mean()")
        return loss


class Rates(Protocol):
    """Current values of the rates that a loss depends on, by name: `rates.clip_range`."""

    def __getattr__(self, name: str) -> AnyArray: ...


class PolicyOutputs(NamedTuple):
    """Model outputs for the rows of an on-policy loss."""

    dist_params: AnyArray  # [B, …] parameters of the policy's distribution
    value: AnyArray  # [B]; None without a critic
    log_prob: AnyArray  # [B] of the actions taken
    entropy: AnyArray  # [B]


class QOutputs(NamedTuple):
    """Network outputs for the DQN loss: Q-values `[B, A]`, or logits or quantiles `[B, A, atoms]`."""

    q: AnyArray  # of the online network at `rows.obs`
    next_q: AnyArray  # of the target network at `rows.next_obs`
    selector: AnyArray  # the next action is its argmax: online network with `double`, else `next_q`
    target: AnyArray = None  # [B] or [B, atoms]: result of `target`; None before it is called


class CriticOutputs(NamedTuple):
    """Network outputs for the loss of an actor-critic's critics: Q-values `[N, B]` of N critics, or logits or quantiles
    `[N, B, atoms]`. With Discrete actions, `next_q` holds all actions: `[M, B, A]`."""

    q: AnyArray  # of the critics for the actions taken
    next_q: AnyArray  # [M, B, …] of the target critics (M of them) for the next actions
    next_log_prob: AnyArray = None  # [B] of the next actions; [B, A] with Discrete actions; None: deterministic policy
    target: AnyArray = None  # [B] or [B, atoms]: result of `target`; None before it is called


class ActorOutputs(NamedTuple):
    """Network outputs for the loss of an actor-critic's actor."""

    dist_params: AnyArray  # [B, …]
    action: AnyArray  # [B, entries]; None with Discrete actions
    log_prob: AnyArray  # [B] of the action; [B, A] with Discrete actions; None: a deterministic policy
    q: AnyArray  # [N, B] Q-values of the critics; [N, B, A] with Discrete actions


class Learned(NamedTuple):
    """The result of one `learn` call."""

    log: dict[str, float]  # numbers to log; a learning step reports their means over its calls
    priority: Array | None = None  # [B] error of each row of a replay batch


BatchT = TypeVar("BatchT", bound=Batch, contravariant=True)
NewBatchT = TypeVar("NewBatchT", bound=Batch, covariant=True)


class Algorithm(Stateful, Protocol[BatchT]):
    """A loss and its optimizer step, with the state of optimizers and target networks. `progress` is the fraction of
    the budget used, for schedules."""

    needs: str  # required model variant

    def learn(self, batch: BatchT, progress: float = 0.0) -> Learned:
        """Update the model on a batch."""

    def predict(self, obs: Array) -> Array:
        """Return distribution parameters or Q-values for encoded observations."""

    def sync_target(self) -> None:
        """Copy the online network into the target network, if there is one."""


class Buffer(Protocol[NewBatchT]):
    """Stores experience for the learner. When it is `ready`, `take` returns a batch.

    A `state_dict` of a replay buffer references its rows without copying them: save it before the next `add`.
    """

    num_envs: int
    stops_anywhere: bool  # whether a run may end after any step; if not, after a whole rollout or episode
    takes_sequences: bool  # whether a recurrent agent can learn from it

    @property
    def first_update(self) -> int:
        """Environment steps before the first update."""

    @property
    def updates_per_log(self) -> int:
        """Default number of batches per learning step."""

    def attach(self, config: object) -> None:
        """Read the discount from an algorithm's config and raise if its other settings do not fit. Called before the
        first step."""

    @property
    def ready(self) -> bool:
        """Whether `take` can return a batch."""

    def take(self) -> NewBatchT:
        """Return the next batch."""

    def add(self, obs: Array, action: Array, step: VecStep, action_mask: Array | None = None) -> None:
        """Store one step of all environments."""

    def remember(self, rnn_state: Array) -> None:
        """Store a recurrent agent's state; called before every `add`."""

    def update_priorities(self, index: Array, error: Array) -> None:
        """Set new errors for rows returned by `take`."""

    def cut(self) -> None:
        """Drop the running episodes of all environments."""

    def state_dict(self) -> StateDict:
        """Stored rows; a replay buffer's rows are referenced, not copied."""

    def load_state_dict(self, state: StateDict) -> str | None:
        """Restore such a state. Returns what is missing in it, if anything."""


class Tracker(Protocol):
    """Writes logs somewhere. With `drl.tracking.guarded` a failing tracker does not stop training."""

    def write(self, log: Log) -> None:
        """Write one log."""

    def close(self) -> None:
        """Flush pending logs and close; no more logs follow."""
