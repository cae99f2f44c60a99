"""Build a learner from names and configs: the model state, the agent and the algorithm."""

from typing import Any

from drl.algorithms import learner_parts
from drl.core.agent_files import Start
from drl.core.configs import Config
from drl.core.contracts import Algorithm, Batch
from drl.core.errors import BadInput
from drl.core.seeding import Seeds
from drl.core.specs import Specs
from drl.core.variants import agent_in, maker_in
from drl.engines.jax.agents import JaxAgent
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.models import new_state


def build_model(model: object, specs: Specs, seed: int | None = None, device: str = "auto") -> ModelState:
    """A model of your own with its parameters: itself, or what a class or function makes of (obs_spec, action_spec).
    The parameters are drawn from `seed`, by default the environments' own."""
    made: Any = model
    if isinstance(model, type) or (callable(model) and not hasattr(model, "apply")):
        made = model(specs.obs_spec, specs.action_spec)
    if not hasattr(made, "init") or not hasattr(made, "apply"):
        raise BadInput(f"model is {made!r:.80}; expected a config, an object with init and apply, or a function to one")
    return new_state(made, specs, seed, device)


def build_learner(
    algorithm: str,
    specs: Specs,
    configs: tuple[Config, Config],  # of the model, of the algorithm
    seeds: Seeds,
    normalize_obs: bool = False,
    device: str = "cpu",
    compile_update: object = True,  # for the PyTorch engine; here updates are always compiled
    own_model: object = None,  # a model in place of the config's, or a function from specs to one
    start: Start | None = None,  # weights to begin with
    threads: object = None,  # for the PyTorch engine; here `start_jax` takes them
) -> tuple[JaxAgent, Algorithm[Batch]]:
    """An agent and the algorithm that trains it, seeded by streams of the root seed."""
    obs_spec, action_spec, (model_config, config) = specs.obs_spec, specs.action_spec, configs
    learner, variant, normalizer = learner_parts(algorithm, "jax", specs, config, normalize_obs)
    if own_model is None:
        state = new_state(maker_in(variant, "jax")(obs_spec, action_spec, model_config), specs, seeds.root, device)
    else:
        state = build_model(own_model, specs, seeds.root, device)
    if start is not None:
        state.load(start.fitted(state.host), start.source)
    agent = agent_in(variant, "jax")(state, specs, normalizer, seeds.generator("exploration"))
    return agent, learner(state, specs, config, seeds.generator("learner"))
