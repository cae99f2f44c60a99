"""From names and configs to a learner: the model state, the agent that acts with it and the algorithm that improves
it."""

from typing import Any

from drl.core.configs import ModelConfig, QModelConfig, variant_of
from drl.core.errors import BadInput, did_you_mean
from drl.core.normalize import ObsNormalizer
from drl.core.seeding import Seeds
from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.jax.agents import JaxAgent
from drl.engines.jax.algorithms.a2c import A2C
from drl.engines.jax.algorithms.dqn import DQN
from drl.engines.jax.algorithms.ppo import PPO
from drl.engines.jax.algorithms.reinforce import Reinforce
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.models import MODEL_VARIANTS
from drl.engines.jax.policy_agent import PolicyAgent
from drl.engines.jax.q_agent import QAgent

# The one place where an algorithm's name becomes its class.
ALGORITHMS: dict[str, Any] = {"ppo": PPO, "a2c": A2C, "reinforce": Reinforce, "dqn": DQN}
# … and a model variant's name the agent that acts with it.
AGENTS: dict[str, type[JaxAgent]] = {"policy_value": PolicyAgent, "policy_only": PolicyAgent, "q_value": QAgent}


def build_learner(
    algorithm: str,
    specs: tuple[ObsSpec, ActionSpec],
    configs: tuple[ModelConfig | QModelConfig, Any],
    seeds: Seeds,
    normalize_obs: bool = False,
    device: str = "cpu",
    compile_update: bool = True,  # as the PyTorch engine takes it; here an update is always compiled
) -> tuple[Any, Any]:
    """An agent and the algorithm that trains it, from the root seed's own streams."""
    (obs_spec, action_spec), (model_config, config) = specs, configs
    if algorithm not in ALGORITHMS:
        raise BadInput(f"the JAX engine has no algorithm {algorithm!r}; {did_you_mean(algorithm, ALGORITHMS)}")
    if normalize_obs and obs_spec.dtype == "uint8":
        raise BadInput("normalize_obs is for vectors; images of uint8 are divided by 255 by the model")
    variant = variant_of(algorithm, config)
    model = MODEL_VARIANTS[variant](obs_spec, action_spec, model_config)
    model_state = ModelState(model, model.init(seeds.generator("init")), device)
    normalizer = ObsNormalizer(obs_spec.shape) if normalize_obs else None
    agent = AGENTS[variant](model_state, obs_spec, action_spec, normalizer, seeds.generator("exploration"))
    learner = ALGORITHMS[algorithm](model_state, action_spec, config, seeds.generator("learner"))
    return agent, learner
