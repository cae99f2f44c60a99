"""The interfaces between the parts of the package. Arrays between them are NumPy, time-major `[T, N, …]`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from drl.core.errors import BadInput
from drl.core.golden_pairs import GoldenInputs
from drl.core.log import Episode, Log
from drl.core.normalize import ObsNormalizer
from drl.core.specs import ActionSpec, Array, EnvValue, ObsSpec, PlainDict
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


class EnvChange(NamedTuple):
    """A call of `set`, or of `call` for a method that returns nothing."""

    name: str
    value: EnvValue = None  # that was set
    arguments: tuple[tuple[EnvValue, ...], dict[str, EnvValue]] | None = None  # of a method; None: an attribute was set


class ChangeableEnvs(Protocol):
    """Environments whose attributes can be set, in this process or in others."""

    def set(self, name: str, value: EnvValue) -> None:
        """Set an attribute that every environment has."""

    def call(self, name: str, /, *args: EnvValue, **kwargs: EnvValue) -> EnvValue:
        """Call a method of every environment."""


class ReachableEnvs(ChangeableEnvs, Protocol):
    """Environments whose attributes can be read as well."""

    def get(self, name: str) -> list[EnvValue]:
        """The attribute of every environment."""

    def call(self, name: str, /, *args: EnvValue, **kwargs: EnvValue) -> list[EnvValue]:
        """Call a method of every environment; what each returned."""

    @property
    def changes(self) -> list[EnvChange]:
        """What new environments must repeat to be like these."""


def repeat_changes(changes: Sequence[EnvChange], envs: ChangeableEnvs) -> None:
    """Change other environments in the same way."""
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
    seed: int = 0  # root seed, also of the random streams of what is built for these environments

    @abstractmethod
    def reset(self) -> Array:
        """Begin a new episode in all environments."""

    @abstractmethod
    def step(self, action: Array) -> VecStep:
        """One step of every environment; `action` [N, …] in the environment's units."""

    @abstractmethod
    def state_dict(self) -> StateDict:
        """Where the environments are within their episodes."""

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

    def get(self, name: str) -> list[EnvValue]:
        """The attribute `name` of every environment, below its wrappers if these do not have it. A vector environment
        that has the attribute itself gives one value, a game of several agents one for each copy."""
        raise BadInput(f"cannot get {name!r} of {self.env_id!r}: {self.unreachable}")

    def set(self, name: str, value: EnvValue) -> None:
        """Set an attribute of every environment, where `get` finds it. A name that one of them lacks is refused. The
        value counts at once, and after `load_state_dict` as well."""
        raise BadInput(f"cannot set {name!r} of {self.env_id!r}: {self.unreachable}")

    def call(self, name: str, /, *args: EnvValue, **kwargs: EnvValue) -> list[EnvValue]:
        """Call a method of every environment, found as by `get`; what each returned. Calls are not repeated by
        `load_state_dict`: use `set` for what must last."""
        raise BadInput(f"cannot call {name!r} of {self.env_id!r}: {self.unreachable}")

    @property
    def changes(self) -> list[EnvChange]:
        """What new environments must repeat to be like these: attributes that were set, and calls of methods that
        returned nothing, in order."""
        return []

    @abstractmethod
    def close(self) -> None:
        """End worker processes and release what the environments hold."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Exploration(Protocol):
    """How an agent explores while it trains. It belongs to the agent; the trainer sets its time."""

    carries: bool  # whether it has state within an episode

    def begin_training(self, first_update: int) -> None:
        """Set the number of environment steps before the first update: what random starts depend on."""

    def at(self, env_steps: int) -> dict[str, float]:
        """Set the number of environment steps. Returns what to log, such as epsilon."""
        ...

    def begin(self, envs: Array | None = None) -> None:
        """New episodes begin in all environments, or in those of the mask."""

    def state_dict(self) -> StateDict:
        """Its state within episodes, and its random stream."""

    def load_state_dict(self, state: StateDict) -> None:
        """Go back to such a state."""


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
    def exploration(self) -> Exploration | None:
        """How it explores; None: it samples from its policy."""

    def act(self, obs: object, explore: bool = False, action_mask: Array | None = None) -> Array:
        """Actions for one observation or a batch, in the environment's units; without `explore` the best ones."""

    def predict(self, obs: object) -> Array:
        """`act(obs)`."""

    def sample(self, obs: object) -> Array:
        """`act(obs, explore=True)`."""

    def decide(self, obs: Array, explore: bool = False, action_mask: Array | None = None) -> Array:
        """Actions in the policy's units for a batch of encoded observations."""

    def explain(self, obs: object, action_mask: Array | None = None) -> dict[str, Array]:
        """What it computes for one observation or a batch, as `act` takes them: values, probabilities or action values
        by name."""

    def explain_encoded(self, obs: Array, action_mask: Array | None = None) -> dict[str, Array]:
        """`explain` for a batch of encoded observations."""

    def begin(self, envs: Array | None = None) -> None:
        """New episodes begin in all environments, or in those of the mask."""

    def recall(self, num_envs: int) -> Array:
        """`rnn_state`, or zeros if it is None."""

    def save(self, folder: str | Path, **notes: object) -> None:
        """Write a folder that `drl.load_agent` reads; `notes` go on its card."""

    def save_policy_net(self, path: str | Path) -> None:
        """Write the parameters that act as a plain `.pth` file."""

    def state_dict(self) -> StateDict:
        """Weights, normalizer, exploration and random stream."""

    def load_state_dict(self, state: StateDict) -> None:
        """Go back to such a state."""


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

    def attach(self, agent: Agent) -> None:
        """Act with the learner's agent; called before the first step."""

    def step(self, env_steps: int) -> Taken:
        """One step of all environments; `env_steps` so far are for exploration."""

    def learned(self) -> None:
        """The agent's weights have changed."""

    def get(self, name: str) -> list[EnvValue]:
        """See `VecEnv.get`."""

    def set(self, name: str, value: EnvValue) -> None:
        """See `VecEnv.set`."""

    def call(self, name: str, /, *args: EnvValue, **kwargs: EnvValue) -> list[EnvValue]:
        """See `VecEnv.call`."""

    @property
    def changes(self) -> list[EnvChange]:
        """See `VecEnv.changes`."""

    @property
    def may_stop(self) -> bool:
        """Whether `state_dict` describes it all."""

    def repeats(self, env_steps: int) -> bool:
        """Whether it can take a step again that was broken off."""

    def crashed_episode(self, index: int) -> Episode | None:
        """The episode in which an environment failed, with the action that failed."""

    def numbers(self) -> dict[str, float]:
        """What to log."""

    def begin_anew(self) -> None:
        """Give up the running episodes; new ones begin at the next step."""

    def state_dict(self) -> StateDict:
        """Where the environments are within their episodes."""

    def load_state_dict(self, state: StateDict) -> str | None:
        """Go back to such a state. Returns why it is inexact, if it is."""


