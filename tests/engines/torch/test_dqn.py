"""DQN's parts against oracles, and all 64 combinations of the six switches."""

import itertools

import numpy as np
import pytest
import torch

from drl.agents.load_agent import load_agent
from drl.algorithms.dqn import DQNConfig
from drl.buffers.replay_buffer import ReplayBuffer
from drl.core.configs import EpsilonGreedyConfig, NoSettings, QModelConfig, ReplayConfig
from drl.core.contracts import Loss, ReplayBatch
from drl.core.schedules import epsilon_schedule
from drl.core.seeding import Seeds
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.engines.numpy.exploration import EpsilonGreedy
from drl.engines.torch import ops
from drl.engines.torch.agents import QAgent
from drl.engines.torch.algorithms.dqn import DQN
from drl.engines.torch.build import build_learner
from drl.engines.torch.flat_optimizer import FlatOptimizer
from drl.engines.torch.layers import NoisyLinear, noisy_layers
from drl.engines.torch.models import architecture_of, make_q_value_model
from drl.envs.make_vec_env import make_vec_env
from drl.testing import oracles
from drl.trainer.trainer import Trainer, TrainerConfig

OBS, ACTION = ObsSpec("box", (3,)), ActionSpec("discrete", sizes=(4,))
SPECS = EnvSpecs(OBS, ACTION)
SWITCHES = list(itertools.product([False, True], repeat=6))


