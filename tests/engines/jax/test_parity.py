"""The same numbers into both engines: the same logs, gradients (as the optimizer remembers them) and parameters out.

Configurations are drawn from a seed over all fields, so every switch meets every other sooner or later.
"""

from functools import partial
from itertools import combinations, cycle

import engine_twins as twins
import jax
import numpy as np
import pytest
import torch
from engine_twins import quick_compilation  # noqa: F401 (a fixture)

from drl.algorithms.a2c import A2CConfig
from drl.algorithms.dqn import DQNConfig
from drl.algorithms.ppo import PPOConfig
from drl.algorithms.reinforce import ReinforceConfig
from drl.core.configs import ModelConfig, QModelConfig
from drl.core.specs import EnvSpecs
from drl.engines.jax.algorithms import a2c as jax_a2c
from drl.engines.jax.algorithms import dqn as jax_dqn
from drl.engines.jax.algorithms import ppo as jax_ppo
from drl.engines.jax.algorithms import reinforce as jax_reinforce
from drl.engines.jax.models import make_q_value_model
from drl.engines.jax.on_policy import random_orders, window_of
from drl.engines.numpy.networks import noise_of
from drl.engines.torch.algorithms import a2c as torch_a2c
from drl.engines.torch.algorithms import dqn as torch_dqn
from drl.engines.torch.algorithms import ppo as torch_ppo
from drl.engines.torch.algorithms import reinforce as torch_reinforce

pytestmark = pytest.mark.usefixtures("quick_compilation")
KINDS = list(twins.ACTIONS)


def pick(rng, *options):
    return options[rng.integers(len(options))]


def learn_both(ours, theirs, batches):
    """Two learning steps, the second with what the first left behind."""
    for number, batch in enumerate(batches):
        progress = 0.3 * number
        if isinstance(theirs, torch_ppo.PPO):  # it shuffles epoch by epoch, ours all at once: an early stop parts them
            ours.rng, theirs.rng = np.random.default_rng(number), np.random.default_rng(number)
        logged = theirs.learn(batch, progress)
        twins.assert_same_logs(logged.log, ours.learn(batch, progress).log)
        twins.assert_same_learner(theirs, ours)


