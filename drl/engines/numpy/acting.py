"""The base classes of all agents: raw observations in, actions out, and explanations for viewers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, final

import numpy as np

from drl.core.agent_files import StoredAgent, open_agent, save_agent
from drl.core.configs import ActorCriticConfig, ModelConfig, QModelConfig
from drl.core.errors import BadInput, UnusableFile
from drl.core.golden_pairs import GoldenInputs
from drl.core.normalize import ObsNormalizer
from drl.core.seeding import generator_state, restore_generator, stream_of
from drl.core.specs import MASK_KEY, ActionSpec, AnyArray, Array, Distribution, ObsSpec, PlainDict, Specs
from drl.core.state_files import StateDict
from drl.core.variants import agent_in, answered_variant, find_variant, maker_in, require_variant
from drl.engines.numpy import distributions
from drl.engines.numpy.distributions import choose, masked_argmax
from drl.engines.numpy.exploration import AnyExploration, ExplorationConfig, default_exploration, make_exploration
from drl.engines.numpy.layer_parts import activation_of
from drl.engines.numpy.model_kinds import AnyQHead, distribution_of, known_variant
from drl.engines.numpy.networks import as_rows, mlp_forward, noise_of, policy_net, q_net, value_layers

Output = AnyArray  # of a model: an array of its engine, or (distribution parameters, values)
ModelT = TypeVar("ModelT")


class Actor(ABC):
    """`act` takes one raw observation or a batch of them and returns actions in the environment's units. `decide` is
    for training: it takes encoded observations and returns actions in the policy's units.
    """

    has_value = False  # whether there is a critic
    recurrent = False  # whether it has an `rnn_state`
    rnn_state: Array | None = None
    rnn_state_size: int = 0  # numbers per environment; 0 if not recurrent
    exploration: AnyExploration | None = None  # None: it samples from its policy
    golden_inputs: GoldenInputs | None = None  # observations of its golden pairs; None: random ones
    distribution: Distribution | None = None  # of its policy; None: it acts by action values

    def __init__(self, specs: Specs, normalizer: ObsNormalizer | None = None, rng: np.random.Generator | None = None):
        self.obs_spec: ObsSpec = specs.obs_spec
        self.action_spec: ActionSpec = specs.action_spec
        self.normalizer: ObsNormalizer | None = normalizer
        self.rng: np.random.Generator = rng or stream_of(specs, "exploration")
        self.notes: PlainDict = {}  # about its training

    @abstractmethod
    def decide(self, obs: Array, explore: bool = False, action_mask: Array | None = None) -> Array:
        """Actions for encoded observations `[N, …]`, in the policy's units."""

    @abstractmethod
    def explain_encoded(self, obs: Array, action_mask: Array | None = None) -> dict[str, Array]:
        """`explain` for encoded observations `[N, …]`."""

    def outputs(self, obs: Array) -> Array | None:
        return None

    def act(self, obs: object, explore: bool = False, action_mask: Array | None = None) -> Array:
        """`explore=False` gives the best action, for evaluation and deployment. The mask of legal actions is an
        argument, or in the observation under `action_mask`."""
        encoded, mask, single = self._encoded(obs, action_mask)
        action = self.action_spec.to_env(self.decide(encoded, explore, mask))
        return action[0] if single else action

    def explain(self, obs: object, action_mask: Array | None = None) -> dict[str, Array]:
        """What the agent computes for one raw observation or a batch of them, as `act` takes them. A policy gives
        `policy`, the probabilities of discrete actions or the mean of continuous ones, and `value` if it has a critic;
        action values are `q`, with -inf for illegal actions. It changes nothing: a recurrent agent stays where it is.
        """
        encoded, mask, single = self._encoded(obs, action_mask)
        explained = self.explain_encoded(encoded, mask)
        return {name: values[0] for name, values in explained.items()} if single else explained

    def _encoded(self, obs: object, action_mask: Array | None) -> tuple[Array, Array | None, bool]:
        """A batch of encoded observations, their masks, and whether it is one observation."""
        if action_mask is None and isinstance(obs, Mapping):
            action_mask = obs.get(MASK_KEY)
        single = self.obs_spec.is_single(obs)
        encoded = self.obs_spec.encode_one(obs)[None] if single else self.obs_spec.encode(obs)
        mask = None if action_mask is None else np.asarray(action_mask, bool).reshape(len(encoded), -1)
        return encoded, mask, single

    def predict(self, obs: object) -> Array:
        """`act(obs)`: the action for evaluation and deployment."""
        return self.act(obs)

    def sample(self, obs: object) -> Array:
        """`act(obs, explore=True)`: the action for training."""
        return self.act(obs, explore=True)

    def normalize(self, obs: Array) -> Array:
        """Observations as the model takes them."""
        return obs if self.normalizer is None else self.normalizer(obs)

    def begin(self, envs: Array | None = None) -> None:
        """New episodes begin: in all environments, or in those of the mask `[N]`."""
        if self.exploration is not None:
            self.exploration.begin(envs)

    def recall(self, num_envs: int) -> Array:
        return np.zeros((num_envs, 0), np.float32)


