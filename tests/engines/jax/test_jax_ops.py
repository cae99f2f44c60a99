"""`ops` against the slow float64 oracles, on random rollouts with both kinds of ending; orders and their parts."""

from functools import partial

import jax
import numpy as np
import pytest
import torch
from engine_twins import QUICK

from drl.core.specs import ActionSpec, Distribution
from drl.engines.jax import ops
from drl.engines.jax.on_policy import minibatch_rows, random_orders
from drl.testing import oracles

quick = partial(jax.jit, compiler_options=QUICK)


def random_rollout(seed, length=17, envs=3):
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.normal(size=(3, length, envs)).astype(np.float32)
    terminated = rng.random((length, envs)) < 0.15
    truncated = (rng.random((length, envs)) < 0.15) & ~terminated
    return reward, value, next_value, terminated, truncated


@quick
def all_returns(reward, value, next_value, terminated, truncated):
    """Every estimate in one program."""
    ends = (terminated, truncated)
    pairs = [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5)]
    gae = [ops.gae(reward, value, next_value, *ends, *pair) for pair in pairs]
    n_step = [ops.n_step_returns(reward, next_value, *ends, 0.9, n) for n in (1, 2, 5, 100)]
    discounted = ops.discounted_returns(reward, next_value, *ends, 0.9)
    return gae, n_step, discounted, ops.lambda_returns(reward, value, next_value, *ends, 0.9, 0.0)


@pytest.mark.parametrize("seed", range(10))
def test_returns(seed):
    reward, _, next_value, terminated, truncated = rollout = random_rollout(seed)
    gae, n_step, discounted, one_step = all_returns(*rollout)
    for mine, pair in zip(gae, [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5)], strict=True):
        np.testing.assert_allclose(mine, oracles.gae(*rollout, *pair), atol=2e-5)
    ends = (terminated, truncated)
    for mine, n in zip(n_step, (1, 2, 5, 17), strict=True):
        np.testing.assert_allclose(mine, oracles.n_step_return(reward, next_value, *ends, 0.9, n), atol=2e-5)
    np.testing.assert_allclose(discounted, oracles.discounted_return(reward, next_value, *ends, 0.9), atol=2e-5)
    np.testing.assert_allclose(one_step, reward + 0.9 * next_value * ~terminated, atol=2e-6)


def test_explained_variance_counts_only_rows_of_weight():
    fit = quick(ops.explained_variance)
    target, weight = np.array([1.0, 2.0, 3.0, 50.0], np.float32), np.array([1, 1, 1, 0], np.float32)
    assert float(fit(target, target, weight)) == 1.0
    assert float(fit(np.float32([2, 2, 2, 9]), target, weight)) == 0.0
    assert np.isnan(fit(target, np.float32([1, 1, 1, 2]), weight))


