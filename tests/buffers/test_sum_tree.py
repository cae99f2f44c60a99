import numpy as np
import pytest

from drl.buffers import sum_tree
from drl.buffers.sum_tree import CompiledSumTree, SumTree


@pytest.fixture(params=["numpy", "numba"])
def make_tree(request):
    if request.param == "numpy":
        return SumTree
    assert type(sum_tree.make_sum_tree(1)) is CompiledSumTree
    return CompiledSumTree


@pytest.mark.parametrize("size", [1, 3, 64, 1000, 20_000])
def test_find_agrees_with_a_running_sum(monkeypatch, make_tree, size):
    monkeypatch.setattr(sum_tree, "TOP", 16)  # several levels also for small trees
    rng = np.random.default_rng(size)
    weights = rng.random(size) * (rng.random(size) < 0.7)
    weights[size // 2] = 1.0
    tree = make_tree(size)
    tree.set(np.arange(size), weights)
    assert tree.total == pytest.approx(weights.sum())
    mass = rng.random(500) * weights.sum()
    expected = np.searchsorted(np.cumsum(weights), mass, side="right")
    found = tree.find(mass)
    assert (weights[found] > 0).all()
    assert (found == expected).mean() > 0.99  # rounding may differ at a boundary


@pytest.mark.parametrize("size", [5, 300])
def test_updates_with_repeats_keep_every_level_right(monkeypatch, make_tree, size):
    monkeypatch.setattr(sum_tree, "TOP", 4)
    rng = np.random.default_rng(0)
    tree, mirror = make_tree(size), np.zeros(size)
    for _ in range(50):
        index, weight = rng.integers(size, size=20), rng.random(20)
        tree.set(index, weight)
        for i, w in zip(index, weight, strict=True):
            mirror[i] = w
        np.testing.assert_array_equal(tree[np.arange(size)], mirror)
        assert tree.total == pytest.approx(mirror.sum())


def test_a_mass_at_the_very_end_finds_a_weight(make_tree):
    tree = make_tree(100)
    tree.set(np.array([3, 7]), np.array([0.1, 0.2]))
    assert tree.find(np.array([tree.total, np.nextafter(tree.total, 0), 0.0])).tolist() == [7, 7, 3]


def test_frequencies_are_proportional(make_tree):
    tree = make_tree(4)
    tree.set(np.arange(4), np.array([1.0, 0.0, 3.0, 6.0]))
    found = tree.find(np.random.default_rng(0).random(40_000) * tree.total)
    np.testing.assert_allclose(np.bincount(found, minlength=4) / 40_000, [0.1, 0, 0.3, 0.6], atol=0.01)
