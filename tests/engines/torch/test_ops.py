"""`ops` against the slow float64 oracles, on random rollouts with both kinds of ending."""

import numpy as np
import pytest
import torch

from drl.core.specs import ActionSpec, Distribution
from drl.engines.torch import ops
from drl.testing import oracles


def random_rollout(seed, length=17, envs=3):
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.normal(size=(3, length, envs)).astype(np.float32)
    terminated = rng.random((length, envs)) < 0.15
    truncated = (rng.random((length, envs)) < 0.15) & ~terminated
    return reward, value, next_value, terminated, truncated


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5)])
def test_gae(seed, gamma, lam):
    rollout = random_rollout(seed)
    np.testing.assert_allclose(ops.gae(*rollout, gamma, lam), oracles.gae(*rollout, gamma, lam), atol=2e-5)


def test_gae_by_hand():
    """Two steps, reward 1 each, V = 0.5 everywhere, γ = λ = 0.5, then a termination or a truncation."""
    column = lambda *x: np.array(x, np.float32)[:, None]  # noqa: E731
    flags = {"no": column(0, 0).astype(bool), "end": column(0, 1).astype(bool)}
    half = column(0.5, 0.5)
    dead = ops.gae(column(1, 1), half, half, flags["end"], flags["no"], 0.5, 0.5)
    cut = ops.gae(column(1, 1), half, half, flags["no"], flags["end"], 0.5, 0.5)
    np.testing.assert_allclose(dead[:, 0], [0.75 + 0.25 * 0.5, 0.5])
    np.testing.assert_allclose(cut[:, 0], [0.75 + 0.25 * 0.75, 0.75])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("n", [1, 2, 5, 100])
def test_n_step_returns(seed, n):
    reward, _, next_value, terminated, truncated = random_rollout(seed)
    ours = ops.n_step_returns(reward, next_value, terminated, truncated, 0.9, n)
    np.testing.assert_allclose(
        ours, oracles.n_step_return(reward, next_value, terminated, truncated, 0.9, min(n, len(reward))), atol=2e-5
    )


@pytest.mark.parametrize("seed", range(10))
def test_discounted_and_lambda_returns(seed):
    reward, value, next_value, terminated, truncated = random_rollout(seed)
    ends = (terminated, truncated)
    expected = oracles.discounted_return(reward, next_value, *ends, 0.9)
    np.testing.assert_allclose(ops.discounted_returns(reward, next_value, *ends, 0.9), expected, atol=2e-5)
    one_step = ops.lambda_returns(reward, value, next_value, *ends, 0.9, 0.0)
    np.testing.assert_allclose(one_step, reward + 0.9 * next_value * ~terminated, atol=2e-6)


def test_explained_variance():
    target = np.array([1.0, 2.0, 3.0])
    assert ops.explained_variance(target, target) == 1.0
    assert ops.explained_variance(np.full(3, 2.0), target) == 0.0
    assert np.isnan(ops.explained_variance(target, np.ones(3)))


def test_categorical_and_multi_categorical():
    rng = np.random.default_rng(0)
    params = rng.normal(scale=3, size=(6, 5))
    action = np.stack([rng.integers(2, size=6), rng.integers(3, size=6)], axis=1)
    dist = Distribution.on(ActionSpec("multi_discrete", sizes=(2, 3), shape=(2,)))
    log_prob, entropy = ops.log_prob_and_entropy(dist, torch.tensor(params), torch.tensor(action))
    for row in range(6):
        parts = (params[row, :2], params[row, 2:])
        expected = sum(oracles.categorical_log_prob(p, a) for p, a in zip(parts, action[row], strict=True))
        assert log_prob[row].item() == pytest.approx(expected)
        assert entropy[row].item() == pytest.approx(sum(oracles.categorical_entropy(p) for p in parts))
    single = ops.log_prob_and_entropy(
        Distribution.on(ActionSpec("discrete", sizes=(5,))), torch.tensor(params), torch.tensor(action[:, 1])
    )
    assert single[0][2].item() == pytest.approx(oracles.categorical_log_prob(params[2], action[2, 1]))


def test_bernoulli_is_a_two_class_categorical_per_bit():
    logits = np.array([[0.7, -40.0, 0.0]])
    bits = np.array([[1, 0, 1]])
    dist = Distribution.on(ActionSpec("multi_binary", shape=(3,)))
    log_prob, entropy = ops.log_prob_and_entropy(dist, torch.tensor(logits), torch.tensor(bits))
    pairs = [np.array([0.0, logit]) for logit in logits[0]]
    expected = sum(oracles.categorical_log_prob(p, b) for p, b in zip(pairs, bits[0], strict=True))
    assert log_prob.item() == pytest.approx(expected)
    assert entropy.item() == pytest.approx(sum(oracles.categorical_entropy(p) for p in pairs))


def test_gaussian():
    rng = np.random.default_rng(0)
    mean, log_std, action = rng.normal(size=(3, 4, 2))
    dist = Distribution.on(ActionSpec("box", shape=(2,), low=(-1, -1), high=(1, 1)))
    params = torch.tensor(np.concatenate([mean, log_std], axis=1))
    log_prob, entropy = ops.log_prob_and_entropy(dist, params, torch.tensor(action))
    for row in range(4):
        expected = oracles.gaussian_log_prob(mean[row], log_std[row], action[row])
        assert log_prob[row].item() == pytest.approx(expected)
    np.testing.assert_allclose(entropy.numpy(), (log_std + 0.5 * np.log(2 * np.pi * np.e)).sum(1))


def test_value_clipping_takes_the_larger_error():
    value, old, target = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 3.0])
    # Clipped to 0.2: errors 0.64 and 7.84; unclipped: 0 and 4.
    np.testing.assert_allclose(ops.clipped_value_error(value, old, target, 0.2).numpy(), [0.64, 7.84], rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 2])
def test_fields_of_any_size_become_tensors(rows):
    """A field of bytes puts the numbers after it where no float32 may begin, as in MiniGrid's observations."""
    obs = np.zeros(rows, np.dtype([("image", np.uint8, (3,)), ("vector", np.float32, (2,))]))
    obs["vector"] = [[1, 2]] * rows
    tensors = ops.to_tensors(obs, torch.device("cpu"))
    assert tensors["vector"].tolist() == [[1, 2]] * rows
