"""What agents of every engine share: raw observations in, actions out, and what they say when they are asked."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from drl.core.errors import BadInput
from drl.core.normalize import ObsNormalizer
from drl.core.specs import MASK_KEY, ActionSpec, Array, Distribution, ObsSpec
from drl.engines.numpy import distributions
from drl.engines.numpy.exploration import AnyExploration


class Actor(ABC):
    """`act` takes what the environment hands out, one observation or a batch, and returns what it accepts.
    `decide` is its inner half, for training: encoded observations in, actions in the policy's own units out.
    """

    has_value = False  # whether there is a critic
    recurrent = False  # whether it remembers
    rnn_state: Array | None = None
    exploration: AnyExploration | None = None  # None: explore by sampling alone

    def __init__(
        self,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        normalizer: ObsNormalizer | None = None,
        rng: np.random.Generator | None = None,
    ):
        self.obs_spec, self.action_spec, self.normalizer = obs_spec, action_spec, normalizer
        self.rng = rng or np.random.default_rng()

    @abstractmethod
    def decide(self, obs: Array, explore: bool = False, action_mask: Array | None = None) -> Array:
        """Actions for encoded observations `[N, …]`, in the policy's units."""

    @abstractmethod
    def explain(self, obs: Array, action_mask: Array | None = None) -> dict[str, Array]:
        """What the agent thinks of encoded observations, by name, for people who watch."""

    def act(self, obs: object, explore: bool = False, action_mask: Array | None = None) -> Array:
        """`explore=False` is evaluation and deployment: the best action the agent knows. A mask of legal actions is
        given beside the observation, or lies in it under `action_mask`."""
        if action_mask is None and isinstance(obs, Mapping):
            action_mask = obs.get(MASK_KEY)
        single = self.obs_spec.is_single(obs)
        encoded = self.obs_spec.encode_one(obs)[None] if single else self.obs_spec.encode(obs)
        mask = None if action_mask is None else np.asarray(action_mask, bool).reshape(len(encoded), -1)
        action = self.action_spec.to_env(self.decide(encoded, explore, mask))
        return action[0] if single else action

    def predict(self, obs: object) -> Array:
        """`act(obs)`: the action for evaluation and deployment."""
        return self.act(obs)

    def sample(self, obs: object) -> Array:
        """`act(obs, explore=True)`: the action for training."""
        return self.act(obs, explore=True)

    def normalize(self, obs: Array) -> Array:
        return obs if self.normalizer is None else self.normalizer(obs)

    def begin(self, envs: Array | None = None) -> None:
        """Episodes begin: everywhere, or where the mask `[N]` says so."""
        if self.exploration is not None:
            self.exploration.begin(envs)

    def recall(self, num_envs: int) -> Array:
        return np.zeros((num_envs, 0), np.float32)


class PolicyActor(Actor):
    """Acts by a policy: a draw from its distribution when it explores, the mode when it does not."""

    temperature = 1.0  # of exploring actions: below 1 bolder, above 1 more random
    distribution: Distribution

    @abstractmethod
    def dist_params(self, obs: Array) -> Array:
        """Parameters of the policy's distribution `[N, P]` for encoded observations."""

    @abstractmethod
    def critic(self, obs: Array) -> Array:
        """The critic's estimate for encoded observations `[N]`; asked only if `has_value`."""

    def explain(self, obs: Array, action_mask: Array | None = None) -> dict[str, Array]:
        parts = distributions.probabilities(self.distribution, self.dist_params(obs), action_mask)
        thoughts = {"policy": np.concatenate([part.reshape(len(obs), -1) for part in parts], axis=1)}
        return thoughts | ({"value": self.value(obs)} if self.has_value else {})

    def value(self, obs: Array) -> Array:
        """The critic's estimate for encoded observations `[N]`."""
        if not self.has_value:
            raise BadInput("this agent has a policy-only model; value() needs a policy-value model")
        return self.critic(obs)


class QActor(Actor):
    """Acts by action values: the legal action of the highest value, and what its exploration makes of it. Noisy
    networks explore with new noise at every step and decide with their mean."""

    @abstractmethod
    def q_values(self, obs: Array, noisy: bool = False) -> Array:
        """Expected returns `[N, A]` of encoded observations; `noisy` draws new noise where there are noisy layers."""

    def explain(self, obs: Array, action_mask: Array | None = None) -> dict[str, Array]:
        q_values = self.q_values(obs)
        return {"q": q_values if action_mask is None else np.where(action_mask, q_values, -np.inf)}
