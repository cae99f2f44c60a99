"""First weights: bounds and variances by their formulas, in both engines, for hidden layers and heads."""

import math

import numpy as np
import pytest
import torch

from drl.agents.load_agent import load_agent
from drl.algorithms import ALGORITHMS
from drl.core.configs import ModelConfig
from drl.core.errors import BadInput
from drl.core.network_parts import INITIALIZATIONS, register_initialization
from drl.core.seeding import Seeds
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.engines.jax.build import build_learner as build_jax
from drl.engines.numpy.layer_parts import Init
from drl.engines.torch.build import build_learner as build_torch
from drl.engines.torch.models import parameters_by_name

OBS, BOX = ObsSpec("box", (40,)), ActionSpec("box", shape=(3,), low=(-1.0,) * 3, high=(1.0,) * 3)
IMAGE, CHOICES = ObsSpec("box", (2, 36, 36), "uint8"), ActionSpec("discrete", sizes=(3,))
BUILD = {"torch": build_torch, "jax": build_jax}
CUSTOM = "tests_halves"
register_initialization(CUSTOM, lambda rng, shape, gain: np.full(shape, gain / 2))


def weights_of(engine, algorithm, init, obs_spec=OBS, spec=BOX, **settings):
    record = ALGORITHMS[algorithm]
    sizes = {"hidden_sizes": (60, 50)} | settings
    agent = BUILD[engine](
        algorithm, EnvSpecs(obs_spec, spec), (record.model_config(init=init, **sizes), record.config()), Seeds(3)
    )[0]
    if engine == "jax":
        return agent.model_state.host
    return {name: part.detach().numpy() for name, part in parameters_by_name(agent.model).items()}


def assert_follows(init, weight, gain):
    """Bounds, variance and orthogonality by the textbook."""
    kernel = math.prod(weight.shape[2:])
    inputs, outputs = weight.shape[1] * kernel, weight.shape[0] * kernel
    if init == "orthogonal":
        flat = weight.reshape(len(weight), -1)
        square = flat @ flat.T if flat.shape[0] <= flat.shape[1] else flat.T @ flat
        np.testing.assert_allclose(square, gain**2 * np.eye(len(square)), atol=1e-5 * gain)
        return
    variance = gain**2 * (2 / (inputs + outputs) if init.startswith("xavier") else 1 / inputs)
    spread = 5 * variance * math.sqrt(2 / weight.size)  # five deviations of the estimate
    assert weight.var() == pytest.approx(variance, abs=spread)
    assert abs(weight.mean()) < 5 * math.sqrt(variance / weight.size)
    if init.endswith("uniform"):
        bound = math.sqrt(3 * variance)
        assert 0.9 * bound < np.abs(weight).max() <= bound * (1 + 1e-6)
    else:
        assert np.abs(weight).max() > 1.8 * math.sqrt(variance)


@pytest.mark.parametrize("engine", BUILD)
@pytest.mark.parametrize("init", [name for name in INITIALIZATIONS if name != CUSTOM])
@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "td3", "crossq"])
def test_named_weights_follow_their_formulas(engine, init, algorithm):
    spec = CHOICES if algorithm == "dqn" else BOX
    sizes = {} if algorithm in ("ppo", "dqn") else {"critic_hidden_sizes": (60, 50)}
    found = weights_of(engine, algorithm, init, spec=spec, **sizes)
    seen = set()
    for name, weight in found.items():
        if name.endswith("bias"):
            assert not weight.any(), name
        if not name.endswith("weight") or weight.ndim < 2:
            continue
        policy = name.endswith(("actor.head.weight", "head.mean.weight", "head.log_std.weight"))
        gain = 0.01 if policy else 1.0 if "head" in name else math.sqrt(2)
        assert_follows(init, weight, gain)
        seen.add(gain)
    assert seen == ({1.0, math.sqrt(2)} if algorithm == "dqn" else {0.01, 1.0, math.sqrt(2)})


@pytest.mark.parametrize("engine", BUILD)
def test_a_kernel_counts_to_inputs_and_outputs(engine):
    found = weights_of(engine, "dqn", "xavier_uniform", IMAGE, CHOICES, cnn_features=16)
    kernels = [weight for weight in found.values() if weight.ndim == 4]
    assert len(kernels) == 3
    for weight in kernels:
        assert_follows("xavier_uniform", weight, math.sqrt(2))


@pytest.mark.parametrize("engine", BUILD)
@pytest.mark.parametrize("init", ["orthogonal", CUSTOM])
def test_weights_repeat_with_their_seed(engine, init):
    one, two = (weights_of(engine, "ppo", init) for _ in range(2))
    for name, weight in one.items():
        np.testing.assert_array_equal(weight, two[name])


def test_a_function_of_the_users_own_and_the_agents_card(tmp_path):
    def thirds(rng, shape, gain):
        return np.full(shape, gain / 3)

    config = ModelConfig(hidden_sizes=(4,), init=thirds)
    agent = build_torch("ppo", EnvSpecs(OBS, BOX), (config, ALGORITHMS["ppo"].config()), Seeds(0))[0]
    weight = agent.model.actor.backbone[0].weight
    torch.testing.assert_close(weight, torch.full_like(weight, math.sqrt(2) / 3))
    agent.save(tmp_path)
    assert load_agent(tmp_path, engine="jax").model.config.init.endswith("thirds")


def test_what_is_no_initialization_is_refused():
    with pytest.raises(BadInput, match="expected finite weights of"):
        Init(CUSTOM, math.nan).weights(np.random.default_rng(0), (2, 3))
    register_initialization("tests_wrong_shape", lambda rng, shape, gain: np.zeros(3))
    with pytest.raises(BadInput, match=r"gave \(3,\); expected finite weights of \(2, 3\)"):
        Init("tests_wrong_shape", 1.0).weights(np.random.default_rng(0), (2, 3))
