import math

import numpy as np
import pytest

from drl.core.configs import ActionNoiseConfig, EpsilonGreedyConfig, NoSettings, RandomStartConfig
from drl.core.specs import ActionSpec
from drl.core.state_files import read_state, write_state
from drl.engines.numpy.exploration import ActionNoise, EpsilonGreedy, RandomStart, make_exploration

DISCRETE = ActionSpec("discrete", sizes=(4,))
MULTI = ActionSpec("multi_discrete", sizes=(2, 3), shape=(2,))
BITS = ActionSpec("multi_binary", shape=(3,), dtype="int8")
BOX = ActionSpec("box", shape=(2,), low=(-2.0, 0.0), high=(2.0, 10.0), dtype="float32")
COUNT = 40_000


def generator():
    return np.random.default_rng(0)


def some_actions(spec, count=COUNT):
    return np.zeros((count, *spec.policy_shape), spec.policy_dtype)


def noise_at(sigma=0.1, theta=1.0, step=0, random_steps=0):
    settings = {"noise": "ornstein_uhlenbeck", "noise_theta": theta, "noise_sigma": sigma}
    noise = ActionNoise(ActionNoiseConfig(**settings, random_steps=random_steps), BOX)
    noise.at(step)
    return noise


def constant_epsilon(epsilon):
    return EpsilonGreedy(EpsilonGreedyConfig(epsilon_start=epsilon, epsilon_schedule="constant"), DISCRETE)


# ── epsilon greedy ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_is_the_share_of_uniformly_random_actions(epsilon):
    explore = constant_epsilon(epsilon)
    explore.at(0)
    counts = np.bincount(explore(some_actions(DISCRETE), generator()), minlength=4) / COUNT
    np.testing.assert_allclose(counts, [1 - 0.75 * epsilon, *[0.25 * epsilon] * 3], atol=0.012)


def test_epsilon_greedy_draws_uniformly_among_legal_actions():
    explore = constant_epsilon(0.5)
    explore.at(0)
    mask = np.tile([True, False, True, True], (COUNT, 1))
    counts = np.bincount(explore(some_actions(DISCRETE), generator(), mask), minlength=4) / COUNT
    np.testing.assert_allclose(counts, [0.5 + 0.5 / 3, 0.0, 0.5 / 3, 0.5 / 3], atol=0.012)
    assert counts[1] == 0


def test_each_environment_has_its_own_mask():
    explore = constant_epsilon(1.0)
    explore.at(0)
    only = generator().integers(4, size=1000)
    np.testing.assert_array_equal(explore(some_actions(DISCRETE, 1000), generator(), np.eye(4, dtype=bool)[only]), only)


def test_at_sets_and_returns_epsilon():
    settings = {"epsilon_start": 1.0, "epsilon_end": 0.0, "epsilon_decay": 100.0, "epsilon_schedule": "linear"}
    config = EpsilonGreedyConfig(**settings)
    explore = EpsilonGreedy(config, DISCRETE)
    assert explore.at(25) == {"epsilon": 0.75}
    assert explore.epsilon == 0.75
    assert explore.at(200) == {"epsilon": 0.0}
    greedy = some_actions(DISCRETE)
    assert explore(greedy, generator()) is greedy


# ── a random start ────────────────────────────────────────────────────────────────────────────────────────────────


def test_random_actions_fill_a_box():
    drawn = RandomStart(RandomStartConfig(random_steps=1), BOX)(some_actions(BOX), generator())
    assert drawn.dtype == np.float32
    for column in drawn.T:
        np.testing.assert_allclose(np.histogram(column, 10, (-1, 1))[0] / COUNT, 0.1, atol=0.012)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.02


@pytest.mark.parametrize("spec", [DISCRETE, MULTI, BITS], ids=lambda spec: spec.kind)
def test_random_actions_are_uniform(spec):
    drawn = RandomStart(RandomStartConfig(random_steps=1), spec)(some_actions(spec), generator())
    assert drawn.shape == (COUNT, *spec.policy_shape)
    sizes, columns = spec.sizes or (2,) * spec.entries, drawn.reshape(COUNT, -1).T
    for size, column in zip(sizes, columns, strict=True):
        np.testing.assert_allclose(np.bincount(column, minlength=size) / COUNT, 1 / size, atol=0.012)


