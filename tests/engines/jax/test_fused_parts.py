"""The pieces of a fused program, each against its NumPy twin or a brute-force loop."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_twins import QUICK

from drl.algorithms.dqn import DQNConfig
from drl.core.configs import QModelConfig, ReplayConfig
from drl.core.normalize import ObsNormalizer, RewardScaler
from drl.core.schedules import Constant, Cosine, Exponential, Linear
from drl.core.specs import ActionSpec, Distribution, ObsSpec
from drl.engines.jax.algorithms.dqn import DQN, PureDQN
from drl.engines.jax.envs import make_jax_env
from drl.engines.jax.envs.jax_env import JaxStep
from drl.engines.jax.fused import fused_replay, fused_stats
from drl.engines.jax.fused.fused_off_policy import FusedOffPolicy
from drl.engines.jax.fused.fused_replay import FusedReplay
from drl.engines.jax.fused.fused_stats import Budget, Counters, value_at
from drl.engines.jax.layers import transposed, untransposed
from drl.engines.jax.models import make_q_value_model
from drl.engines.jax.ops import random_draws, sample

GAMMA = 0.9


def test_sum_tree_finds_what_a_running_sum_finds():
    rng = np.random.default_rng(0)
    weights = rng.random(300).astype(np.float32) * (rng.random(300) < 0.7)
    levels = fused_replay.new_levels(300)
    levels = jax.jit(fused_replay.set_weights)(levels, jnp.arange(300), jnp.array(weights))
    index = np.array([5, 17, 299])
    weights[index] = [0.0, 2.0, 0.5]
    levels = fused_replay.set_weights(levels, jnp.array(index), jnp.array([0.0, 2.0, 0.5]))
    assert float(fused_replay.total(levels)) == pytest.approx(weights.sum(), rel=1e-5)
    mass = rng.random(500) * weights.sum()
    found = np.asarray(jax.jit(fused_replay.find)(levels, jnp.array(mass, jnp.float32)))
    assert (weights[found] > 0).all()
    assert (found == np.searchsorted(np.cumsum(weights), mass, side="right")).mean() > 0.98
    at_the_end = fused_replay.find(levels, jnp.array([weights.sum() * 1.01], jnp.float32))
    assert weights[int(at_the_end[0])] > 0


def test_turned_weights_answer_alike_and_turn_back():
    config = QModelConfig(hidden_sizes=(6, 5), noisy=True, dueling=True)
    for settings in (config, replace(config, noisy=False)):
        model = make_q_value_model(ObsSpec("box", box_shape=(3,)), ActionSpec("discrete", sizes=(2,)), settings)
        params = model.init(np.random.default_rng(0))
        kernels = [name for name in transposed(params) if name.endswith("kernel")]
        assert len(kernels) == (1 if settings.noisy else 4), "an MLP's first layer is plain, a noisy one stays as it is"
        obs = np.random.default_rng(1).normal(size=(7, 3)).astype(np.float32)
        np.testing.assert_allclose(model.apply(transposed(params), obs), model.apply(params, obs), rtol=1e-5, atol=1e-6)
        back = untransposed(transposed(params))
        assert back.keys() == params.keys()
        for name, array in params.items():
            np.testing.assert_array_equal(back[name], array)


def test_moments_and_scaler_agree_with_numpy():
    rng = np.random.default_rng(1)
    ours, theirs = fused_stats.new_running_stats((3,)), ObsNormalizer((3,))
    scaler, twin = fused_stats.new_scaler(2), RewardScaler(2, GAMMA)
    for _ in range(4):
        obs = rng.normal(2.0, 3.0, (40, 3)).astype(np.float32)
        ours = fused_stats.merge(ours, jnp.array(obs))
        theirs.update(obs)
        np.testing.assert_allclose(fused_stats.normalize(ours, obs), theirs(obs), rtol=2e-4, atol=2e-5)
        reward, ended = rng.normal(size=(20, 2)).astype(np.float32), rng.random((20, 2)) < 0.2
        scaler = fused_stats.follow(scaler, jnp.array(reward), jnp.array(ended), GAMMA)
        twin.update(reward, ended, np.ones_like(ended))
        np.testing.assert_allclose(reward / fused_stats.reward_scale(scaler), twin(reward), rtol=2e-4, atol=2e-5)
    bounded = RewardScaler(2, GAMMA, bound=0.5)
    bounded.load_state_dict(twin.state_dict())
    scale = fused_stats.reward_scale(scaler, bound=0.5)
    np.testing.assert_allclose(reward / scale, bounded(reward), rtol=2e-4, atol=2e-5)
    assert bounded.largest / scale <= 0.5 + 1e-6
    half = np.repeat([1.0, 0.0], 20)
    masked = fused_stats.merge(ours, jnp.array(obs), jnp.array(half))
    plain = fused_stats.merge(ours, jnp.array(obs[:20]))
    for one, other in zip(masked, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("time", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(
    "schedule", [Constant(0.2), Linear(1.0, 0.1, 1.5), Cosine(1.0, 0.1, 1.5), Exponential(0.9, 0.05, 0.7)]
)
def test_schedules_agree_with_core(schedule, time):
    assert float(value_at(schedule, jnp.float32(time))) == pytest.approx(schedule(time), rel=1e-5)


@pytest.mark.parametrize("budget", [Budget(total_timesteps=10), Budget(num_episodes=10)])
def test_a_budget_is_used_up_exactly_at_its_end(budget):
    assert [bool(budget.used(Counters(count, count))) for count in (0, 9, 10, 11)] == [False, False, True, True]
    assert [float(budget.progress(Counters(count, count))) for count in (0, 5, 10, 11)] == [0.0, 0.5, 1.0, 1.0]
    assert not Budget().used(Counters(10, 10))


def test_actions_follow_the_policy():
    key = jax.random.PRNGKey(0)
    logits = jnp.log(jnp.array([0.1, 0.6, 0.3]))
    dist = Distribution.on(ActionSpec("discrete", sizes=(3,)))
    action = sample(dist, jnp.tile(logits, (20_000, 1)), random_draws(dist, key, (20_000,)))
    np.testing.assert_allclose(np.bincount(action) / 20_000, [0.1, 0.6, 0.3], atol=0.015)
    dist = Distribution.on(ActionSpec("multi_discrete", sizes=(3, 3), shape=(2,)))
    action = sample(dist, jnp.tile(logits, (20_000, 2)), random_draws(dist, key, (20_000,)))
    joint = np.bincount(np.asarray(action) @ [3, 1], minlength=9) / 20_000
    np.testing.assert_allclose(joint, np.outer([0.1, 0.6, 0.3], [0.1, 0.6, 0.3]).ravel(), atol=0.015)
    dist = Distribution.on(ActionSpec("box", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)))
    params = jnp.tile(jnp.array([1.0, -1.0, 0.0, np.log(0.5)]), (20_000, 1))
    action = np.asarray(sample(dist, params, random_draws(dist, key, (20_000,))))
    np.testing.assert_allclose(action.mean(axis=0), [1.0, -1.0], atol=0.03)
    np.testing.assert_allclose(action.std(axis=0), [1.0, 0.5], rtol=0.03)


def played(config, num_envs, steps, seed=0):
    """Random steps written into a fused memory, and the same as plain lists."""
    rng = np.random.default_rng(seed)
    replay = FusedReplay(config, GAMMA, num_envs)
    buffer = replay.begin(ObsSpec("box", box_shape=(1,)), ActionSpec("discrete", sizes=(2,)))
    add, rows = jax.jit(replay.add), []
    for t in range(steps):
        obs = np.full((num_envs, 1), t, np.float32) + 1000 * np.arange(num_envs)[:, None]
        terminated = rng.random(num_envs) < 0.15
        truncated = (rng.random(num_envs) < 0.1) & ~terminated
        reward = rng.normal(size=num_envs).astype(np.float32)
        step = JaxStep(reward, terminated, truncated, terminated, obs + 0.5, obs + 1)
        action = rng.integers(2, size=num_envs).astype(np.int32)
        buffer = add(buffer, obs, action, step)
        rows.append((obs, action, reward, terminated, truncated, obs + 0.5))
    return replay, buffer, rows


@pytest.mark.default("12-3-True", "37-1-False")
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("steps", [12, 37])  # before and after the ring of 10 rows has turned
def test_drawn_rows_are_n_step_transitions(prioritized, n_step, steps):
    config = ReplayConfig(capacity=20, batch_size=8, n_step=n_step, prioritized=prioritized)
    replay, buffer, rows = played(config, 2, steps)
    seen = set()
    draw = jax.jit(replay.draw)
    for seed in range(30):
        _, batch, place = draw(buffer, jax.random.uniform(jax.random.PRNGKey(seed), (2, 8)))
        for i in range(8):
            envs, t = divmod(int(batch.obs[i, 0]), 1000)
            assert steps - replay.length <= t <= steps - n_step  # neither overwritten nor incomplete
            assert int(place[i]) == t % replay.length * 2 + envs
            total, discount = 0.0, 1.0
            for k in range(n_step):
                _, _, reward, terminated, truncated, next_obs = (column[envs] for column in rows[t + k])
                total, discount = total + discount * reward, discount * GAMMA
                if terminated or truncated:
                    break
            assert float(batch.reward[i]) == pytest.approx(total, abs=1e-5)
            assert float(batch.discount[i]) == pytest.approx(0.0 if terminated else discount, abs=1e-6)
            assert batch.next_obs[i, 0] == next_obs[0]
            assert int(batch.action[i]) == rows[t][1][envs]
            seen.add((t, envs))
    assert len(seen) == 2 * (replay.length - n_step + 1)  # every complete row can be drawn


@pytest.mark.full
def test_priorities_rule_the_draw():
    config = ReplayConfig(
        capacity=32, batch_size=4, prioritized=True, priority_alpha=0.5, priority_beta=0.4, priority_beta_step=0.1
    )
    replay, buffer, _ = played(config, 1, 32)
    error = np.arange(32, dtype=np.float32)
    buffer = replay.update_priorities(buffer, jnp.arange(32), jnp.array(error))
    probability = (error + config.priority_eps) ** 0.5
    probability /= probability.sum()
    assert float(buffer.top) == pytest.approx(31 + config.priority_eps)
    counts = np.zeros(32)
    for seed in range(200):
        after, batch, place = replay.draw(buffer, jax.random.uniform(jax.random.PRNGKey(seed), (2, 64)))
        counts += np.bincount(np.asarray(place), minlength=32)
        expected = (32 * probability[np.asarray(place)]) ** -0.4
        np.testing.assert_allclose(batch.weight, expected / expected.max(), rtol=1e-4)
    assert float(after.beta) == pytest.approx(0.5)
    np.testing.assert_allclose(counts / counts.sum(), probability, atol=0.01)


def test_exploration_is_told_environment_steps(monkeypatch):
    """Not calls: ε of two environments falls as fast as that of one."""

    class TellsTheTime:
        def begin(self, num_envs):
            return jnp.zeros((num_envs, 0))

        def act(self, params, now, draws, key):
            return jnp.broadcast_to(now.env_steps, (2,)), now.noise

    monkeypatch.setattr(FusedOffPolicy, "acting", TellsTheTime())
    env = make_jax_env("CartPole-v1")
    model = make_q_value_model(env.obs_spec, env.action_spec, QModelConfig(hidden_sizes=(4,)))
    config = ReplayConfig(capacity=20, batch_size=4)
    program = FusedOffPolicy(env, PureDQN(DQN, model, env.action_spec, DQNConfig()), 2, Budget(100), buffer=config)

    @partial(jax.jit, compiler_options=QUICK)
    def three_steps(params, key):
        carry = program.begin(params, key)
        return jax.lax.scan(lambda carry, noise: program._act(carry, (noise, None, key)), carry, env.draw(key, (3, 2)))

    carry, _ = three_steps(model.init(np.random.default_rng(0)), jax.random.key(0))
    assert carry.buffer.steps.action[:3].tolist() == [[0, 0], [2, 2], [4, 4]]
