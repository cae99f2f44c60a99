"""Acting, whatever computes the answer: raw observations in, actions out, by a policy or by action values.

An engine's agent adds where the numbers come from: `policy_params` or `q_values` of encoded observations.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from drl.core.errors import BadInput
from drl.core.normalize import ObsNormalizer
from drl.core.specs import ActionSpec, Array, ObsSpec
from drl.engines.numpy import distributions


class Actor(ABC):
    """What all agents share.

    `act` takes what the environment hands out, one observation or a batch, and returns what it accepts.
    `decide` is its inner half, for training: encoded observations in, actions in the policy's own units out.
    """

    has_value = False  # whether there is a critic
    recurrent = False  # whether it remembers
    rnn_state: Array | None = None

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
    def decide(self, obs: Array, explore: bool = False) -> Array:
        """Actions for encoded observations `[N, …]`, in the policy's units."""

    @abstractmethod
    def explain(self, obs: Array) -> dict[str, Array]:
        """What the agent thinks of encoded observations, by name, for people who watch."""

    def act(self, obs: Any, explore: bool = False) -> Array:
        """`explore=False` is evaluation and deployment: the best action the agent knows."""
        single = self.obs_spec.is_single(obs)
        encoded = self.obs_spec.encode_one(obs)[None] if single else self.obs_spec.encode(obs)
        action = self.action_spec.to_env(self.decide(encoded, explore))
        return action[0] if single else action

    def predict(self, obs: Any) -> Array:
        """`act(obs)`: the action for evaluation and deployment."""
        return self.act(obs)

    def sample(self, obs: Any) -> Array:
        """`act(obs, explore=True)`: the action for training."""
        return self.act(obs, explore=True)

    def normalize(self, obs: Array) -> Array:
        return obs if self.normalizer is None else self.normalizer(obs)

    def begin(self, envs: Array | None = None) -> None:  # noqa: B027 (there is nothing to do)
        """Episodes begin. Nothing to forget: these agents do not remember."""

    def recall(self, num_envs: int) -> Array:
        return np.zeros((num_envs, 0), np.float32)


class PolicyActor(Actor):
    """Samples from its policy when it explores, takes the most likely action when it does not."""

    temperature = 1.0  # of exploring actions: below 1 bolder, above 1 more random

    @abstractmethod
    def policy_params(self, obs: Array) -> Array:
        """Logits, or means and log deviations `[N, P]`, of encoded observations."""

    @abstractmethod
    def critic(self, obs: Array) -> Array:
        """The critic's estimate for encoded observations `[N]`; asked only if `has_value`."""

    def decide(self, obs: Array, explore: bool = False) -> Array:
        return self.choose(self.policy_params(obs), explore)

    def choose(self, params: Array, explore: bool) -> Array:
        if explore:
            return distributions.sample(self.action_spec, params, self.rng, self.temperature)
        return distributions.mode(self.action_spec, params)

    def explain(self, obs: Array) -> dict[str, Array]:
        parts = distributions.probabilities(self.action_spec, self.policy_params(obs))
        thoughts = {"policy": np.concatenate([part.reshape(len(obs), -1) for part in parts], axis=1)}
        return thoughts | ({"value": self.value(obs)} if self.has_value else {})

    def value(self, obs: Array) -> Array:
        """The critic's estimate for encoded observations `[N]`."""
        if not self.has_value:
            raise BadInput("this agent has a policy-only model; value() needs a policy-value model")
        return self.critic(obs)


class QActor(Actor):
    """Takes the action of the highest value. When it explores, each environment tosses a coin of `epsilon` for a random
    one.

    Noisy networks explore with new noise at every step and decide with their mean.
    """

    epsilon = 0.0  # share of random actions while exploring

    @abstractmethod
    def q_values(self, obs: Array, noisy: bool = False) -> Array:
        """Expected returns `[N, A]` of encoded observations; `noisy` draws new noise where there are noisy layers."""

    def decide(self, obs: Array, explore: bool = False) -> Array:
        best = self.q_values(obs, noisy=explore).argmax(axis=-1)
        if not explore or self.epsilon <= 0.0:
            return best
        coin = self.rng.random(len(best)) < self.epsilon
        random_action = self.rng.integers(self.action_spec.sizes[0], size=len(best))
        return np.where(coin, random_action, best)

    def explain(self, obs: Array) -> dict[str, Array]:
        return {"q": self.q_values(obs)}