@pytest.mark.parametrize(
    ("spec", "mask", "expected"),
    [
        (DISCRETE, [0, 1, 0, 1], [[0, 0.5, 0, 0.5]]),
        (MULTI, [1, 1, 1, 0, 1], [[0.5, 0.5], [0.5, 0, 0.5]]),
        (BITS, [1, 1, 1, 0, 0, 1], [[0.5, 0.5], [1, 0], [0, 1]]),  # (off, on) for each bit
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_random_actions_are_uniform_among_legal_ones(spec, mask, expected):
    legal = np.tile(np.array(mask, bool), (COUNT, 1))
    drawn = RandomStart(RandomStartConfig(random_steps=1), spec)(some_actions(spec), generator(), legal)
    for column, shares in zip(drawn.reshape(COUNT, -1).T, expected, strict=True):
        counts = np.bincount(column, minlength=len(shares)) / COUNT
        np.testing.assert_allclose(counts, shares, atol=0.012)
        np.testing.assert_array_equal(counts == 0, np.equal(shares, 0))


@pytest.mark.parametrize("spec", [DISCRETE, MULTI, BITS, BOX], ids=lambda spec: spec.kind)
def test_the_random_start_ends_exactly_at_its_step(spec):
    explore, chosen = RandomStart(RandomStartConfig(random_steps=50), spec), some_actions(spec, 1000)
    for step, is_random in ((0, True), (49, True), (50, False), (51, False)):
        assert explore.at(step) == {}
        answer = explore(chosen, generator())
        assert (answer is not chosen) == is_random
        assert np.any(answer != chosen) == is_random


def test_no_random_steps_are_none_at_all():
    chosen = some_actions(BOX, 5)
    assert RandomStart(RandomStartConfig(random_steps=0), BOX)(chosen, generator()) is chosen


# ── noise on actions ──────────────────────────────────────────────────────────────────────────────────────────────


def roll(noise, steps=4000, envs=4, around=0.0):
    """Actions `[T, N, 2]` that noise makes of a policy that always answers `around`."""
    rng, chosen = generator(), np.full((envs, 2), around, np.float32)
    return np.stack([noise(chosen, rng) for _ in range(steps)])


def autocorrelation(series, lag):
    return np.corrcoef(series[:-lag].ravel(), series[lag:].ravel())[0, 1]


@pytest.mark.parametrize("sigma", [0.05, 0.2])
def test_gaussian_noise_is_independent_with_deviation_sigma(sigma):
    series = roll(noise_at(sigma))
    assert series.std() == pytest.approx(sigma, rel=0.03)
    assert abs(series.mean()) < 0.03 * sigma
    assert abs(autocorrelation(series, 1)) < 0.02  # over time
    across = np.corrcoef(series.reshape(len(series), -1).T)  # over environments and entries
    assert np.abs(across - np.eye(8)).max() < 0.08


@pytest.mark.parametrize("theta", [0.1, 0.5])
def test_ornstein_uhlenbeck_noise_forgets_theta_per_step(theta):
    series, keeps = roll(noise_at(0.05, theta), steps=10_000), 1 - theta
    for lag in (1, 2, 5):
        assert autocorrelation(series[100:], lag) == pytest.approx(keeps**lag, abs=0.04)
    assert series[100:].std() == pytest.approx(0.05 / math.sqrt(1 - keeps**2), rel=0.06)
    assert series[0].std() < 0.1  # begins at 0, not in its stationary distribution


def test_noise_begins_anew_where_an_episode_does():
    kept, begun = noise_at(0.05, theta=0.0), noise_at(0.05, theta=0.0)  # a random walk: forgets nothing by itself
    for noise in (kept, begun):
        roll(noise, 50)
    over = np.array([True, False, True, False])
    begun.begin(over)
    rngs = generator(), generator()
    chosen = np.zeros((4, 2), np.float32)
    walked, anew = kept(chosen, rngs[0]), begun(chosen, rngs[1])
    np.testing.assert_array_equal(anew[~over], walked[~over])
    fresh = np.float32(0.05) * generator().standard_normal((4, 2), np.float32)
    np.testing.assert_allclose(anew[over], fresh[over], rtol=1e-6)
    assert (walked[over] != anew[over]).all()
    begun.begin()
    np.testing.assert_allclose(begun(chosen, generator()), fresh, rtol=1e-6)


def test_begin_before_the_first_action_changes_nothing():
    noise = noise_at(0.05, theta=0.1)
    noise.begin(np.array([True, False]))
    assert roll(noise, 3, envs=2).shape == (3, 2, 2)


@pytest.mark.parametrize("around", [-0.9, 0.95])
def test_noisy_actions_stay_within_the_bounds(around):
    series = roll(noise_at(0.5), 500, around=around)
    assert series.dtype == np.float32
    assert np.abs(series).max() == 1.0
    assert (np.abs(series) < 1.0).any()


def test_clipping_does_not_enter_the_noise_itself():
    """x ← (1 − θ) x + σ ε goes on beyond the bounds; only the action is clipped."""
    inner, outer = roll(noise_at(0.3, 0.1), 200), roll(noise_at(0.3, 0.1), 200, around=0.8)
    inside = np.abs(inner) < 1.0
    np.testing.assert_allclose(outer[inside], np.clip(inner[inside] + np.float32(0.8), -1, 1), atol=1e-6)


def test_sigma_follows_its_schedule():
    config = ActionNoiseConfig(noise_sigma=0.4, noise_sigma_end=0.0, noise_decay=100.0, random_steps=0)
    noise = ActionNoise(config, BOX)
    assert noise.sigma == 0.4
    for step, sigma in ((0, 0.4), (50, 0.2), (100, 0.0), (500, 0.0)):
        assert noise.at(step) == {"noise_sigma": pytest.approx(sigma)}
        assert roll(noise, 1000).std() == pytest.approx(sigma, rel=0.1)


def test_noise_waits_for_the_random_start_to_end():
    noise = noise_at(0.01, random_steps=10)
    for step, is_random in ((9, True), (10, False)):
        noise.at(step)
        assert (roll(noise, 100).std() > 0.3) == is_random


# ── from configs, and to files ────────────────────────────────────────────────────────────────────────────────────


def test_nothing_to_explore_by():
    assert make_exploration(NoSettings(), DISCRETE) is None


@pytest.mark.parametrize(("shape", "halfway"), [("exponential", 0.1 + 0.8 * math.exp(-0.5)), ("linear", 0.5)])
def test_epsilon_greedy_from_a_config(shape, halfway):
    config = EpsilonGreedyConfig(epsilon_start=0.9, epsilon_end=0.1, epsilon_decay=200.0, epsilon_schedule=shape)
    explore = make_exploration(config, DISCRETE)
    assert isinstance(explore, EpsilonGreedy)
    assert explore.num_actions == 4
    assert explore.at(0) == {"epsilon": pytest.approx(0.9)}
    assert explore.at(100) == {"epsilon": pytest.approx(halfway)}
    assert explore.at(1_000_000) == {"epsilon": pytest.approx(0.1)}


def test_noisy_networks_need_no_epsilon_after_the_first_update():
    explore = make_exploration(EpsilonGreedyConfig(epsilon_end=0.3), DISCRETE, noisy=True)
    explore.begin_training(40)
    assert [explore.at(step)["epsilon"] for step in (0, 20, 40, 400)] == [1.0, 0.5, 0.0, 0.0]


def test_random_start_from_a_config():
    explore = make_exploration(RandomStartConfig(random_steps=7), BOX)
    assert isinstance(explore, RandomStart)
    assert explore.random_steps == 7
    assert not explore.carries


@pytest.mark.parametrize(
    ("settings", "theta", "sigmas"),
    [
        ({}, 1.0, (0.1, 0.1)),
        ({"noise": "ornstein_uhlenbeck", "noise_theta": 0.3, "noise_sigma": 0.2}, 0.3, (0.2, 0.2)),
        ({"noise_sigma": 0.5, "noise_sigma_end": 0.1, "noise_decay": 100.0, "noise_theta": 0.3}, 1.0, (0.5, 0.3)),
    ],
    ids=["gaussian", "ornstein_uhlenbeck", "falling"],
)
def test_action_noise_from_a_config(settings, theta, sigmas):
    noise = make_exploration(ActionNoiseConfig(random_steps=3, **settings), BOX)
    assert isinstance(noise, ActionNoise)
    assert noise.carries
    assert noise.theta == theta
    assert [noise.at(step)["noise_sigma"] for step in (0, 50)] == pytest.approx(sigmas)
    noise.at(2)
    assert noise.start.random
    noise.at(3)
    assert not noise.start.random


EXPLORATIONS = {
    "epsilon_greedy": (EpsilonGreedyConfig(), DISCRETE),
    "random_start": (RandomStartConfig(random_steps=40), MULTI),
    "gaussian": (ActionNoiseConfig(), BOX),
    "ornstein_uhlenbeck": (ActionNoiseConfig(noise="ornstein_uhlenbeck", random_steps=10), BOX),
    "still_random": (ActionNoiseConfig(random_steps=100), BOX),
}


@pytest.mark.parametrize("name", EXPLORATIONS)
def test_state_round_trips(tmp_path, name):
    """What was saved acts like what was not, without being told the time again."""
    config, spec = EXPLORATIONS[name]
    saved, loaded = make_exploration(config, spec), make_exploration(config, spec)
    chosen, rng = some_actions(spec, 6), generator()
    for step in (50, 51, 52):
        saved.at(step)
        saved(chosen, rng)
    write_state(tmp_path / "state", {"exploration": saved.state_dict()})
    loaded.load_state_dict(read_state(tmp_path / "state")["exploration"])
    rngs = generator(), generator()
    for _ in range(20):
        np.testing.assert_array_equal(saved(chosen, rngs[0]), loaded(chosen, rngs[1]))
    assert rngs[0].bit_generator.state == rngs[1].bit_generator.state


def test_a_state_does_not_change_with_what_it_was_taken_from():
    noise = noise_at(0.1, theta=0.1)
    roll(noise, 3)
    state = noise.state_dict()
    kept = state["noise"].copy()
    roll(noise, 3)
    np.testing.assert_array_equal(state["noise"], kept)
