"""Build a learner from names and configs: the model state, the agent and the algorithm."""

from drl.core.algorithms import class_in, find_algorithm
from drl.core.configs import Config
from drl.core.contracts import Algorithm
from drl.core.normalize import obs_normalizer
from drl.core.seeding import Seeds
from drl.core.specs import ActionSpec, ObsSpec
from drl.core.transition import Batch
from drl.core.variants import VARIANTS, agent_in, maker_in
from drl.engines.jax.agents import JaxAgent
from drl.engines.jax.model_state import ModelState


def build_learner(
    algorithm: str,
    specs: tuple[ObsSpec, ActionSpec],
    configs: tuple[Config, Config],  # of the model, of the algorithm
    seeds: Seeds,
    normalize_obs: bool = False,
    device: str = "cpu",
    compile_update: object = True,  # for the PyTorch engine; here updates are always compiled
) -> tuple[JaxAgent, Algorithm[Batch]]:
    """An agent and the algorithm that trains it, seeded by streams of the root seed."""
    (obs_spec, action_spec), (model_config, config) = specs, configs
    record = find_algorithm(algorithm)
    learner = class_in(record, "jax", action_spec)
    variant = VARIANTS[record.variant(config)]
    normalizer = obs_normalizer(obs_spec) if normalize_obs else None
    model = maker_in(variant, "jax")(obs_spec, action_spec, model_config)
    state = ModelState(model, model.init(seeds.generator("init")), device)
    agent = agent_in(variant, "jax")(state, obs_spec, action_spec, normalizer, seeds.generator("exploration"))
    return agent, learner(state, action_spec, config, seeds.generator("learner"))
