import numpy as np
import pytest

from drl.core.specs import ActionSpec, Distribution
from drl.engines.numpy import distributions

CATEGORICAL = Distribution.on(ActionSpec("discrete", sizes=(3,)))
MULTI = Distribution.on(ActionSpec("multi_discrete", sizes=(2, 3), shape=(2,)))
BITS = Distribution.on(ActionSpec("multi_binary", shape=(2,), dtype="int8"))
BOX = Distribution.on(ActionSpec("box", shape=(2,), low=(-2.0, 0.0), high=(2.0, 10.0), dtype="float32"))


def frequencies(spec, params, temperature=1.0, draws=40_000):
    rows = np.tile(np.asarray(params, np.float32), (draws, 1))
    return distributions.sample(spec, rows, np.random.default_rng(0), temperature)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_categorical_frequencies_are_the_softmax(temperature):
    logits = np.array([0.0, 1.0, -1.0])
    expected = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    counts = np.bincount(frequencies(CATEGORICAL, logits, temperature), minlength=3) / 40_000
    np.testing.assert_allclose(counts, expected, atol=0.01)


def test_multi_categorical_entries_are_independent_softmaxes():
    params = np.array([0.0, 2.0, 1.0, 0.0, -1.0])
    drawn = frequencies(MULTI, params)
    first, second = distributions.probabilities(MULTI, params[None])
    np.testing.assert_allclose(np.bincount(drawn[:, 0]) / len(drawn), first[0], atol=0.01)
    np.testing.assert_allclose(np.bincount(drawn[:, 1]) / len(drawn), second[0], atol=0.01)


def test_bernoulli_frequencies_are_the_sigmoid():
    drawn = frequencies(BITS, [1.0, -2.0])
    np.testing.assert_allclose(drawn.mean(0), 1 / (1 + np.exp([-1.0, 2.0])), atol=0.01)


def test_gaussian_moments_and_temperature():
    drawn = frequencies(BOX, [1.0, -1.0, 0.0, -1.0], temperature=0.5)
    np.testing.assert_allclose(drawn.mean(0), [1.0, -1.0], atol=0.01)
    np.testing.assert_allclose(drawn.std(0), [0.5, 0.5 * np.exp(-1)], atol=0.01)


@pytest.mark.parametrize(
    ("spec", "params", "expected"),
    [
        (CATEGORICAL, [0.0, 2.0, 1.0], 1),
        (MULTI, [3.0, 0.0, 0.0, 0.0, 9.0], [0, 2]),
        (BITS, [0.1, -0.1], [1, 0]),
        (BOX, [0.3, -0.4, 5.0, 5.0], [0.3, -0.4]),
    ],
)
def test_mode(spec, params, expected):
    np.testing.assert_allclose(distributions.mode(spec, np.array([params], np.float32))[0], expected)