@pytest.mark.parametrize("seed", range(5))
def test_projection_against_tents(seed):
    rng = np.random.default_rng(seed)
    support = torch.linspace(-2.0, 3.0, 11)
    probs = rng.dirichlet(np.ones(11), 20)
    reward, continues = rng.normal(scale=2, size=20), rng.choice([0.0, 0.9, 1.0], 20)
    reward[:5] = 0.5  # lands exactly on atoms: the mass must not vanish
    continues[:5] = 1.0
    ours = ops.project_distribution(*(torch.tensor(x) for x in (probs, reward, continues)), support.double())
    for row in range(20):
        expected = oracles.c51_projection(probs[row], reward[row], continues[row], support.numpy())
        np.testing.assert_allclose(ours[row].numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(ours.sum(-1).numpy(), 1.0, rtol=1e-6)


def test_quantile_loss_against_loops():
    rng = np.random.default_rng(0)
    quantiles, target = rng.normal(size=(6, 5)), rng.normal(scale=3, size=(6, 7))
    ours = ops.quantile_loss(torch.tensor(quantiles), torch.tensor(target), ops.huber)
    for row in range(6):
        assert ours[row].item() == pytest.approx(oracles.quantile_huber(quantiles[row], target[row]))


def test_noise_has_the_variance_of_its_formula():
    layer = NoisyLinear(8, 5, generator=torch.Generator().manual_seed(0))
    x, generator, samples = torch.randn(1, 8), torch.Generator().manual_seed(1), []
    for _ in range(20_000):
        layer.resample(generator)
        samples.append(layer(x)[0].detach())
    drawn = torch.stack(samples)
    # f(ε) has variance E|ε| = √(2/π) =: v. The weights' noise is a product of two, so its variance is v² per entry; the
    # bias shares ε_out, but E[f(ε_in)] = 0 keeps the two uncorrelated.
    v = np.sqrt(2 / np.pi)
    sigma = layer.weight_sigma[0, 0].item()
    expected = v * v * sigma**2 * x.square().sum().item() + v * layer.bias_sigma[0].item() ** 2
    np.testing.assert_allclose(drawn.var(0).numpy(), expected, rtol=0.1)
    layer.quiet = True
    np.testing.assert_allclose(drawn.mean(0).numpy(), layer(x)[0].detach().numpy(), atol=0.03)


def test_noise_begins_as_strong_as_asked_behind_a_plain_layer():
    model = make_q_value_model(OBS, ACTION, QModelConfig(noisy=True, noisy_sigma=0.2, hidden_sizes=(16, 9)))
    assert [layer.in_features for layer in noisy_layers(model)] == [16, 9]
    for layer in noisy_layers(model):
        np.testing.assert_allclose(layer.weight_sigma.detach(), 0.2 / np.sqrt(layer.in_features), rtol=1e-6)
    assert architecture_of(model, "q_value", OBS, ACTION)["noisy_sigma"] == 0.2


def test_noisy_networks_act_at_random_only_while_warming_up():
    schedule = epsilon_schedule(EpsilonGreedyConfig(), noisy=True, first_update=200)
    assert [schedule(step) for step in (0, 100, 200, 5000)] == [1.0, 0.5, 0.0, 0.0]
    assert epsilon_schedule(EpsilonGreedyConfig(epsilon_end=0.05), noisy=False, first_update=200)(10**9) == 0.05


@pytest.mark.parametrize("kind", ["none", "c51", "qr"])
def test_dueling_is_value_plus_centerd_advantage(kind):
    config = QModelConfig(dueling=True, distributional=kind, num_atoms=7)
    model = make_q_value_model(OBS, ACTION, config, torch.Generator().manual_seed(0))
    features = model.backbone(torch.randn(5, 3))
    answer = model.head(features).view(5, 4, -1)
    value = model.head.state_value(features)
    np.testing.assert_allclose(answer.mean(1).detach().numpy(), value.detach().numpy(), atol=1e-5)
    advantage = model.head.advantage(features).view(5, 4, -1)
    torch.testing.assert_close(answer - answer[:, :1], advantage - advantage[:, :1], atol=1e-5, rtol=1e-4)


def rows_of(batch=16, seed=0):
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.normal(size=(2, batch, 3)).astype(np.float32)
    numbers = rng.normal(size=batch).astype(np.float32)
    continues = rng.choice([0.0, 0.9, 0.81], batch).astype(np.float32)
    weight = rng.random(batch).astype(np.float32)
    return ops.ReplayRows(
        *(torch.from_numpy(x) for x in (obs, rng.integers(4, size=batch), numbers, continues, next_obs, weight))
    )


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kind", ["none", "c51", "qr"])
@pytest.mark.parametrize("dueling", [False, True])
def test_the_composed_loss_against_a_loop(double, kind, dueling):
    settings = QModelConfig(
        distributional=kind, num_atoms=9, v_min=-3.0, v_max=3.0, dueling=dueling, hidden_sizes=(16,)
    )
    online, target = (make_q_value_model(OBS, ACTION, settings, torch.Generator().manual_seed(s)) for s in (1, 2))
    rows = rows_of()
    dqn = DQN(online, EnvSpecs(OBS, ACTION), DQNConfig(double=double))
    dqn.target_network.module.load_state_dict(target.state_dict())
    loss, metrics, priority, _ = dqn._batch_loss(online, rows, dqn.rates_at(0.0))
    logged = torch.cat([loss[None], metrics["mean_q"], priority])
    with torch.no_grad():
        now, later, later_online = (
            m(o).numpy() for m, o in ((online, rows.obs), (target, rows.next_obs), (online, rows.next_obs))
        )
    support = online.head.support.numpy()

    def softmax(logits):
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    def value(answer):  # of one action
        return {"none": lambda: answer, "qr": lambda: answer.mean(), "c51": lambda: softmax(answer) @ support}[kind]()

    total, values, errors = 0.0, [], []
    for i in range(16):
        chooser = later_online if double else later
        best = int(np.argmax([value(chooser[i, a]) for a in range(4)]))
        chosen, goal = now[i, rows.action[i]], later[i, best]
        reward, continues = float(rows.reward[i]), float(rows.discount[i])
        if kind == "none":
            error = reward + continues * goal - chosen
            sample, priority = oracles.huber(error), abs(error)
        elif kind == "qr":
            sample = priority = oracles.quantile_huber(chosen, reward + continues * goal)
        else:
            wanted = oracles.c51_projection(softmax(goal), reward, continues, support)
            sample = priority = -float(wanted @ np.log(softmax(chosen)))
        total += float(rows.weight[i]) * sample / 16
        values.append(value(chosen))
        errors.append(priority)
    assert loss.item() == pytest.approx(total, rel=1e-4)
    np.testing.assert_allclose(logged.detach().numpy(), [total, *values, *errors], rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["none", "c51", "qr"])
@pytest.mark.parametrize("dueling", [False, True])
def test_numpy_values_equal_torch(kind, dueling):
    config = QModelConfig(distributional=kind, dueling=dueling)
    model = make_q_value_model(OBS, ACTION, config, torch.Generator().manual_seed(0))
    agent = QAgent(model, SPECS)
    obs = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    with torch.no_grad():
        expected = model.head.q_values(model(torch.from_numpy(obs))).numpy()
    np.testing.assert_allclose(agent.q_values(obs), expected, atol=1e-5)


def test_noisy_agents_explore_with_noise_and_decide_with_the_mean():
    model = make_q_value_model(OBS, ACTION, QModelConfig(noisy=True), torch.Generator().manual_seed(0))
    agent = QAgent(model, SPECS)
    obs = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    learner = DQN(model, SPECS, DQNConfig())
    before = agent.q_values(obs, noisy=True)
    quiet = agent.q_values(obs)
    learner._resample()
    assert not np.allclose(before, agent.q_values(obs, noisy=True))
    np.testing.assert_array_equal(quiet, agent.q_values(obs))
    nets = (model, learner.target_network.module)
    online, target = (next(m for m in net.modules() if isinstance(m, NoisyLinear)) for net in nets)
    assert not torch.equal(online.noise_in, target.noise_in)


def replayed(seed):
    """The rows of `rows_of` as a replay buffer hands them out."""
    rows = rows_of(seed=seed)
    obs, action, reward, continues, next_obs, weight = (column.numpy() for column in rows[:6])
    alive = np.zeros_like(reward)  # nothing terminates: the discount says it all
    return ReplayBatch(obs, action, reward, alive, continues, next_obs, weight, np.arange(len(reward)))


def test_frozen_parameters_stay_also_in_the_target():
    model = make_q_value_model(OBS, ACTION, QModelConfig(), torch.Generator().manual_seed(0))
    model.backbone.requires_grad_(False)
    learner = DQN(model, SPECS, DQNConfig(tau=0.5, learning_rate=0.01))
    before = {name: p.clone() for name, p in learner.target_network.module.named_parameters()}
    for seed in range(3):
        learner.learn(replayed(seed))
    after = dict(learner.target_network.module.named_parameters())
    for name, old in before.items():
        frozen = name.startswith("backbone")
        assert torch.equal(old, after[name]) is frozen, name  # the head moves, the backbone does not
        assert torch.equal(old, dict(model.named_parameters())[name]) is frozen, name


def test_noise_changes_at_every_step_of_exploring():
    model = make_q_value_model(OBS, ACTION, QModelConfig(noisy=True), torch.Generator().manual_seed(0))
    agent = QAgent(model, SPECS, rng=np.random.default_rng(0), exploration=NoSettings())
    obs = np.ones((1, 3), np.float32)
    assert len({int(agent.decide(obs, explore=True)[0]) for _ in range(200)}) > 1
    assert len({int(agent.decide(obs)[0]) for _ in range(20)}) == 1


def noise_of_all(layers):
    return [noise.clone() for layer in layers for noise in (layer.noise_in, layer.noise_out)]


def test_both_networks_get_their_own_new_noise_in_every_update():
    model = make_q_value_model(OBS, ACTION, QModelConfig(noisy=True, dueling=True), torch.Generator().manual_seed(0))
    learner = DQN(model, SPECS, DQNConfig())
    drawn = []
    for seed in range(3):
        learner.learn(replayed(seed))
        drawn.append([noise_of_all(noisy_layers(net)) for net in (model, learner.target_network.module)])
        assert all(noise.count_nonzero() == noise.numel() for noises in drawn[-1] for noise in noises)
    draws = [noises for pair in drawn for noises in pair]  # of two networks in three updates
    for one, two in itertools.combinations(draws, 2):
        assert not any(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_noisy_network_without_a_numpy_form_is_evaluated_with_its_means():
    images = ObsSpec("box", (1, 36, 36), "uint8")
    specs = EnvSpecs(images, ACTION)
    model = make_q_value_model(images, ACTION, QModelConfig(noisy=True), torch.Generator().manual_seed(0))
    agent, learner = QAgent(model, specs), DQN(model, specs)
    obs = np.random.default_rng(0).integers(256, size=(6, 1, 36, 36), dtype=np.uint8)
    assert not np.allclose(agent.q_values(obs, noisy=True), agent.q_values(obs, noisy=True))
    seen = [agent.q_values(obs), learner.predict(obs)]
    learner._resample()
    seen += [agent.q_values(obs), learner.predict(obs)]
    for layer in noisy_layers(model):
        layer.noise_in.zero_()
        layer.noise_out.zero_()
    with torch.no_grad():
        expected = model(torch.from_numpy(obs)).numpy()
    for values in seen:
        np.testing.assert_allclose(values, expected, atol=1e-6)


def test_epsilon_is_a_coin_per_env():
    agent = QAgent(make_q_value_model(OBS, ACTION, QModelConfig()), SPECS, rng=np.random.default_rng(0))
    agent.exploration = EpsilonGreedy(EpsilonGreedyConfig(epsilon_start=0.4), ACTION)
    obs = np.tile(np.ones(3, np.float32), (40_000, 1))
    best, *others = np.unique(agent.decide(obs))
    assert not others  # evaluation throws no coin
    share = np.bincount(agent.decide(obs, explore=True), minlength=4) / 40_000
    np.testing.assert_allclose(share[best], 0.6 + 0.1, atol=0.01)
    np.testing.assert_allclose(np.delete(share, best), 0.1, atol=0.01)


@pytest.mark.parametrize(("tau", "every"), [(0.005, 1), (0.3, 2), (1.0, 3)])
def test_target_updates(tau, every):
    """θ⁻ ← θ⁻ + τ (θ − θ⁻) after every so many calls of `learn`, worked out beside it from the models alone."""

    def weights(net):
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    model = make_q_value_model(OBS, ACTION, QModelConfig(), torch.Generator().manual_seed(0))
    learner = DQN(model, SPECS, DQNConfig(tau=tau, target_every=every, learning_rate=0.01))
    expected = weights(model)
    for count in range(1, 7):
        learner.learn(replayed(count))
        if count % every == 0:
            expected = expected + tau * (weights(model) - expected)
        target = weights(learner.target_network.module)
        torch.testing.assert_close(target, expected)
        assert not torch.equal(target, weights(model)) or (tau == 1.0 and count % every == 0)


@pytest.mark.full
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("amsgrad", "compiled"),
    [(False, False), (True, False), (True, True), pytest.param(False, True, marks=pytest.mark.slow)],
)
def test_adamw_equals_torch(amsgrad, compiled):
    import copy

    ours = torch.nn.Linear(3, 2)
    theirs = copy.deepcopy(ours)

    def squares(model, obs):
        value = model(obs).square().mean()
        return Loss(value, {"loss": value})

    options = {"eps": 1e-8, "amsgrad": amsgrad, "weight_decay": 0.1, "max_grad_value": 0.05, "compiled": compiled}
    flat = FlatOptimizer(ours, squares, "adamw", **options)
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.01, amsgrad=amsgrad, weight_decay=0.1)
    for seed in range(8):
        obs = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed)) * (8 - seed)
        flat.step(0.01, obs)
        reference.zero_grad()
        squares(theirs, obs).value.backward()
        torch.nn.utils.clip_grad_value_(theirs.parameters(), 0.05)
        reference.step()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-4, atol=1e-6)


