"""The same model, batch and configuration for both engines, drawn at random from a seed."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import torch

from drl.core.configs import ModelConfig, QModelConfig
from drl.core.contracts import ReplayBatch, RolloutBatch
from drl.core.network_parts import ACTIVATIONS
from drl.core.specs import ActionSpec, ObsSpec
from drl.core.variants import VARIANTS, maker_in
from drl.engines.jax import on_policy
from drl.engines.jax.algorithms import dqn
from drl.engines.jax.model_state import ModelState
from drl.engines.torch import models as torch_models
from drl.engines.torch.flat_optimizer import STATE

VECTOR = ObsSpec("box", (3,))
GRID = ObsSpec("box", (2, 3))
IMAGE = ObsSpec("box", (1, 36, 36), "uint8")
SEQUENCE = ObsSpec("box", (6, 2))
ACTIONS = {
    "categorical": ActionSpec("discrete", sizes=(4,), starts=(1,)),
    "multi_categorical": ActionSpec("multi_discrete", sizes=(2, 3), shape=(2,)),
    "bernoulli": ActionSpec("multi_binary", shape=(3,), dtype="int8"),
    "gaussian": ActionSpec("box", shape=(2,), low=(-2.0, -np.inf), high=(2.0, np.inf), dtype="float32"),
}
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}  # compiles in a third of the time


PROGRAMS = [
    (module, name, jax.jit(method, static_argnums=0, compiler_options=QUICK))
    for module, name, method in (
        (on_policy, "_update", lambda pure, *inputs: pure.update(*inputs)),
        (dqn, "_update", dqn.PureDQN.update),
    )
]


@pytest.fixture
def quick_compilation(monkeypatch):
    """Algorithms whose programs are compiled without optimization, each only once."""
    for place in PROGRAMS:
        monkeypatch.setattr(*place)


def torch_arrays(model):
    return {name: t.detach().numpy().copy() for name, t in torch_models.parameters_by_name(model).items()}


def make_twins(variant, obs_spec, action_spec, config, seed=0, scale=0.2):
    """A torch model with opinions, and a model state of the JAX engine with the same parameters."""
    generator = torch.Generator().manual_seed(seed)
    model = maker_in(VARIANTS[variant], "torch")(obs_spec, action_spec, config, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return model, ModelState(maker_in(VARIANTS[variant], "jax")(obs_spec, action_spec, config), torch_arrays(model))


def draw_obs(rng, spec, *shape):
    if spec.dtype == "uint8":
        return rng.integers(256, size=(*shape, *spec.shape)).astype(np.uint8)
    return rng.normal(size=(*shape, *spec.shape)).astype(np.float32)


def draw_actions(rng, spec, *shape):
    if spec.kind == "box":
        return rng.normal(size=(*shape, spec.entries)).astype(np.float32)
    if spec.kind == "multi_binary":
        return rng.integers(2, size=(*shape, spec.entries))
    columns = [rng.integers(size, size=shape) for size in spec.sizes]
    return columns[0] if spec.kind == "discrete" else np.stack(columns, axis=-1)


def draw_mask(rng, spec, action):
    """Masks `[…, choices]` in which `action` is legal."""
    if spec.kind == "multi_binary":
        taken = np.stack([action == 0, action == 1], axis=-1).reshape(*action.shape[:-1], -1)
    else:
        entries = action[..., None] if spec.kind == "discrete" else action
        taken = np.concatenate([np.eye(n, dtype=bool)[entries[..., i]] for i, n in enumerate(spec.sizes)], axis=-1)
    return taken | (rng.random(taken.shape) < 0.6)


def draw_rollout(
    rng, obs_spec, action_spec, length=7, envs=3, phantoms=True, truncations=True, masked=False, squashed=False
):
    """A window with both kinds of ending and, with `phantoms`, rows in which an environment only reset itself."""
    shape = (length, envs)
    terminated = rng.random(shape) < 0.15
    truncated = (rng.random(shape) < 0.15) & ~terminated & truncations
    ended = terminated | truncated
    valid = np.ones(shape, bool)
    if phantoms:
        valid[1:] = ~ended[:-1]
        terminated, truncated = terminated & valid, truncated & valid
        valid[1:] = ~(terminated | truncated)[:-1]
    index = np.flatnonzero(terminated | truncated)
    action = draw_actions(rng, action_spec, *shape)
    if squashed:
        action = np.tanh(action)
    return RolloutBatch(
        obs=draw_obs(rng, obs_spec, *shape),
        action=action,
        action_mask=draw_mask(rng, action_spec, action) if masked and action_spec.kind != "box" else None,
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        last_obs=draw_obs(rng, obs_spec, envs),
        final_index=index,
        final_obs=draw_obs(rng, obs_spec, len(index)),
    )


def draw_episodes(rng, obs_spec, action_spec, length=23, masked=False):
    """Whole episodes in one column."""
    terminated = rng.random((length, 1)) < 0.15
    truncated = (rng.random((length, 1)) < 0.15) & ~terminated
    truncated[-1] = ~terminated[-1]
    index = np.flatnonzero(terminated | truncated)
    batch = draw_rollout(rng, obs_spec, action_spec, length, 1, phantoms=False, masked=masked)
    finals = draw_obs(rng, obs_spec, len(index))
    ends = {"terminated": terminated, "truncated": truncated, "final_index": index, "final_obs": finals}
    return replace(batch, last_obs=finals[-1:], **ends)


def draw_replay(rng, obs_spec, action_spec=ACTIONS["categorical"], count=16, masked=False):
    return ReplayBatch(
        obs=draw_obs(rng, obs_spec, count),
        action=draw_actions(rng, action_spec, count),
        reward=rng.normal(size=count).astype(np.float32),
        terminated=(rng.random(count) < 0.2).astype(np.float32),
        discount=rng.choice([0.9, 0.81], count).astype(np.float32),
        next_obs=draw_obs(rng, obs_spec, count),
        weight=rng.random(count).astype(np.float32),
        index=np.arange(count),
        next_action_mask=draw_mask(rng, action_spec, draw_actions(rng, action_spec, count)) if masked else None,
    )


def draw_model(rng, **fixed):
    """A small `ModelConfig` with every field drawn."""
    widths = [(), (5,), (6, 4)][rng.integers(3)]
    return ModelConfig(
        **{
            "hidden_sizes": widths,
            "activation": str(rng.choice(list(ACTIVATIONS))),
            "shared": bool(rng.integers(2)),
            "log_std_init": float(rng.choice([0.0, -0.5])),
        }
        | fixed
    )


def draw_q_model(rng, **fixed):
    return QModelConfig(
        **{
            "hidden_sizes": [(5,), (6, 4)][rng.integers(2)],
            "activation": str(rng.choice(list(ACTIVATIONS))),
            "dueling": bool(rng.integers(2)),
            "noisy": bool(rng.integers(2)),
            "distributional": str(rng.choice(["none", "c51", "qr"])),
            "num_atoms": int(rng.integers(2, 9)),
            "v_min": -2.0,
            "v_max": 3.0,
        }
        | fixed
    )


def assert_near(mine, theirs, share=1e-5, name=""):
    """Equal up to a share of the largest entry, or of 1 where all are smaller: another processor adds many terms in
    another order, and the error goes with their size."""
    scale = max(float(np.abs(theirs).max(initial=0.0)), 1.0)
    np.testing.assert_allclose(mine, theirs, rtol=share, atol=share * scale, err_msg=name)


def assert_same_learner(torch_learner, jax_learner):
    """Parameters, and what the optimizer remembers of all gradients so far."""
    optimizer, opt_state = torch_learner.optimizer, jax_learner.opt_state
    names = [name for name, p in torch_learner.model.named_parameters() if p.requires_grad]
    moments = dict(zip(STATE, optimizer.rule.state, strict=True))
    for kind in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
        mine = getattr(opt_state, kind)
        for name, view in zip(names, optimizer.views(moments[kind]), strict=True):
            if mine:  # 1e-5 of the largest entry
                limit = 1e-5 * float(view.abs().max()) + 1e-8
                np.testing.assert_allclose(mine[name], view.numpy(), rtol=1e-5, atol=limit, err_msg=f"{kind} {name}")
    assert int(opt_state.count) == optimizer.count
    mine = jax_learner.model_state.host
    for name, array in torch_arrays(torch_learner.model).items():
        assert_near(mine[name], array, name=name)


def assert_same_logs(one, two, names=None):
    assert one.keys() == two.keys()
    for name in names or one:
        assert_near(two[name], one[name], name=name)
