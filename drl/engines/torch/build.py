"""Build a model, the agent that acts with it and the algorithm that trains it, from names and configs."""

from collections.abc import Callable

import torch
from torch import nn

from drl.algorithms import learner_parts
from drl.core.agent_files import Start
from drl.core.configs import Config
from drl.core.contracts import Algorithm, Batch
from drl.core.errors import BadInput
from drl.core.seeding import Seeds, seeds_of
from drl.core.specs import Specs
from drl.core.variants import agent_in, maker_in
from drl.engines.torch.agents import TorchAgent
from drl.engines.torch.models import load_parameters, parameters_by_name, set_threads


def pick_device(name: str) -> torch.device:
    """The device of this name; `auto` is a GPU if there is one."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    if name.split(":")[0] not in available:
        raise BadInput(f"unknown device {name!r}; expected auto, cpu, cuda or mps")
    if not available[name.split(":")[0]]:
        raise BadInput(f"device {name!r} is not available on this machine; use --device auto or --device cpu")
    return torch.device(name)


def build_model(model: object, specs: Specs, seed: int | None = None) -> nn.Module:
    """A module of your own, or the result of a class or function of (obs_spec, action_spec), whose initial weights are
    drawn from `seed`, by default the environments' own."""
    made = model
    if callable(model) and not isinstance(model, nn.Module):
        with torch.random.fork_rng(devices=[]):  # PyTorch's layers draw from the global generator
            torch.manual_seed(seeds_of(specs, seed).integer("init"))
            made = model(specs.obs_spec, specs.action_spec)
    if not isinstance(made, nn.Module):
        raise BadInput(f"model is {made!r:.80}; expected a config, an nn.Module, or a function from specs to one")
    return made


def build_learner(
    algorithm: str,
    specs: Specs,
    configs: tuple[Config, Config],  # of the model, of the algorithm
    seeds: Seeds,
    normalize_obs: bool = False,
    device: str = "cpu",
    compile_update: bool | Callable[[nn.Module], bool] = False,  # or a rule that decides when the model is built
    own_model: object = None,  # a module in place of the config's, or a function from specs to one
    start: Start | None = None,  # weights to begin with
    threads: int | None = None,  # of torch; see `set_threads`
) -> tuple[TorchAgent, Algorithm[Batch]]:
    """An agent and the algorithm that trains it, with streams of the root seed."""
    set_threads(specs.obs_spec, threads)
    obs_spec, action_spec, (model_config, config) = specs.obs_spec, specs.action_spec, configs
    learner, variant, normalizer = learner_parts(algorithm, "torch", specs, config, normalize_obs)
    generator = torch.Generator().manual_seed(seeds.integer("init"))
    if own_model is None:
        model = maker_in(variant, "torch")(obs_spec, action_spec, model_config, generator)
    else:
        model = build_model(own_model, specs, seeds.root)
    model.to(pick_device(device))
    if start is not None:
        own = {name: value.detach().cpu().numpy() for name, value in parameters_by_name(model).items()}
        load_parameters(model, start.fitted(own), start.source)
    agent = agent_in(variant, "torch")(model, specs, normalizer, seeds.generator("exploration"))
    compiled = compile_update(model) if callable(compile_update) else compile_update
    return agent, learner(model, specs, config, seeds.generator("learner"), compiled)