def short_run(model_config, config, replay, updates=200, **options):
    with make_vec_env("CartPole-v1", 2, seed=0) as envs:
        agent, learner = build_learner("dqn", envs, (model_config, config), Seeds(1), **options)
        trainer = Trainer(envs, agent, learner, ReplayBuffer(envs, replay), TrainerConfig(updates_per_log=updates))
        return trainer, trainer.step()


@pytest.mark.default("000000", "111111", "110101", "001010")
@pytest.mark.parametrize("switches", SWITCHES, ids=lambda s: "".join("01"[x] for x in s))
def test_all_combinations_learn_save_and_load(tmp_path, switches):
    double, dueling, prioritized, n_step, distributional, noisy = switches
    kind = "c51" if distributional else "none"
    settings = QModelConfig(dueling=dueling, distributional=kind, noisy=noisy, hidden_sizes=(32, 32))
    replay = ReplayConfig(prioritized=prioritized, n_step=3 if n_step else 1, batch_size=32, warmup=64)
    trainer, log = short_run(settings, DQNConfig(double=double), replay)
    assert log.learn["loss"] > 0
    assert all(np.isfinite(value) for value in log.flat().values())
    agent = trainer.agent
    agent.save(tmp_path)
    obs = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    np.testing.assert_array_equal(load_agent(tmp_path).act(obs), agent.act(obs))


