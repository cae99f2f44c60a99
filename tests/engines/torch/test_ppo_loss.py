"""The PPO loss, term by term, and the flat optimizer against torch's own pieces."""

import copy
from functools import partial

import numpy as np
import pytest
import torch

from drl.algorithms.ppo import PPOConfig
from drl.core.configs import ModelConfig
from drl.core.contracts import Loss
from drl.core.specs import ActionSpec, Distribution, EnvSpecs, ObsSpec
from drl.engines.torch import ops
from drl.engines.torch.algorithms.ppo import PPO
from drl.engines.torch.compiled_update import CompileUnavailable
from drl.engines.torch.flat_optimizer import FlatOptimizer
from drl.engines.torch.models import make_policy_value_model
from drl.engines.torch.on_policy import Rows
from drl.testing import oracles

OBS = ObsSpec("box", (3,))
ACTIONS = {
    "categorical": ActionSpec("discrete", sizes=(4,)),
    "multi_categorical": ActionSpec("multi_discrete", sizes=(2, 3), shape=(2,)),
    "bernoulli": ActionSpec("multi_binary", shape=(3,), dtype="int8"),
    "gaussian": ActionSpec("box", shape=(2,), low=(-1, -1), high=(1, 1), dtype="float32"),
}


def make_rows(spec, count=32, seed=0):
    rng = np.random.default_rng(seed)
    if spec.kind == "box":
        action = rng.normal(size=(count, 2)).astype(np.float32)
    elif spec.kind == "discrete":
        action = rng.integers(4, size=count)
    else:
        action = rng.integers(2, size=(count, spec.entries))
    numbers = rng.normal(size=(4, count)).astype(np.float32)
    obs = rng.normal(size=(count, 3)).astype(np.float32)
    return Rows(*(torch.from_numpy(x) for x in (obs, action, *numbers)))


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("value_clip", [None, 0.3])
@pytest.mark.parametrize("normalize", [True, False])
def test_loss_is_the_sum_of_its_oracle_terms(kind, value_clip, normalize):
    spec = ACTIONS[kind]
    model = make_policy_value_model(OBS, spec, ModelConfig(hidden_sizes=(8,)), torch.Generator().manual_seed(0))
    rows = make_rows(spec)
    config = PPOConfig(value_clip=value_clip, normalize_advantage=normalize, entropy_coef=0.1, value_coef=0.7)
    with torch.no_grad():
        params, value = model(rows.obs)
        log_prob, entropy = ops.log_prob_and_entropy(Distribution.on(spec), params, rows.action)
    rows = rows._replace(log_prob=log_prob + 0.3 * rows.log_prob)  # ratios on both sides of the clip range
    ppo = PPO(model, EnvSpecs(OBS, spec), config)
    loss, metrics = ppo._minibatch_loss(model, rows, ppo.rates_at(0.0))[:2]
    logged = torch.stack(list(metrics.values())).detach()

    advantage = rows.advantage.double().numpy()
    if normalize:
        advantage = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)
    policy_loss, clip_fraction, kl, clipped = oracles.ppo_loss_terms(rows.log_prob, log_prob, advantage, 0.2)
    errors = []
    for v, old, target in zip(value.tolist(), rows.value.tolist(), rows.target.tolist(), strict=True):
        near = v if value_clip is None else old + min(max(v - old, -value_clip), value_clip)
        errors.append(max((v - target) ** 2, (near - target) ** 2))
    expected = policy_loss + 0.7 * np.mean(errors) - 0.1 * entropy.mean().item()
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    names = [policy_loss, np.mean(errors), entropy.mean().item(), kl, clip_fraction, clipped]
    np.testing.assert_allclose(logged.numpy(), names, rtol=2e-4, atol=1e-6)
    assert 0 < clip_fraction < 1