class ModelAgent(Actor, Generic[ModelT]):
    """Base class of agents whose model is computed by an engine, in which it may be trained."""

    engine: ClassVar[str]
    variant: str  # of the model it acts with

    def __init__(
        self,
        model: ModelT,
        specs: Specs,
        normalizer: ObsNormalizer | None = None,
        rng: np.random.Generator | None = None,  # for exploration
        exploration: ExplorationConfig | None = None,  # None: see `default_exploration`
    ):
        super().__init__(specs, normalizer, rng)
        self.take(model, exploration)

    @abstractmethod
    def take(self, model: ModelT, exploration: ExplorationConfig | None) -> None:
        """Set what depends on the model: variant, distribution, exploration, and the networks that act."""

    @abstractmethod
    def parameters(self) -> dict[str, Array]:
        """The model's current parameters by name."""

    @abstractmethod
    def load_parameters(self, params: dict[str, Array], source: str) -> None:
        """Copy parameters into the model; every name and shape must match."""

    @abstractmethod
    def architecture(self) -> PlainDict | None:
        """The config that the model was built from; None for a custom model."""

    @classmethod
    @abstractmethod
    def filled(cls, model: Any, params: dict[str, Array], source: str, device: str) -> ModelT:
        """A model with these parameters, on a device."""

    def save(self, folder: str | Path, **notes: object) -> None:
        """Write the deployable agent: safetensors weights and a JSON card. `notes` (plain data) go on the card."""
        save_agent(folder, self.engine, self.architecture(), self, self.parameters(), notes)

    @classmethod
    def load(cls, path: str | Path, model: Any = None, device: str = "cpu") -> Self:
        """Load an agent that any engine saved, from its agent folder or run folder. A custom model must be passed."""
        stored = open_agent(path)
        if model is None:
            if stored.config is None:
                raise BadInput(f"{path} was saved with a model of your own; pass it: load(path, model=MyModel(...))")
            make = maker_in(find_variant(stored.variant, path), cls.engine)
            try:
                model = make(stored.obs_spec, stored.action_spec, stored.config)
            except Exception as error:  # the card is untrusted
                raise UnusableFile(f"{path} describes a model that this drl cannot build ({error!r:.200})") from None
        filled = cls.filled(model, stored.params, str(path), device)
        agent = cls(filled, stored, stored.normalizer, np.random.default_rng())
        agent.exploration = None  # it is trained
        return agent

    def state_dict(self) -> StateDict:
        """Everything that training changes in the agent, as plain data."""
        return {
            "model": {name: array.copy() for name, array in self.parameters().items()},
            "normalizer": None if self.normalizer is None else self.normalizer.state_dict(),
            "rng": generator_state(self.rng),
            "rnn_state": None if self.rnn_state is None else self.rnn_state.copy(),
            "exploration": None if self.exploration is None else self.exploration.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        self.load_parameters(state["model"], "the checkpoint")
        if self.normalizer is not None:
            self.normalizer.load_state_dict(state["normalizer"])
        restore_generator(self.rng, state["rng"])
        self.rnn_state = None if state["rnn_state"] is None else np.array(state["rnn_state"], np.float32)
        if self.exploration is not None:
            self.exploration.load_state_dict(state["exploration"])


class PolicyActor(Actor):
    """Acts by a policy: a sample from its distribution when it explores, else the mode."""

    temperature: float = 1.0  # of exploring actions: below 1 less random, above 1 more
    distribution: Distribution
    variant: str

    @abstractmethod
    def dist_params(self, obs: Array) -> Array:
        """Parameters of the policy's distribution `[N, P]` for encoded observations."""

    def outputs(self, obs: Array) -> Array:
        return self.dist_params(obs)

    def explore_by(
        self, config: ExplorationConfig | None, model: object, probe: Callable[[], Output]
    ) -> AnyExploration | None:
        """The exploration of an agent with this model; also sets its variant and distribution. `probe` gives the
        model's output for `PROBES` observations."""
        if known_variant(model) == "q_value":
            require_variant("PolicyAgent", "policy_value", "q_value")
        self.distribution = distribution_of(model, self.action_spec)
        answered = answered_variant(probe(), self.distribution.num_params, acts_by="policy")
        self.has_value: bool = answered == "policy_value"
        self.variant = getattr(model, "variant", answered)  # a plugin's model may name its own
        return make_exploration(config or default_exploration(self.variant, self.distribution), self.action_spec)

    def decide(self, obs: Array, explore: bool = False, action_mask: Array | None = None) -> Array:
        action = choose(self, self.dist_params(obs), explore, action_mask)
        return self.exploration(action, self.rng, action_mask) if explore and self.exploration else action

    @abstractmethod
    def critic(self, obs: Array) -> Array:
        """The critic's estimate for encoded observations `[N]`; called only if `has_value`."""

    def explain_encoded(self, obs: Array, action_mask: Array | None = None) -> dict[str, Array]:
        parts = distributions.probabilities(self.distribution, self.dist_params(obs), action_mask)
        thoughts = {"policy": np.concatenate([part.reshape(len(obs), -1) for part in parts], axis=1)}
        return thoughts | ({"value": self.value(obs)} if self.has_value else {})

    def value(self, obs: Array) -> Array:
        """The critic's estimate for encoded observations `[N]`."""
        if not self.has_value:
            raise BadInput("this agent has a policy-only model; value() needs a policy-value model")
        return self.critic(obs)


class QActor(Actor):
    """Acts by action values: the legal action of the highest value, modified by its exploration. Noisy networks explore
    with new noise at every step and are evaluated with their means."""

    variant = "q_value"

    @abstractmethod
    def q_values(self, obs: Array, noisy: bool = False) -> Array:
        """Expected returns `[N, A]` of encoded observations; `noisy` draws new noise for noisy layers."""

    def outputs(self, obs: Array) -> Array:
        return self.q_values(obs)

    def explore_by(
        self, config: ExplorationConfig | None, model: object, probe: Callable[[], Output], noisy: bool
    ) -> AnyExploration | None:
        """The exploration of an agent with this model, which must have action values."""
        require_variant("QAgent", "q_value", known_variant(model))
        if not isinstance(getattr(model, "head", None), AnyQHead):
            answered_variant(probe(), self.action_spec.num_choices, acts_by="q")
        return make_exploration(config or default_exploration(self.variant), self.action_spec, noisy)

    def decide(self, obs: Array, explore: bool = False, action_mask: Array | None = None) -> Array:
        best = masked_argmax(self.q_values(obs, noisy=explore), action_mask)
        return self.exploration(best, self.rng, action_mask) if explore and self.exploration else best

    def explain_encoded(self, obs: Array, action_mask: Array | None = None) -> dict[str, Array]:
        q_values = self.q_values(obs)
        return {"q": q_values if action_mask is None else np.where(action_mask, q_values, -np.inf)}


@final
class NumpyPolicyAgent(PolicyActor):
    """Acts by a policy."""

    def __init__(self, stored: StoredAgent, config: ModelConfig | ActorCriticConfig):
        super().__init__(stored, stored.normalizer, np.random.default_rng())
        self.variant: str = stored.variant
        self.distribution: Distribution = stored.distribution
        self.has_value: bool = stored.variant == "policy_value"
        self._policy = policy_net(stored.params, config.activation)
        self._critic = value_layers(stored.params, config.activation) if self.has_value else []

    def dist_params(self, obs: Array) -> Array:
        return self._policy(self.normalize(obs))

    def critic(self, obs: Array) -> Array:
        return mlp_forward(self._critic, as_rows(self.normalize(obs)))[:, 0]


@final
class NumpyQAgent(QActor):
    """Acts by action values."""

    def __init__(self, stored: StoredAgent, config: QModelConfig):
        super().__init__(stored, stored.normalizer, np.random.default_rng())
        self._params, self._config = stored.params, config
        self._mean = q_net(stored.params, config)

    def q_values(self, obs: Array, noisy: bool = False) -> Array:
        if not noisy or not self._config.noisy:
            return self._mean(self.normalize(obs))
        noise = noise_of(self._params, partial(self.rng.standard_normal, dtype=np.float32))
        return q_net(self._params | noise, self._config)(self.normalize(obs))


def load_numpy_agent(path: str | Path) -> Actor:
    """The agent in a run folder or agent folder, if its model is an MLP."""
    stored = open_agent(path)
    config = stored.config
    if config is None:
        raise BadInput(f"{path} was saved with a model of your own, which only its engine can run; omit engine")
    agent = agent_in(find_variant(stored.variant, path), "numpy")
    if (recurrent := getattr(config, "recurrent", "none")) != "none":
        raise BadInput(f"{path} is recurrent ({recurrent}); the NumPy engine does not have that: use the torch engine")
    if any(array.ndim > 2 for array in stored.params.values()):
        raise BadInput(f"{path} has convolutions; the NumPy engine is for MLPs: use torch or jax")
    if getattr(config, "backbone", "mlp") not in ("auto", "mlp", "simba") or getattr(config, "head", "auto") != "auto":
        raise BadInput(f"{path} has a custom backbone or head, which the NumPy engine cannot run; use torch or jax")
    activation_of(getattr(config, "activation", "tanh"))  # raises where it has no form in NumPy
    try:
        made: Actor = agent(stored, config)
    except KeyError as error:
        raise UnusableFile(f"{path} does not fit the model its card describes: {error} is missing") from None
    return made
