"""Activations: the same numbers in all engines; agents with them act alike after saving, loading and converting."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from drl.agents.load_agent import load_agent
from drl.algorithms import ALGORITHMS
from drl.core.configs import ActorCriticConfig, ModelConfig, QModelConfig
from drl.core.errors import BadInput, UnusableFile
from drl.core.network_parts import ACTIVATIONS, register_activation
from drl.core.seeding import Seeds
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.engines.jax import layers as in_jax
from drl.engines.jax.build import build_learner as build_jax
from drl.engines.numpy import layer_parts as in_numpy
from drl.engines.torch.build import build_learner as build_torch
from drl.engines.torch.layers import make_activation

OBS, BOX = ObsSpec("box", (3,)), ActionSpec("box", shape=(2,), low=(-1.0,) * 2, high=(1.0,) * 2)
CHOICES = ActionSpec("discrete", sizes=(4,))
BUILT_IN = [*ACTIVATIONS]
X = np.concatenate([np.linspace(-8, 8, 81), [-100.0, -30.0, 25.0, 100.0]]).astype(np.float32)
BUILD = {"torch": build_torch, "jax": build_jax}
PPO, DQN, SAC = ("ppo", BOX, ModelConfig), ("dqn", CHOICES, QModelConfig), ("sac", BOX, ActorCriticConfig)


def exactly(name, x):
    """The definitions, in double precision."""
    softplus = max(x, 0.0) + math.log1p(math.exp(-abs(x)))
    sigmoid = 0.5 * (1 + math.tanh(x / 2))
    return {
        "tanh": math.tanh(x),
        "relu": max(x, 0.0),
        "gelu": 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "silu": x * sigmoid,
        "elu": x if x > 0 else math.expm1(x),
        "leaky_relu": x if x > 0 else 0.01 * x,
        "selu": 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * math.expm1(x)),
        "mish": x * math.tanh(softplus),
        "softplus": softplus,
        "sigmoid": sigmoid,
    }[name]


@pytest.mark.parametrize("name", BUILT_IN)
def test_all_engines_compute_the_definition(name):
    expected = [exactly(name, float(x)) for x in X]
    ours = in_numpy.activation_of(name)(X)
    assert ours.dtype == np.float32
    others = [np.asarray(in_jax.activation_of(name)(jnp.asarray(X))), make_activation(name)(torch.tensor(X)).numpy()]
    for values in (ours, *others):
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)


def made(engine, activation, algorithm, spec, kind):
    """An agent, and what it makes of the observations: distribution parameters or action values."""
    configs = (kind(hidden_sizes=(8, 8), activation=activation), ALGORITHMS[algorithm].config())
    return BUILD[engine](algorithm, EnvSpecs(OBS, spec), configs, Seeds(0))[0]


def answers(agent):
    obs = np.random.default_rng(0).standard_normal((5, 3), np.float32)
    return agent.q_values(obs) if agent.variant == "q_value" else agent.dist_params(obs)


@pytest.mark.parametrize(("algorithm", "spec", "kind"), [PPO, DQN, SAC], ids=lambda part: str(part)[:3])
@pytest.mark.parametrize("name", BUILT_IN)
def test_agents_act_alike_in_all_engines(name, algorithm, spec, kind, tmp_path):
    for engine in BUILD:
        agent = made(engine, name, algorithm, spec, kind)
        agent.save(tmp_path / engine)
        for other in ("torch", "jax", "numpy"):
            loaded = load_agent(tmp_path / engine, engine=other)
            np.testing.assert_allclose(answers(loaded), answers(agent), rtol=1e-5, atol=1e-6, err_msg=other)


def wave(x):
    return x + 0.1 * x * x


def test_a_registered_activation_works_in_all_engines(tmp_path):
    sines = {"torch": lambda x: x + torch.sin(x), "jax": lambda x: x + jnp.sin(x), "numpy": lambda x: x + np.sin(x)}
    register_activation("snake", **sines)
    for engine in BUILD:
        agent = made(engine, "snake", *PPO)
        agent.save(tmp_path / engine)
        for other in ("torch", "jax", "numpy"):
            np.testing.assert_allclose(answers(load_agent(tmp_path / engine, engine=other)), answers(agent), atol=1e-6)


@pytest.mark.parametrize(("algorithm", "spec", "kind"), [PPO, DQN], ids=lambda part: str(part)[:3])
def test_a_function_is_saved_by_its_name_and_not_run_by_numpy(algorithm, spec, kind, tmp_path):
    agent = made("torch", wave, algorithm, spec, kind)
    assert agent.model.config.activation == f"{__name__}:wave"
    agent.save(tmp_path)
    for other in ("torch", "jax"):
        np.testing.assert_allclose(answers(load_agent(tmp_path, engine=other)), answers(agent), atol=1e-6)
    with pytest.raises(BadInput, match=r":wave' was registered without a form for the numpy engine"):
        load_agent(tmp_path, engine="numpy")


def test_where_it_is_not_known_an_agent_asks_for_the_module(tmp_path, monkeypatch):
    made("torch", wave, *PPO).save(tmp_path)
    monkeypatch.delitem(ACTIVATIONS, f"{__name__}:wave")
    with pytest.raises(UnusableFile, match=f"--plugins {__name__}"):
        load_agent(tmp_path)


def test_a_function_without_a_module_of_its_own_has_a_name():
    bent = lambda x: x + 0.2 * x * x  # noqa: E731
    assert ModelConfig(activation=bent).activation == f"python:{bent.__qualname__}"
    assert ACTIVATIONS[ModelConfig(activation=bent).activation].torch is bent


def test_a_module_of_torch_is_for_torch(tmp_path):
    agent = made("torch", torch.nn.Softsign, *PPO)
    agent.save(tmp_path)
    np.testing.assert_allclose(answers(load_agent(tmp_path)), answers(agent), atol=1e-6)
    with pytest.raises(UnusableFile, match="Softsign' was registered without a form for the jax engine"):
        load_agent(tmp_path, engine="jax")


@pytest.mark.parametrize(
    ("engine", "given", "message"),
    [
        ("torch", jnp.sin, "not a function or module of PyTorch"),
        ("jax", lambda x: math.tanh(x), "not a function that JAX can compile"),
        ("torch", lambda x: x.sum(), "another shape"),
        ("jax", lambda x: x.sum(), "same shape"),
        ("torch", torch.nn.ReLU(), "has no name"),
        ("torch", 3, "expected a name or a function"),
        ("torch", "snoke", "activation is 'snoke'"),
    ],
)
def test_what_is_no_activation_is_refused(engine, given, message):
    with pytest.raises(BadInput, match=message):
        made(engine, given, *PPO)


def test_numpy_acts_only_for_the_layers_it_knows():
    """A slope of the user's own is not that of `leaky_relu`."""
    agent = made("torch", "leaky_relu", *PPO)
    before = answers(agent)
    agent.model.actor.backbone[1] = torch.nn.LeakyReLU(0.5)
    fresh = type(agent)(agent.model, EnvSpecs(OBS, BOX))
    assert not np.allclose(answers(fresh), before)