@pytest.mark.full
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("kind", "shared", "compiled"),
    [
        *((kind, shared, False) for kind in ("adam", "rmsprop") for shared in (True, False)),
        ("adam", True, True),
        ("rmsprop", False, True),
        *(pytest.param(*each, True, marks=pytest.mark.slow) for each in (("adam", False), ("rmsprop", True))),
    ],
)
def test_flat_optimizer_equals_torch_with_clipping(kind, shared, compiled):
    spec = ACTIONS["gaussian"]
    config = ModelConfig(hidden_sizes=(8, 8), shared=shared)
    ours = make_policy_value_model(OBS, spec, config, torch.Generator().manual_seed(1))
    theirs = copy.deepcopy(ours)
    ppo = PPO(copy.deepcopy(ours), EnvSpecs(OBS, spec), PPOConfig())
    loss = partial(ppo._minibatch_loss, rates=ppo.rates_at(0.0))
    flat = FlatOptimizer(ours, loss, kind, eps=1e-5, max_grad_norm=0.1, compiled=compiled)
    made = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[kind]
    reference = made(theirs.parameters(), lr=0.01, eps=1e-5)
    for seed in range(5):
        rows = make_rows(spec, seed=seed)
        logged = flat.step(0.01, rows)
        reference.zero_grad()
        value, metrics = loss(theirs, rows)[:2]
        value.backward()
        expected = {name: number.detach() for name, number in metrics.items()}
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        reference.step()
        torch.testing.assert_close(logged.metrics, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(logged.grad_norm, norm, rtol=1e-4, atol=1e-5)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_groups_have_their_own_learning_rate():
    spec = ACTIONS["categorical"]
    model = make_policy_value_model(OBS, spec, ModelConfig(), torch.Generator().manual_seed(1))
    before = copy.deepcopy(model.state_dict())
    ppo = PPO(copy.deepcopy(model), EnvSpecs(OBS, spec), PPOConfig())
    loss = partial(ppo._minibatch_loss, rates=ppo.rates_at(0.0))
    groups = [(model.actor.parameters(), 0.0), (model.critic.parameters(), 1.0)]
    FlatOptimizer(model, loss, groups=groups).step(0.01, make_rows(spec))
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("actor"))
    assert not torch.equal(before["critic.head.weight"], after["critic.head.weight"])


@pytest.mark.full
@pytest.mark.usefixtures("compiler")
def test_tied_parameters_survive_compilation():
    """Two layers with one weight: its gradient is the sum of both uses, compiled or not."""

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.two.weight = self.one.weight

        def forward(self, obs):
            return self.two(torch.tanh(self.one(obs)))

    def loss(model, obs):
        value = model(obs).square().mean()
        return Loss(value, {"loss": value})

    torch.manual_seed(0)
    eager = Tied()
    compiled = copy.deepcopy(eager)
    obs = torch.randn(5, 3)
    optimizers = FlatOptimizer(eager, loss), FlatOptimizer(compiled, loss, compiled=True)
    for _ in range(3):
        one, two = (optimizer.step(0.01, obs) for optimizer in optimizers)
        torch.testing.assert_close([one.metrics, one.grad_norm], [two.metrics, two.grad_norm])
    torch.testing.assert_close(eager.state_dict(), compiled.state_dict())


def squares(model, obs):
    value = model(obs).square().mean()
    return Loss(value, {"loss": value})


@pytest.mark.full
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("compiled", [False, True])
def test_frozen_parameters_stay(compiled):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    model[0].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    FlatOptimizer(model, squares, compiled=compiled).step(0.1, torch.randn(5, 3))
    assert torch.equal(before["0.weight"], model[0].weight)
    assert not torch.equal(before["1.weight"], model[1].weight)


@pytest.mark.full
def test_without_a_compiler_the_update_goes_on_eagerly():
    """It says so once; an error that is not the compiler's is not swallowed."""
    models = [torch.nn.Linear(3, 1) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    obs = torch.randn(5, 3)
    eager, compiled = FlatOptimizer(models[0], squares), FlatOptimizer(models[1], squares, compiled=True)

    def no_compiler(*_):
        raise torch._inductor.exc.InductorError(RuntimeError("no g++"), None)

    compiled.program._program = no_compiler
    with pytest.warns(CompileUnavailable, match="goes on without: .*no g\\+\\+") as seen:
        logged = [compiled.step(0.1, obs) for _ in range(3)]
    assert len(seen) == 1
    assert compiled.program.error is not None
    assert [step.log() for step in logged] == [eager.step(0.1, obs).log() for _ in range(3)]

    broken = FlatOptimizer(models[1], squares, compiled=True)
    broken.program._program = lambda *_: [][0]
    with pytest.raises(IndexError):
        broken.step(0.1, obs)


def test_a_model_that_moved_goes_on_learning():
    model = torch.nn.Linear(3, 1)
    optimizer = FlatOptimizer(model, squares)
    optimizer.step(0.1, torch.randn(5, 3))
    model.double().float()
    model.zero_grad()
    before = model.weight.detach().clone()
    optimizer.step(0.1, torch.randn(5, 3))
    assert not torch.equal(before, model.weight)


def test_a_critic_rate_needs_a_critic_of_its_own():
    from drl.core.errors import BadInput
    from drl.engines.torch.algorithms.ppo import PPO

    model = make_policy_value_model(OBS, ACTIONS["categorical"], ModelConfig(shared=True))
    with pytest.raises(BadInput, match="critic of its own"):
        PPO(model, EnvSpecs(OBS, ACTIONS["categorical"]), PPOConfig(critic_learning_rate=1e-3))
