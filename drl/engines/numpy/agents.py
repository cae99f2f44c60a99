"""Agents that need neither torch nor jax: MLP policies and MLP action values, straight from an agent file.

>>> from drl.engines.numpy.agents import load_numpy_agent  # or drl.load_agent(path, engine="numpy")
"""

from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from drl.core.agent_files import StoredAgent, open_agent
from drl.core.configs import ModelConfig, QModelConfig
from drl.core.errors import BadInput, UnusableFile
from drl.core.specs import Array
from drl.engines.numpy.acting import PolicyActor, QActor
from drl.engines.numpy.networks import as_rows, mlp_forward, noise_of, policy_net, q_net, value_layers


@final
class NumpyPolicyAgent(PolicyActor):
    """Acts by a policy."""

    def __init__(self, stored: StoredAgent, config: ModelConfig):
        super().__init__(stored.obs_spec, stored.action_spec, stored.normalizer)
        self.has_value = stored.variant == "policy_value"
        self._policy = policy_net(stored.params, config.activation)
        self._critic = value_layers(stored.params, config.activation) if self.has_value else []

    def policy_params(self, obs: Array) -> Array:
        return self._policy(self.normalize(obs))

    def critic(self, obs: Array) -> Array:
        return mlp_forward(self._critic, as_rows(self.normalize(obs)))[:, 0]


@final
class NumpyQAgent(QActor):
    """Acts by action values."""

    def __init__(self, stored: StoredAgent, config: QModelConfig):
        super().__init__(stored.obs_spec, stored.action_spec, stored.normalizer)
        self._params, self._config = stored.params, config
        self._mean = q_net(stored.params, config)

    def q_values(self, obs: Array, noisy: bool = False) -> Array:
        if not noisy or not self._config.noisy:
            return self._mean(self.normalize(obs))
        noise = noise_of(self._params, partial(self.rng.standard_normal, dtype=np.float32))
        return q_net(self._params | noise, self._config)(self.normalize(obs))


def load_numpy_agent(path: str | Path) -> Any:
    """The agent in a run folder or agent folder, if its model is an MLP."""
    stored = open_agent(path)
    config = stored.config
    if stored.variant not in ("policy_value", "policy_only", "q_value"):
        raise UnusableFile(f"{path} is an agent of a kind that NumPy cannot run, {stored.variant!r}")
    if config is None:
        raise BadInput(f"{path} was saved with a model of its own, which only its engine can run; leave out engine")
    if (recurrent := getattr(config, "recurrent", "none")) != "none":
        raise BadInput(f"{path} is recurrent ({recurrent}); the NumPy agent has no memory: use engine='torch'")
    if any(array.ndim > 2 for array in stored.params.values()):
        raise BadInput(f"{path} has convolutions; the NumPy agent is for MLPs: use engine='torch' or 'jax'")
    try:
        if isinstance(config, QModelConfig):
            return NumpyQAgent(stored, config)
        return NumpyPolicyAgent(stored, config)
    except KeyError as error:
        raise UnusableFile(f"{path} does not fit the model its card describes: {error} is missing") from None
