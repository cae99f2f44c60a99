import numpy as np

from drl.tracking.curves import across, episodes_of, grouped, names_in, smoothing_window, thinned, trailing_mean


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


def test_a_band_is_a_students_t_interval():
    values = np.array([1.0, 2.0, 3.0, 10.0, np.nan, 7.0])
    band = grouped(np.arange(6.0), values, np.array([0, 3, 5]))
    np.testing.assert_array_equal(band.x, [2, 4, 5])
    np.testing.assert_array_equal(band.mean, [2, 10, 7])
    np.testing.assert_allclose(band.half, [4.303 * 1.0 / np.sqrt(3), np.nan, np.nan])
    assert np.isnan(grouped(np.arange(6.0), values, np.array([0, 3, 5]), least=4).half).all()


def test_runs_are_averaged_where_half_of_them_have_data():
    short = np.array([0.0, 10.0]), np.array([0.0, 10.0])
    long = np.array([5.0, 20.0]), np.array([7.0, 22.0])
    middle = np.array([5.0, 20.0]), np.array([6.0, 21.0])
    band = across([short, long, middle], points=4)
    np.testing.assert_allclose(band.x, [5, 10, 15, 20])  # the short run ends at 10 and cuts nobody
    np.testing.assert_allclose(band.mean, [6, 11, 16.5, 21.5])
    np.testing.assert_allclose(band.half[:2], 4.303 / np.sqrt(3), rtol=1e-3)  # t(0.975, 2 degrees), deviation 1
    assert np.isnan(band.half[2:]).all()
    assert np.isnan(across([short, long], points=3).half).all()  # two runs say nothing of their spread
    assert len(across([short, (np.array([30.0]), np.array([1.0]))]).x) == 0


def test_windows_and_thinning():
    assert [smoothing_window(n) for n in (1, 50, 5_000, 200_000)] == [1, 5, 100, 1_000]
    assert thinned(0, 5).tolist() == []
    assert thinned(1, 5).tolist() == [0]
    assert thinned(10**6, 100)[-1] == 10**6 - 1


def test_names_without_a_number_are_left_out():
    rows = [{"learn/a": None, "learn/b": None, "time/x": 1.0}, {"learn/b": 2.0, "learn/c": 1.0}]
    assert names_in(rows, "learn") == ["learn/b", "learn/c"]
