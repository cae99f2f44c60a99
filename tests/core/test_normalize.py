import numpy as np

from drl.core.normalize import ObsNormalizer, RewardScaler, RunningStats


def test_moments_of_parts_equal_moments_of_the_whole():
    data = np.random.default_rng(0).normal(3.0, 2.0, (1000, 4))
    running_stats = RunningStats((4,))
    for part in np.split(data, [1, 10, 11, 500]):
        running_stats.update(part)
    running_stats.update(data[:0])
    np.testing.assert_allclose(running_stats.mean, data.mean(0))
    np.testing.assert_allclose(running_stats.variance, data.var(0))


def test_normalized_observations_are_standard_and_survive_a_round_trip():
    data = np.random.default_rng(0).normal(-5.0, 3.0, (4096, 2)).astype(np.float32)
    normalizer = ObsNormalizer((2,))
    np.testing.assert_array_equal(
        normalizer(data[:3]), np.clip(data[:3], -10, 10)
    )  # before the first update: unchanged
    normalizer.update(data)
    assert abs(normalizer(data).mean()) < 1e-3
    assert abs(normalizer(data).std() - 1) < 1e-3
    other = ObsNormalizer((2,))
    other.load_state_dict(normalizer.state_dict())
    np.testing.assert_array_equal(other(data), normalizer(data))


def test_reward_scale_is_the_deviation_of_the_discounted_return():
    gamma, rng = 0.9, np.random.default_rng(1)
    reward = rng.normal(size=(50, 3))
    ended, valid = rng.random((50, 3)) < 0.1, rng.random((50, 3)) < 0.9
    scaler = RewardScaler(3, gamma)
    for part in (slice(0, 20), slice(20, 50)):  # state must carry over between rollouts
        scaler.update(reward[part], ended[part], valid[part])
    seen = []
    for n in range(3):
        running = 0.0
        for t in range(50):
            if valid[t, n]:
                running = gamma * running + reward[t, n]
                seen.append(running)
                running = 0.0 if ended[t, n] else running
    np.testing.assert_allclose(scaler.running_stats.variance, np.var(seen))
    np.testing.assert_allclose(scaler(np.array([0.5])), 0.5 / np.std(seen), rtol=1e-5)