class Loss(NamedTuple):
    """What a loss returns: a number to minimize, and numbers to log by name. Tensors of PyTorch or arrays of JAX.

    >>> Loss(2.0, {"policy_loss": 2.0}).plus(0.5, penalty=0.5)
    Loss(value=2.5, metrics={'policy_loss': 2.0, 'penalty': 0.5}, priority=None, statistics=())
    """

    value: Any  # scalar
    metrics: dict[str, Any]  # scalars, or one number per row `[B]`, whose mean is logged
    priority: Any = None  # [B] error of each row of a replay batch
    statistics: Any = ()  # means and variances of this batch, for batch renormalization

    def plus(self, value: Any, **metrics: Any) -> "Loss":
        """This loss with another term, and further numbers to log."""
        return self._replace(value=self.value + value, metrics=self.metrics | metrics)


class PolicyOutputs(NamedTuple):
    """What the model gives for the rows of an on-policy loss."""

    dist_params: Any  # [B, …] parameters of the policy's distribution
    value: Any  # [B]; None without a critic
    log_prob: Any  # [B] of the actions taken
    entropy: Any  # [B]


class QOutputs(NamedTuple):
    """What the networks of DQN give for the rows of a loss: values `[B, A]`, or logits or quantiles `[B, A, atoms]`."""

    q: Any  # of the online network at `rows.obs`
    next_q: Any  # of the target network at `rows.next_obs`
    selector: Any  # whose largest value chooses the next action: the online network's with `double`, else `next_q`
    target: Any = None  # [B] or [B, atoms]: what `target` returned; None before


