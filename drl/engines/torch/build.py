"""From names and configs to a learner: the model, the agent that acts with it and the algorithm that improves it."""

from typing import Any

import torch

from drl.core.configs import ModelConfig, QModelConfig, variant_of
from drl.core.errors import BadInput, did_you_mean
from drl.core.normalize import ObsNormalizer
from drl.core.seeding import Seeds
from drl.core.specs import ActionSpec, ObsSpec
from drl.engines.torch.agents import TorchAgent
from drl.engines.torch.algorithms.a2c import A2C
from drl.engines.torch.algorithms.dqn import DQN
from drl.engines.torch.algorithms.ppo import PPO
from drl.engines.torch.algorithms.reinforce import Reinforce
from drl.engines.torch.models import MODEL_VARIANTS
from drl.engines.torch.policy_agent import PolicyAgent
from drl.engines.torch.q_agent import QAgent

# The one place where an algorithm's name becomes its class.
ALGORITHMS: dict[str, Any] = {"ppo": PPO, "a2c": A2C, "reinforce": Reinforce, "dqn": DQN}
# … and a model variant's name the agent that acts with it.
AGENTS: dict[str, type[TorchAgent]] = {"policy_value": PolicyAgent, "policy_only": PolicyAgent, "q_value": QAgent}


def pick_device(name: str) -> torch.device:
    """`auto` takes a GPU when there is one; asking for one that is not there is an error."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    if name.split(":")[0] not in available:
        raise BadInput(f"unknown device {name!r}; expected auto, cpu, cuda or mps")
    if not available[name.split(":")[0]]:
        raise BadInput(f"device {name!r} is not available on this machine; use --device auto or --device cpu")
    return torch.device(name)


def build_learner(
    algorithm: str,
    specs: tuple[ObsSpec, ActionSpec],
    configs: tuple[ModelConfig | QModelConfig, Any],
    seeds: Seeds,
    normalize_obs: bool = False,
    device: str = "cpu",
    compile_update: bool = False,
) -> tuple[Any, Any]:
    """An agent and the algorithm that trains it, from the root seed's own streams."""
    (obs_spec, action_spec), (model_config, config) = specs, configs
    if algorithm not in ALGORITHMS:
        raise BadInput(f"unknown algorithm {algorithm!r}; {did_you_mean(algorithm, ALGORITHMS)}")
    if normalize_obs and obs_spec.dtype == "uint8":
        raise BadInput("normalize_obs is for vectors; images of uint8 are divided by 255 by the model")
    generator = torch.Generator().manual_seed(seeds.integer("init"))
    variant = variant_of(algorithm, config)
    model = MODEL_VARIANTS[variant](obs_spec, action_spec, model_config, generator)
    model = model.to(pick_device(device))
    normalizer = ObsNormalizer(obs_spec.shape) if normalize_obs else None
    agent = AGENTS[variant](model, obs_spec, action_spec, normalizer, seeds.generator("exploration"))
    learner = ALGORITHMS[algorithm](model, action_spec, config, seeds.generator("learner"), compile_update)
    return agent, learner