@pytest.mark.full
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("noisy", "kind"), [(True, "c51"), *(pytest.param(False, kind, marks=pytest.mark.slow) for kind in ("none", "qr"))]
)
def test_compiled_update_is_the_same_update(noisy, kind):
    parameters = []
    for compiled in (False, True):
        torch._dynamo.reset()
        settings = QModelConfig(distributional=kind, noisy=noisy, dueling=True, hidden_sizes=(16,))
        config = DQNConfig(double=True, learning_rate=1e-3)
        replay = ReplayConfig(batch_size=32, warmup=64, prioritized=True)
        trainer, _ = short_run(settings, config, replay, updates=20, compile_update=compiled)
        parameters.append(trainer.algorithm.optimizer.values)
    torch.testing.assert_close(*parameters, rtol=1e-2, atol=1e-4)


@pytest.mark.default("none-1-drl/TwoStep-v0-values0")
@pytest.mark.parametrize(("env", "values"), [("drl/TwoStep-v0", [0.9, 1.0]), ("drl/TwoStepTruncated-v0", [9.0, 10.0])])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("kind", ["none", "c51", "qr"])
def test_learns_the_values_of_a_two_step_env(env, values, n_step, kind):
    """obs 0 → obs 1 → end, reward 1 at the end, γ = 0.9. A clock is not a death."""
    config = DQNConfig(gamma=0.9, learning_rate=3e-3, learning_rate_end=0.0, tau=0.02, weight_decay=0.0)
    replay = ReplayConfig(n_step=n_step, warmup=100, batch_size=64)
    settings = QModelConfig(hidden_sizes=(32,), distributional=kind, v_min=0.0, v_max=12.0, num_atoms=25)
    with make_vec_env(env, 2, seed=0) as envs:
        agent, learner = build_learner("dqn", envs, (settings, config), Seeds(1))
        always = EpsilonGreedyConfig(epsilon_start=1.0, epsilon_schedule="constant")
        agent.exploration = EpsilonGreedy(always, envs.action_spec)
        steps = TrainerConfig(updates_per_log=1200, total_timesteps=3000)
        trainer = Trainer(envs, agent, learner, ReplayBuffer(envs, replay), steps)
        trainer.step()
        trainer.step()
    learned = agent.q_values(np.array([[0.0], [1.0]], np.float32)).mean(axis=1)
    np.testing.assert_allclose(learned, values, rtol=0.12)