class CriticOutputs(NamedTuple):
    """What the networks of an actor-critic give for the loss of its critics: N values `[N, B]`, or logits or quantiles
    `[N, B, atoms]`. With Discrete actions `next_q` has all of them, `[M, B, A]`."""

    q: Any  # of the critics for the actions taken
    next_q: Any  # [M, B, …] of the target critics (M of them) for the next actions
    next_log_prob: Any = None  # [B] of the next actions; [B, A] with Discrete actions; None: a deterministic policy
    target: Any = None  # [B] or [B, atoms]: what `target` returned; None before


class ActorOutputs(NamedTuple):
    """What the networks of an actor-critic give for the loss of its actor."""

    dist_params: Any  # [B, …]
    action: Any  # [B, entries]; None with Discrete actions
    log_prob: Any  # [B] of the action; [B, A] with Discrete actions; None: a deterministic policy
    q: Any  # [N, B] expected returns by the critics; [N, B, A] with Discrete actions


class Learned(NamedTuple):
    """What one call of `learn` gives."""

    log: dict[str, float]  # numbers to log; a learning step reports their means over its calls
    priority: Array | None = None  # [B] error of each row of a replay batch


BatchT = TypeVar("BatchT", bound=Batch, contravariant=True)
NewBatchT = TypeVar("NewBatchT", bound=Batch, covariant=True)


class Algorithm(Protocol[BatchT]):
    """A loss and its optimizer step. `progress` is the share of the budget used, for schedules."""

    needs: str  # the variant its model must have

    def learn(self, batch: BatchT, progress: float = 0.0) -> Learned:
        """One learning step on a batch."""

    def predict(self, obs: Array) -> Array:
        """Distribution parameters or action values of encoded observations."""

    def sync_target(self) -> None:
        """Copy the online network into the target network, if there is one."""

    def state_dict(self) -> StateDict:
        """Optimizers and target networks."""

    def load_state_dict(self, state: StateDict) -> None:
        """Go back to such a state."""


class Buffer(Protocol[NewBatchT]):
    """Collects what the learner learns from. `take` gives the batch of one learning step, once `ready`.

    A `state_dict` refers to the replay's rows and does not copy them: write it to disk before the next `add`.
    """

    num_envs: int
    stops_anywhere: bool  # whether a run may end after any step, or only after a whole rollout or episode
    takes_sequences: bool  # whether a recurrent agent can learn from it

    @property
    def first_update(self) -> int:
        """Environment steps before the first update."""

    @property
    def updates_per_log(self) -> int:
        """Batches of one learning step, unless the trainer's config says otherwise."""

    def attach(self, config: object) -> None:
        """Take the discount from an algorithm's config, and raise if its other settings do not fit; called before the
        first step."""

    @property
    def ready(self) -> bool:
        """Whether `take` has a batch."""

    def take(self) -> NewBatchT:
        """The batch of one learning step."""

    def add(self, obs: Array, action: Array, step: VecStep, action_mask: Array | None = None) -> None:
        """Store one step of all environments."""

    def remember(self, rnn_state: Array) -> None:
        """The state of a recurrent agent, before every `add`."""

    def update_priorities(self, index: Array, error: Array) -> None:
        """New errors of rows from `take`."""

    def cut(self) -> None:
        """The running episodes of all environments are given up."""

    def state_dict(self) -> StateDict:
        """What it holds; rows of a replay are referred to, not copied."""

    def load_state_dict(self, state: StateDict) -> str | None:
        """Go back to such a state. Returns what the state lacks, if it lacks anything."""


class Tracker(Protocol):
    """Writes logs somewhere. With `drl.tracking.guarded` a failing tracker does not stop training."""

    def write(self, log: Log) -> None:
        """Take one log."""

    def close(self) -> None:
        """Write what is held back; nothing comes after it."""