@pytest.mark.default("0", "4")
@pytest.mark.parametrize("seed", range(12))
def test_ppo(seed):
    rng = np.random.default_rng(seed)
    spec = twins.ACTIONS[KINDS[seed % 4]]
    obs_spec = pick(rng, twins.VECTOR, twins.VECTOR, twins.GRID)
    rate = float(10 ** rng.uniform(-4, -2))
    squashed = spec.kind == "box" and seed > 5
    model_config = twins.draw_model(rng, distribution="tanh_gaussian" if squashed else "auto")
    config = PPOConfig(
        gamma=float(rng.uniform(0.5, 1)),
        gae_lambda=float(rng.uniform(0, 1)),
        learning_rate=rate,
        learning_rate_end=pick(rng, None, rate / 10),
        learning_rate_schedule=("auto", "cosine", "linear")[seed % 3],
        critic_learning_rate=None if model_config.shared else pick(rng, None, 3 * rate),
        clip_range=pick(rng, 0.02, 0.2),
        clip_range_end=pick(rng, None, 0.01),
        clip_range_schedule=("auto", "auto", "cosine")[seed % 3],
        value_clip=pick(rng, None, 0.1),
        epochs=int(rng.integers(1, 4)),
        minibatches=int(rng.integers(1, 5)),
        entropy_coef=pick(rng, 0.0, 0.1),
        entropy_coef_schedule=("auto", "linear", "cosine")[seed // 2 % 3],
        value_coef=pick(rng, 0.0, 0.5, 2.0),
        normalize_advantage=bool(rng.integers(2)),
        max_grad_norm=pick(rng, None, 0.1, 10.0),
        target_kl=pick(rng, None, 1e-4, 1e-1),
        adam_eps=pick(rng, 1e-5, 1e-3),
    )
    model, model_state = twins.make_twins("policy_value", obs_spec, spec, model_config, seed)
    specs = EnvSpecs(obs_spec, spec)
    theirs = torch_ppo.PPO(model, specs, config)
    ours = jax_ppo.PPO(model_state, specs, config)
    options = {"phantoms": bool(rng.integers(2)), "masked": seed % 8 < 4, "squashed": squashed}
    learn_both(ours, theirs, [twins.draw_rollout(rng, obs_spec, spec, **options) for _ in range(2)])


@pytest.mark.default("0", "2")
@pytest.mark.parametrize("seed", range(6))
def test_a2c(seed):
    rng = np.random.default_rng(seed)
    spec = twins.ACTIONS[KINDS[seed % 4]]
    config = A2CConfig(
        gamma=float(rng.uniform(0.5, 1)),
        gae_lambda=float(rng.uniform(0, 1)),
        learning_rate=1e-3,
        learning_rate_end=pick(rng, None, 1e-4),
        optimizer=("rmsprop", "adam")[seed // 2 % 2],
        optimizer_eps=pick(rng, 1e-5, 1e-3),
        entropy_coef=pick(rng, 0.0, 0.1),
        entropy_coef_schedule=("auto", "linear", "cosine")[seed // 2 % 3],
        value_coef=pick(rng, 0.0, 0.5, 2.0),
        normalize_advantage=bool(rng.integers(2)),
        max_grad_norm=pick(rng, None, 0.1, 10.0),
    )
    model, model_state = twins.make_twins("policy_value", twins.VECTOR, spec, twins.draw_model(rng), seed)
    specs = EnvSpecs(twins.VECTOR, spec)
    theirs, ours = torch_a2c.A2C(model, specs, config), jax_a2c.A2C(model_state, specs, config)
    learn_both(ours, theirs, [twins.draw_rollout(rng, twins.VECTOR, spec, masked=seed < 4) for _ in range(2)])


@pytest.mark.default("0", "2")
@pytest.mark.parametrize("seed", range(6))
def test_reinforce(seed):
    rng = np.random.default_rng(seed)
    spec = twins.ACTIONS[KINDS[seed % 4]]
    config = ReinforceConfig(
        gamma=float(rng.uniform(0.5, 1)),
        baseline=("none", "mean", "value")[seed % 3],
        mean_momentum=pick(rng, 0.0, 0.9),
        learning_rate=1e-3,
        learning_rate_end=pick(rng, None, 1e-4),
        entropy_coef=pick(rng, 0.0, 0.1),
        entropy_coef_schedule=("auto", "linear", "cosine")[seed // 2 % 3],
        value_coef=pick(rng, 0.5, 2.0),
        normalize_advantage=bool(rng.integers(2)),
        max_grad_norm=pick(rng, None, 0.1, 10.0),
        adam_eps=pick(rng, 1e-5, 1e-3),
    )
    variant = "policy_value" if config.baseline == "value" else "policy_only"
    model, model_state = twins.make_twins(variant, twins.VECTOR, spec, twins.draw_model(rng, shared=seed > 3), seed)
    specs = EnvSpecs(twins.VECTOR, spec)
    theirs, ours = torch_reinforce.Reinforce(model, specs, config), jax_reinforce.Reinforce(model_state, specs, config)
    lengths = (23, 31)
    learn_both(
        ours, theirs, [twins.draw_episodes(rng, twins.VECTOR, spec, length, masked=seed < 4) for length in lengths]
    )
    if config.baseline == "mean":
        assert float(ours.running_mean) == pytest.approx(theirs.running_mean, rel=1e-5)


def put_noise(model, noise):
    """The JAX engine's noise into a torch model."""
    buffers = dict(model.named_buffers())
    for name, value in noise.items():
        buffers[name].copy_(torch.from_numpy(np.asarray(value, np.float32)))


@pytest.mark.default("0", "11", "13")
@pytest.mark.parametrize("seed", range(14))
def test_dqn(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    spec = twins.ACTIONS["categorical"]
    kind = ("none", "c51", "qr")[seed % 3]
    config = DQNConfig(
        learning_rate=1e-3,
        learning_rate_end=pick(rng, None, 1e-4),
        double=bool(rng.integers(2)),
        tau=pick(rng, 0.005, 0.3, 1.0),
        target_every=pick(rng, 1, 2),
        loss=pick(rng, "huber", "squared"),
        optimizer=pick(rng, "adam", "adamw"),
        amsgrad=bool(rng.integers(2)),
        weight_decay=pick(rng, 0.0, 0.1),
        adam_eps=pick(rng, 1e-5, 1e-3),
        max_grad_norm=pick(rng, None, 0.1, 10.0),
        max_grad_value=pick(rng, None, 0.01),
    )
    model_config = twins.draw_q_model(rng, distributional=kind)
    model, model_state = twins.make_twins("q_value", twins.VECTOR, spec, model_config, seed)
    specs = EnvSpecs(twins.VECTOR, spec)
    theirs = torch_dqn.DQN(model, specs, config)
    ours = jax_dqn.DQN(model_state, specs, config, np.random.default_rng(5))
    stream = np.random.default_rng(5)  # the same noise as ours draws

    def same_noise():
        for network in (theirs.model, theirs.target_network.module):
            put_noise(network, noise_of(model_state.params, partial(stream.standard_normal, dtype=np.float32)))

    monkeypatch.setattr(theirs, "_resample", same_noise)
    learn_both(ours, theirs, [twins.draw_replay(rng, twins.VECTOR, masked=seed % 4 < 2) for _ in range(3)])
    for name, array in twins.torch_arrays(theirs.target_network.module).items():
        twins.assert_near(ours.target_params[name], array, name=name)


FORWARD = [
    ("mlp", twins.VECTOR, {"hidden_sizes": (8, 8)}),
    ("linear", twins.VECTOR, {"hidden_sizes": ()}),
    ("grid", twins.GRID, {"hidden_sizes": (8,), "activation": "relu"}),
    ("cnn", twins.IMAGE, {"cnn_features": 8}),
    ("flat image", twins.IMAGE, {"backbone": "mlp", "hidden_sizes": (8,)}),
    ("conv1d", twins.SEQUENCE, {"backbone": "conv1d", "hidden_sizes": (8,)}),
]


@pytest.mark.default("mlp", "grid", "cnn")
@pytest.mark.parametrize(("obs_spec", "config"), [case[1:] for case in FORWARD], ids=[case[0] for case in FORWARD])
def test_forward_and_its_gradient(obs_spec, config):
    """Every backbone with every head: the answers, and the gradient of their sum of squares."""
    rng = np.random.default_rng(0)
    obs = twins.draw_obs(rng, obs_spec, 5)
    kinds = cycle([(False, False, "none"), (True, False, "c51"), (False, True, "qr"), (True, True, "none")])
    pairs = []
    for shared, spec in zip((False, True, False, True), twins.ACTIONS.values(), strict=True):
        pairs.append(("policy_value", spec, twins.draw_model(rng, shared=shared, **config)))
        dueling, noisy, kind = next(kinds)
        switches = {"dueling": dueling, "noisy": noisy, "distributional": kind}
        pairs.append(("q_value", twins.ACTIONS["categorical"], twins.draw_q_model(rng, **switches, **config)))
    made = [twins.make_twins(variant, obs_spec, spec, c, seed=i) for i, (variant, spec, c) in enumerate(pairs)]
    noises = [noise_of(model_state.params, partial(rng.standard_normal, dtype=np.float32)) for _, model_state in made]

    def all_answers(params, noise):
        answers = [
            model_state.model.apply(p | n, obs) for (_, model_state), p, n in zip(made, params, noise, strict=True)
        ]
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(answers)), answers

    run = jax.jit(jax.value_and_grad(all_answers, has_aux=True), compiler_options=twins.QUICK)
    (_, answers), gradients = run([model_state.params for _, model_state in made], noises)
    for (model, _), noise, answer, gradient in zip(made, noises, answers, gradients, strict=True):
        put_noise(model, noise)
        expected = model(torch.from_numpy(obs))
        expected = expected if isinstance(expected, tuple) else (expected,)
        for mine, theirs in zip(jax.tree.leaves(answer), expected, strict=True):
            twins.assert_near(mine, theirs.detach().numpy())
        sum(part.square().sum() for part in expected).backward()
        for name, parameter in model.named_parameters():
            twins.assert_near(gradient[name], parameter.grad.numpy(), name=name)


def test_a_step_is_an_update_with_what_its_key_gives():
    """Also for rollouts in which all rows count, and for several seeds at once."""
    rng, spec = np.random.default_rng(0), twins.ACTIONS["categorical"]
    _, model_state = twins.make_twins("policy_value", twins.VECTOR, spec, ModelConfig(hidden_sizes=(5,)))
    config = PPOConfig(epochs=2, minibatches=3, target_kl=0.1)
    pure = jax_ppo.PurePPO(jax_ppo.PPO, model_state.model, spec, config)
    window = window_of(twins.draw_rollout(rng, twins.VECTOR, spec, length=6, envs=4, phantoms=False))
    assert window.valid.all()
    keys, rates = jax.random.split(jax.random.key(3), 2), (np.float32(1e-3), np.float32(0.2))

    def both_ways(state, window, keys):
        order = random_orders(keys[0], 2, window.valid, 24)
        masked = pure.update(state, window, (order, None), *rates)
        plain = jax.vmap(lambda key: pure.step(state, window._replace(valid=None), key, *rates))(keys)
        return masked, plain

    masked, plain = jax.jit(both_ways, compiler_options=twins.QUICK)(pure.begin(model_state.params), window, keys)
    for one, many in zip(jax.tree.leaves(masked), jax.tree.leaves(plain), strict=True):
        twins.assert_near(one, many[0])
    assert any((leaf[0] != leaf[1]).any() for leaf in jax.tree.leaves(plain[0].params))


def test_a_key_gives_online_and_target_network_their_own_noise(monkeypatch):
    model = make_q_value_model(
        twins.VECTOR, twins.ACTIONS["categorical"], QModelConfig(hidden_sizes=(5, 5), noisy=True)
    )
    pure, seen = jax_dqn.PureDQN(jax_dqn.DQN, model, twins.ACTIONS["categorical"], DQNConfig()), []
    monkeypatch.setattr(jax_dqn.PureDQN, "update", lambda self, state, rows, noise, rate: seen.append(noise))
    pure.step(pure.begin(model.init(np.random.default_rng(0))), None, jax.random.key(0), 1e-3)
    online, target = seen[0]
    names = {f"{layer}.noise_{end}" for layer in ("backbone.2", "head.advantage") for end in ("in", "out")}
    assert online.keys() == target.keys() == names
    assert not any(np.allclose(online[name], target[name]) for name in online)


def test_an_update_gives_online_and_target_network_their_own_noise(monkeypatch):
    spec = twins.ACTIONS["categorical"]
    _, model_state = twins.make_twins("q_value", twins.VECTOR, spec, QModelConfig(hidden_sizes=(5,), noisy=True))
    learner, seen = jax_dqn.DQN(model_state, EnvSpecs(twins.VECTOR, spec)), []

    def update(pure, state, rows, noise, rate):
        seen.extend(noise)
        return state, {}, np.zeros(4)

    monkeypatch.setattr(jax_dqn, "_update", update)
    monkeypatch.setattr(jax_dqn, "replay_rows", lambda batch: None)
    learner.learn(None)
    learner.learn(None)
    for one, two in combinations(seen, 2):
        assert one.keys() == two.keys() != set()
        assert not any(np.allclose(one[name], two[name]) for name in one)
