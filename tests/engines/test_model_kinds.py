"""The same questions about a model to both engines: its variant, its distribution, whether parameters fit it."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from drl.core.configs import ActorCriticConfig, ModelConfig, QModelConfig
from drl.core.errors import BadInput, UnusableFile
from drl.core.network_parts import HEADS, register_head
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.core.variants import VARIANTS, maker_in
from drl.engines.jax import agents as jax_agents
from drl.engines.jax import models as jax_models
from drl.engines.jax.model_state import ModelState
from drl.engines.numpy.model_kinds import distribution_of, known_variant
from drl.engines.torch import agents as torch_agents
from drl.engines.torch import models as torch_models

OBS = ObsSpec("box", (3,))
CHOICES = ActionSpec("discrete", sizes=(4,))
BOX = ActionSpec("box", shape=(2,), low=(-1.0,) * 2, high=(1.0,) * 2, dtype="float32")
BITS = ActionSpec("multi_binary", shape=(3,), dtype="int8")
MODELS = {"torch": torch_models, "jax": jax_models}
SMALL = {"hidden_sizes": (5,)}
each_engine = pytest.mark.parametrize("engine", ["torch", "jax"])


def make(engine, variant, action_spec, config):
    return maker_in(VARIANTS[variant], engine)(OBS, action_spec, config)


def agent_of(engine, model, action_spec, policy=True):
    specs = EnvSpecs(OBS, action_spec, seed=1)
    if engine == "torch":
        return (torch_agents.PolicyAgent if policy else torch_agents.QAgent)(model, specs)
    state = ModelState(model, model.init(np.random.default_rng(0)))
    return (jax_agents.PolicyAgent if policy else jax_agents.QAgent)(state, specs)


POLICIES = [
    ("policy_value", CHOICES, ModelConfig(**SMALL), "categorical"),
    ("policy_only", BITS, ModelConfig(**SMALL), "bernoulli"),
    ("policy_value", BOX, ModelConfig(**SMALL), "gaussian"),
    ("policy_only", BOX, ModelConfig(**SMALL, distribution="tanh_gaussian"), "tanh_gaussian"),
    ("actor_critic", BOX, ActorCriticConfig(**SMALL), "tanh_gaussian"),
    ("actor_critic", CHOICES, ActorCriticConfig(**SMALL), "categorical"),
    ("deterministic_actor_critic", BOX, ActorCriticConfig(**SMALL), "deterministic"),
]


@each_engine
@pytest.mark.parametrize(("variant", "action_spec", "config", "kind"), POLICIES)
def test_variant_distribution_and_exploration_of_our_own_policies(engine, variant, action_spec, config, kind):
    model = make(engine, variant, action_spec, config)
    agent = agent_of(engine, model, action_spec)
    assert (known_variant(model), distribution_of(model, action_spec).kind) == (variant, kind)
    assert (agent.variant, agent.distribution.kind, agent.has_value) == (variant, kind, variant == "policy_value")
    explorations = {"actor_critic": "RandomStart", "deterministic_actor_critic": "ActionNoise"}
    assert type(agent.exploration).__name__ == explorations.get(variant, "NoneType")


@each_engine
def test_an_agent_refuses_a_model_of_another_kind(engine):
    policy = make(engine, "policy_only", CHOICES, ModelConfig(**SMALL))
    values = make(engine, "q_value", CHOICES, QModelConfig(**SMALL))
    assert known_variant(values) == agent_of(engine, values, CHOICES, policy=False).variant == "q_value"
    with pytest.raises(BadInput, match=r"PolicyAgent needs a .* model; this is a q-value model"):
        agent_of(engine, values, CHOICES)
    with pytest.raises(BadInput, match="QAgent needs a q-value model; this is a policy-only model"):
        agent_of(engine, policy, CHOICES, policy=False)


@each_engine
def test_our_own_heads_decide_before_any_attribute(engine):
    models = MODELS[engine]
    squashed, logits = models.SquashedGaussianHead(5, 2), models.LogitsHead(5, 2)
    for head, kind in ((squashed, "tanh_gaussian"), (logits, "deterministic")):
        assert distribution_of(SimpleNamespace(head=head, distribution="gaussian"), BOX).kind == kind


@pytest.mark.parametrize("of_model", ["gaussian", None])
@pytest.mark.parametrize("of_head", ["tanh_gaussian", None])
def test_the_attribute_of_a_custom_model_decides_before_that_of_its_head(of_model, of_head):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 4)

        def forward(self, obs):
            return self.head(obs)

    class Pure:
        def __init__(self):
            self.head = SimpleNamespace()

        def init(self, rng):
            return {"weight": np.zeros((3, 4), np.float32)}

        def apply(self, params, obs):
            return obs @ params["weight"]

    for engine, model in (("torch", Module()), ("jax", Pure())):
        if of_head:
            model.head.distribution = of_head
        if of_model:
            model.distribution = of_model
        assert agent_of(engine, model, BOX).distribution.kind == (of_model or of_head or "gaussian")
        assert known_variant(model) is None


class TorchHead(nn.Linear):
    distribution = "gaussian"

    def __init__(self, features, distribution, config, generator=None):
        super().__init__(features, distribution.num_params)
        self.features = features


@dataclass(frozen=True)
class JaxHead:
    features: int
    num_params: int
    distribution = "gaussian"

    def init(self, rng):
        return {"weight": np.zeros((self.features, self.num_params), np.float32)}

    def apply(self, params, features):
        return features @ params["weight"]


@each_engine
@pytest.mark.parametrize("kind", ["gaussian", "tanh_gaussian"])
def test_a_head_that_the_config_names_has_the_distribution_of_the_config(engine, kind):
    def make_jax(features, distribution, config):
        return JaxHead(features, distribution.num_params)

    register_head("mine", torch=TorchHead, jax=make_jax)
    try:
        model = make(engine, "policy_only", BOX, ModelConfig(**SMALL, head="mine", distribution=kind))
        critics = make(engine, "actor_critic", BOX, ActorCriticConfig(**SMALL, head="mine"))
        assert distribution_of(model, BOX).kind == kind
        assert distribution_of(critics, BOX).kind == "tanh_gaussian"
        assert known_variant(model) is None
    finally:
        HEADS.pop("mine", None)


@each_engine
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("head.bias"), r"the checkpoint does not fit the model: head.bias in one but not in"),
        (
            lambda state: state.update({"head.bias": np.zeros(7, np.float32)}),
            r"the checkpoint does not fit the model: head.bias is \(7,\) in the file, \(4,\) in the model",
        ),
    ],
)
def test_parameters_that_do_not_fit_are_refused(engine, change, message):
    agent = agent_of(engine, make(engine, "policy_only", CHOICES, ModelConfig(**SMALL)), CHOICES)
    state = agent.state_dict()
    change(state["model"])
    with pytest.raises(UnusableFile, match=message):
        agent.load_state_dict(state)
