# ruff: noqa: NPY002 (rliable draws with the legacy generator)
"""Aggregates, profiles and intervals agree with rliable and with closed forms."""

import numpy as np
import pytest

from drl.analysis import aggregates
from drl.analysis.aggregates import draw_runs, estimate, in_chunks, interval, redrawn
from drl.tracking.curves import Estimate

pytestmark = pytest.mark.full
library = pytest.importorskip("rliable.library")
metrics = pytest.importorskip("rliable.metrics")

SHAPES = [(5, 1), (7, 3), (10, 6), (4, 4)]


def scores(runs, envs, seed=0, ties=False):
    drawn = np.random.default_rng(seed).normal(0.5, 1.0, size=(runs, envs))
    return drawn.round(0) if ties else drawn


def drawn_as_rliable(shape, draws, seed):
    """The indices that rliable draws after `np.random.seed(seed)`."""
    np.random.seed(seed)
    return np.array([np.random.choice(shape[0], shape, replace=True) for _ in range(draws)])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (aggregates.iqm, metrics.aggregate_iqm),
        (aggregates.median, metrics.aggregate_median),
        (aggregates.mean, metrics.aggregate_mean),
        (aggregates.optimality_gap, metrics.aggregate_optimality_gap),
    ],
)
def test_aggregates_and_intervals_are_those_of_rliable(shape, ours, theirs):
    table, draws = scores(*shape), 200
    found = estimate(ours, (table, drawn_as_rliable(shape, draws, seed=3)))
    np.random.seed(3)
    values, ends = library.get_interval_estimates({"a": table}, lambda x: np.array([theirs(x)]), reps=draws)
    expected = Estimate(values["a"][0], *ends["a"][:, 0])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("runs", [(6, 6), (4, 9)])
def test_the_probability_of_improvement_is_that_of_rliable(runs, ties):
    first, second = scores(runs[0], 3, 1, ties), scores(runs[1], 3, 2, ties)
    np.random.seed(5)
    drawn = [
        [np.random.choice(each.shape[0], each.shape, replace=True) for each in (first, second)] for _ in range(200)
    ]
    samples = (first, np.array([a for a, _ in drawn])), (second, np.array([b for _, b in drawn]))
    found = estimate(aggregates.probability_of_improvement, *samples, size=9)
    np.random.seed(5)
    values, ends = library.get_interval_estimates(
        {"pair": (first, second)}, lambda x, y: np.array([metrics.probability_of_improvement(x, y)]), reps=200
    )
    np.testing.assert_allclose(found, [values["pair"][0], *ends["pair"][:, 0]], rtol=0, atol=1e-6)


def test_performance_profiles_are_those_of_rliable():
    table, thresholds = scores(6, 4, ties=True), np.linspace(-2, 2, 9)
    drawn = drawn_as_rliable(table.shape, 100, seed=1)
    np.random.seed(1)
    profiles, ends = library.create_performance_profile({"a": table}, thresholds, reps=100)
    share = aggregates.performance_profile(table, thresholds)
    np.testing.assert_allclose(share, profiles["a"], atol=1e-6)
    found = in_chunks(lambda x: aggregates.performance_profile(x, thresholds), (table, drawn))
    np.testing.assert_allclose(interval(found), ends["a"], atol=1e-6)


def test_draws_stay_in_their_environment():
    table = np.arange(12.0).reshape(4, 3)
    drawn = draw_runs(np.random.default_rng(0), 4, 3, draws=50)
    again = redrawn(table, drawn)
    assert again.shape == (50, 4, 3)
    assert (again % 3 == np.arange(3)).all()  # column j holds j, j + 3, j + 6, …
    assert len(np.unique(again[:, :, 0])) == 4
    assert (drawn[:, :, 0] != drawn[:, :, 1]).any()  # environments are drawn by themselves


def test_chunks_change_nothing(monkeypatch):
    table, drawn = scores(5, 2), draw_runs(np.random.default_rng(0), 5, 2, draws=99)
    whole = in_chunks(aggregates.iqm, (table, drawn))
    monkeypatch.setattr("drl.analysis.aggregates.CHUNK", 70)
    np.testing.assert_array_equal(in_chunks(aggregates.iqm, (table, drawn)), whole)


def test_a_shift_moves_the_interval_by_as_much():
    table, drawn = scores(8, 2), draw_runs(np.random.default_rng(0), 8, 2, draws=500)
    before, after = (estimate(aggregates.iqm, (each, drawn)) for each in (table, table + 3.0))
    np.testing.assert_allclose(after, np.array(before) + 3.0)


def test_one_run_has_no_interval():
    one = np.array([[1.0, 2.0]])
    assert estimate(aggregates.mean, (one, np.zeros((10, 1, 2), int))) == Estimate(1.5, None, None)


def test_the_interval_of_a_mean_is_as_long_as_the_normal_one():
    table = np.random.default_rng(0).normal(size=(200, 1))
    found = estimate(aggregates.mean, (table, draw_runs(np.random.default_rng(1), 200, 1)))
    half = 1.96 * table.std() / 200**0.5
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.05)
