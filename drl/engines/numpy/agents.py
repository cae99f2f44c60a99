"""Agents without torch or jax: MLP policies and MLP action values, from an agent file.

>>> from drl.engines.numpy.agents import load_numpy_agent  # or drl.load_agent(path, engine="numpy")
"""

from functools import partial
from pathlib import Path
from typing import final

import numpy as np

from drl.core.agent_files import StoredAgent, open_agent
from drl.core.configs import ActorCriticConfig, ModelConfig, QModelConfig
from drl.core.errors import BadInput, UnusableFile
from drl.core.specs import Array, Distribution
from drl.core.variants import agent_in, find_variant
from drl.engines.numpy.acting import Actor, PolicyActor, QActor
from drl.engines.numpy.activations import activation_of
from drl.engines.numpy.distributions import choose, masked_argmax
from drl.engines.numpy.networks import as_rows, mlp_forward, noise_of, policy_net, q_net, value_layers


@final
class NumpyPolicyAgent(PolicyActor):
    """Acts by a policy."""

    def __init__(self, stored: StoredAgent, config: ModelConfig | ActorCriticConfig):
        super().__init__(stored, stored.normalizer, np.random.default_rng())
        self.variant: str = stored.variant
        self.has_value: bool = stored.variant == "policy_value"
        self.distribution: Distribution = stored.distribution
        self._policy = policy_net(stored.params, config.activation)
        self._critic = value_layers(stored.params, config.activation) if self.has_value else []

    def decide(self, obs: Array, explore: bool = False, action_mask: Array | None = None) -> Array:
        action = choose(self, self.dist_params(obs), explore, action_mask)
        return self.exploration(action, self.rng, action_mask) if explore and self.exploration else action

    def dist_params(self, obs: Array) -> Array:
        return self._policy(self.normalize(obs))

    def critic(self, obs: Array) -> Array:
        return mlp_forward(self._critic, as_rows(self.normalize(obs)))[:, 0]


@final
class NumpyQAgent(QActor):
    """Acts by action values."""

    variant = "q_value"

    def __init__(self, stored: StoredAgent, config: QModelConfig):
        super().__init__(stored, stored.normalizer, np.random.default_rng())
        self._params, self._config = stored.params, config
        self._mean = q_net(stored.params, config)

    def decide(self, obs: Array, explore: bool = False, action_mask: Array | None = None) -> Array:
        best = masked_argmax(self.q_values(obs, noisy=explore), action_mask)
        return self.exploration(best, self.rng, action_mask) if explore and self.exploration else best

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
