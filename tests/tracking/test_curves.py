import itertools

import numpy as np
import pytest
from scipy.stats import trim_mean

from drl.tracking.curves import (
    STATISTICS,
    across,
    bin_starts,
    bin_width,
    bootstrap,
    episodes_of,
    grouped,
    iqm,
    names_in,
    smoothing_window,
    thinned,
    trailing_mean,
)


def test_episodes_are_spread_over_their_learning_step():
    rows = [
        {"env_steps": 100, "finished": []},
        {"env_steps": 200, "finished": [[1.0, 5, True, True], [None, 5, True, False]]},
        {"env_steps": 300},
        {"env_steps": 400, "finished": [[3.0, 5, False, False]]},
    ]
    episodes = episodes_of(rows)
    np.testing.assert_array_equal(episodes.env_steps, [150, 200, 400])
    np.testing.assert_array_equal(episodes.returns, [1.0, np.nan, 3.0])
    np.testing.assert_array_equal(episodes.success, [1, 0, 0])
    np.testing.assert_array_equal(episodes.row, [1, 1, 3])
    assert len(episodes_of([]).returns) == 0


def test_trailing_mean_against_the_definition():
    rng = np.random.default_rng(0)
    values = rng.normal(1e6, 1.0, 200)
    values[rng.random(200) < 0.2] = np.nan
    values[:7] = 1e6
    expected = [np.nanmean(values[max(0, i - 6) : i + 1]) for i in range(200)]
    np.testing.assert_allclose(trailing_mean(values, 7), expected, rtol=1e-12)
    assert np.isnan(trailing_mean(np.array([np.nan, 1.0]), 1)[0])


def test_a_groups_band_is_a_students_t_interval_within_what_was_reached():
    values = np.array([1.0, 2.0, 3.0, 10.0, np.nan, 7.0, 7.0, 7.0, 7.0])
    band = grouped(np.arange(9.0), values, np.array([0, 3, 5]))
    np.testing.assert_array_equal(band.x, [2, 4, 8])
    np.testing.assert_array_equal(band.center, [2, 10, 7])
    half = 4.303 * 1.0 / np.sqrt(3)
    np.testing.assert_allclose(band.high, [2 + half, np.nan, 7])
    np.testing.assert_allclose(band.low, [1, np.nan, 7])  # 2 - half is less than any value


@pytest.mark.parametrize("count", range(1, 14))
def test_iqm_is_scipys_trimmed_mean(count):
    values = np.random.default_rng(count).normal(size=(3, count))
    np.testing.assert_allclose(iqm(values), trim_mean(values, 0.25, axis=-1), rtol=1e-12)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_a_bootstrap_resamples_the_seeds(statistic):
    """Against every one of the 4⁴ equally likely resamples of four values."""
    values = np.array([1.0, 2.0, 4.0, 9.0])
    every = STATISTICS[statistic](np.array(list(itertools.product(values, repeat=4))))
    np.testing.assert_allclose(bootstrap(values, statistic), np.percentile(every, (2.5, 97.5)), atol=0.3)
    low, high = bootstrap(np.stack([values, 10 * values, 0 * values]), statistic)
    np.testing.assert_allclose(low[1], 10 * low[0])
    assert low[0] < STATISTICS[statistic](values) < high[0]
    assert low[2] == high[2] == 0


def test_many_seeds_are_bootstrapped_in_parts():
    values = np.random.default_rng(0).normal(size=(700, 6))
    low, high = bootstrap(values)
    again, _ = bootstrap(values[650:])
    np.testing.assert_array_equal(low[650:], again)
    assert low.shape == high.shape == (700,)


def test_bins_have_round_widths_and_at_most_a_hundred():
    for last in (1, 99, 100, 101, 12_345, 307_200, 9_999_999):
        width = bin_width(last)
        assert last / 100 <= width < last / 100 * 1.6
        assert width == float(f"{width:.2g}")
        assert len(bin_starts(np.arange(1.0, min(last, 50_000) + 1), width)) <= 100


def test_runs_are_averaged_where_half_of_them_have_data():
    short = np.array([0.0, 10.0]), np.array([0.0, 10.0])
    long = np.array([5.0, 20.0]), np.array([7.0, 22.0])
    middle = np.array([5.0, 20.0]), np.array([6.0, 21.0])
    band = across([short, long, middle], points=4)
    np.testing.assert_allclose(band.x, [5, 10, 15, 20])  # the short run ends at 10 and cuts nobody
    np.testing.assert_allclose(band.center, [6, 11, 16.5, 21.5])
    np.testing.assert_allclose([band.low[:2], band.high[:2]], [[5, 10], [7, 12]])  # one resample in 27 is the lowest
    assert np.isnan(band.low[2:]).all()  # two runs say nothing of their spread
    assert np.isnan(across([short, long], points=3).low).all()
    assert len(across([short, (np.array([30.0]), np.array([1.0]))]).x) == 0


def test_an_outlier_moves_the_mean_only():
    curves = [(np.array([0.0, 1.0]), np.full(2, float(level))) for level in (1, 2, 3, 4, 1000)]
    centers = {name: across(curves, name, points=2).center[0] for name in STATISTICS}
    assert centers == {"mean": 202.0, "median": 3.0, "iqm": 3.0}


def test_windows_and_thinning():
    assert [smoothing_window(n) for n in (1, 50, 5_000, 200_000)] == [1, 5, 100, 1_000]
    assert thinned(0, 5).tolist() == []
    assert thinned(1, 5).tolist() == [0]
    assert thinned(10**6, 100)[-1] == 10**6 - 1


def test_names_without_a_number_are_left_out():
    rows = [{"learn/a": None, "learn/b": None, "time/x": 1.0}, {"learn/b": 2.0, "learn/c": 1.0}]
    assert names_in(rows, "learn") == ["learn/b", "learn/c"]