def test_means_and_normalizing_leave_out_rows_of_no_weight():
    rng = np.random.default_rng(0)
    values, weight = rng.normal(size=9).astype(np.float32), np.float32([1, 1, 0, 1, 0, 1, 1, 0, 1])
    kept = values[weight > 0]
    mean, scaled = quick(lambda v, w: (ops.mean(v, w), ops.normalize(v, w)))(values, weight)
    assert float(mean) == pytest.approx(kept.mean(), rel=1e-5)
    np.testing.assert_allclose(scaled[weight > 0], (kept - kept.mean()) / (kept.std(ddof=1) + 1e-8), rtol=1e-4)
    only = np.float32([0, 0, 0, 1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(ops.normalize(values, only), values)


def test_policies():
    rng = np.random.default_rng(0)
    params = rng.normal(scale=3, size=(6, 5)).astype(np.float32)
    action = np.stack([rng.integers(2, size=6), rng.integers(3, size=6)], axis=1)
    dist = Distribution.on(ActionSpec("multi_discrete", sizes=(2, 3), shape=(2,)))
    log_prob, entropy = quick(partial(ops.log_prob_and_entropy, dist))(params, action)
    for row in range(6):
        parts = (params[row, :2], params[row, 2:])
        expected = sum(oracles.categorical_log_prob(p, a) for p, a in zip(parts, action[row], strict=True))
        assert float(log_prob[row]) == pytest.approx(expected, rel=1e-5)
        assert float(entropy[row]) == pytest.approx(sum(oracles.categorical_entropy(p) for p in parts), rel=1e-4)

    logits, bits = np.float32([[0.7, -40.0, 0.0]]), np.array([[1, 0, 1]])
    log_prob, entropy = quick(
        partial(ops.log_prob_and_entropy, Distribution.on(ActionSpec("multi_binary", shape=(3,))))
    )(logits, bits)
    pairs = [np.array([0.0, logit]) for logit in logits[0]]
    expected = sum(oracles.categorical_log_prob(p, b) for p, b in zip(pairs, bits[0], strict=True))
    assert float(log_prob[0]) == pytest.approx(expected, rel=1e-5)
    assert float(entropy[0]) == pytest.approx(sum(oracles.categorical_entropy(p) for p in pairs), rel=1e-5)

    mean, log_std, action = rng.normal(size=(3, 4, 2)).astype(np.float32)
    dist = Distribution.on(ActionSpec("box", shape=(2,), low=(-1, -1), high=(1, 1)))
    inputs = (np.concatenate([mean, log_std], axis=1), action)
    log_prob, entropy = quick(partial(ops.log_prob_and_entropy, dist))(*inputs)
    for row in range(4):
        expected = oracles.gaussian_log_prob(mean[row], log_std[row], action[row])
        assert float(log_prob[row]) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(entropy, (log_std + 0.5 * np.log(2 * np.pi * np.e)).sum(1), rtol=1e-5)


def test_projection_against_tents():
    rng = np.random.default_rng(0)
    support = np.linspace(-2.0, 3.0, 11, dtype=np.float32)
    probs = rng.dirichlet(np.ones(11), 40).astype(np.float32)
    reward, continues = rng.normal(scale=2, size=40).astype(np.float32), np.float32(rng.choice([0.0, 0.9, 1.0], 40))
    reward[:5], continues[:5] = 0.5, 1.0  # lands exactly on atoms: the mass must not vanish
    ours = quick(partial(ops.project_distribution, support=support))(probs, reward, continues)
    for row in range(40):
        expected = oracles.c51_projection(probs[row], reward[row], continues[row], support)
        np.testing.assert_allclose(ours[row], expected, atol=2e-6)
    np.testing.assert_allclose(ours.sum(-1), 1.0, rtol=1e-5)


def test_quantile_loss_against_loops():
    rng = np.random.default_rng(0)
    quantiles, target = rng.normal(size=(6, 5)).astype(np.float32), rng.normal(scale=3, size=(6, 7)).astype(np.float32)
    ours = quick(partial(ops.quantile_loss, penalty=ops.huber))(quantiles, target)
    for row in range(6):
        assert float(ours[row]) == pytest.approx(oracles.quantile_huber(quantiles[row], target[row]), rel=1e-5)


@pytest.mark.parametrize("count", [10, 1024, 70_000])
def test_random_orders_are_permutations_with_the_invalid_at_the_end(count):
    valid = np.random.default_rng(0).random(count) < 0.8
    run = quick(lambda key, valid: (random_orders(key, 2, None, count), random_orders(key, 2, valid, count)))
    plain, masked = map(np.asarray, run(jax.random.key(0), valid))
    for order in (*plain, *masked):
        np.testing.assert_array_equal(np.sort(order), np.arange(count))
    for order in masked:
        assert valid[order[: valid.sum()]].all()
    assert (plain[0] != plain[1]).any()
    assert abs(np.corrcoef(plain[0], np.arange(count))[0, 1]) < (0.8 if count == 10 else 0.1)


@pytest.mark.parametrize("parts", [1, 3, 4])
@pytest.mark.parametrize("lost", [0, 5])
def test_minibatches_are_what_tensor_split_gives(parts, lost):
    order = np.stack([np.random.default_rng(seed).permutation(18) for seed in range(2)]).astype(np.int32)
    valid = np.arange(18) < 18 - lost  # `order` stands for one in which the last places are invalid rows
    rows, weight = jax.jit(minibatch_rows, static_argnums=1)(order, parts, valid if lost else None)
    for epoch in range(2):
        for number, expected in enumerate(torch.from_numpy(order[epoch, : 18 - lost]).tensor_split(parts)):
            kept = slice(None) if weight is None else np.asarray(weight[number]) > 0
            np.testing.assert_array_equal(rows[epoch, number][kept], expected.numpy())
