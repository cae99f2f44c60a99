"""Exact values of MovieRec against play, against brute force and by hand."""

import numpy as np
import pytest

from drl.core.errors import BadInput
from drl.games.movie_rec import MovieRecRules, MovieRecVectorEnv, Persona
from drl.games.movie_rec.optimal import (
    BeliefPolicy,
    PersonaOracle,
    belief_bounds,
    constant_returns,
    random_return,
    upper_bound,
)

ENVS = 1024


def _play(choose, sessions=4, seed=0):
    """Mean return and its standard error, over the same number of sessions of each environment."""
    env = MovieRecVectorEnv(ENVS)
    obs, infos = env.reset(seed=seed)
    total, finished = np.zeros(ENVS), np.zeros(ENVS, int)
    while finished.min() < sessions:
        obs, reward, terminated, truncated, infos = env.step(choose(obs, infos["user_persona"]))
        total += np.where(finished < sessions, reward, 0.0)
        finished += terminated | truncated
    return total.mean() / sessions, total.std() / np.sqrt(ENVS) / sessions


def test_the_numbers_of_the_readme():
    assert random_return() == pytest.approx(-8.8117, abs=1e-4)
    assert upper_bound() == pytest.approx(15.7881, abs=1e-4)
    assert constant_returns().max() == pytest.approx(0.4320, abs=1e-4)
    assert constant_returns().argmax() == 2


def test_one_step_by_hand():
    rules = MovieRecRules(max_session_length=1)
    assert upper_bound(rules) == pytest.approx(0.9 * 1.0 - 0.1 * 0.2)
    assert random_return(rules) == pytest.approx((1.2 * rules.click_prob[:, :, 0] - 0.2).mean())


def test_certain_churn_by_hand():
    """Hated by all: clicks come with probability 0.1, then 0.05; five misses in a row end it."""
    rules = MovieRecRules([["A"]], [Persona("x", (), ("A",))], max_session_length=2)
    first = 0.1 * 1.0 - 0.9 * 0.2
    after_click, after_miss = 0.1 * 1.0 - 0.9 * 0.2, 0.05 * 1.0 - 0.95 * 0.2
    assert upper_bound(rules) == random_return(rules) == pytest.approx(first + 0.1 * after_click + 0.9 * after_miss)


def test_random_play_earns_its_exact_value():
    rng = np.random.default_rng(1)
    mean, error = _play(lambda obs, names: rng.integers(20, size=ENVS))
    assert abs(mean - random_return()) < 4 * error


def test_a_constant_movie_earns_its_exact_value():
    mean, error = _play(lambda obs, names: np.full(ENVS, 14), seed=3)
    assert abs(mean - constant_returns()[14]) < 4 * error


def test_the_oracle_earns_the_upper_bound():
    oracle = PersonaOracle()
    mean, error = _play(lambda obs, names: oracle.act(names, obs), seed=5)
    assert abs(mean - upper_bound()) < 4 * error
    assert oracle.act("sci-fi_geek", np.zeros(17)) == 3
    with pytest.raises(BadInput, match="unknown persona 'me'"):
        oracle.act("me", np.zeros(17))


def _brute_force(rules, weights, fatigue, step):
    """The best expected return over all plans that see the clicks: joint weights of personas, no beliefs, no grid."""
    if step == rules.max_session_length or fatigue >= 10:
        return 0.0
    best = -np.inf
    for movie in range(len(rules.catalogue)):
        prob = rules.click_prob[:, movie, fatigue]
        value = 0.0
        for clicked, likelihood in ((0, 1 - prob), (1, prob)):
            joint = weights * likelihood
            value += joint.sum() * rules.reward[clicked, fatigue]
            value += _brute_force(rules, joint, rules.fatigue_after[clicked, fatigue], step + 1)
        best = max(best, value)
    return best


@pytest.mark.parametrize(
    ("personas", "movies", "length"),
    [(3, (2, 3, 5, 14), 5), (2, (0, 5, 17), 6), (1, (0, 5), 6)],
)
def test_the_bounds_enclose_what_brute_force_finds(personas, movies, length):
    full = MovieRecRules()
    rules = MovieRecRules([full.catalogue[m] for m in movies], full.personas[:personas], max_session_length=length)
    truth = _brute_force(rules, np.full(personas, 1 / personas), 0, 0)
    lower, upper = belief_bounds(rules, resolution=24)
    assert lower <= truth + 1e-9
    assert truth <= upper + 1e-9
    assert upper - lower < 0.02
    assert upper <= upper_bound(rules) + 1e-9


def test_interpolation_reproduces_whatever_is_linear():
    """Corners and weights of any belief give the belief back, for two to four personas."""
    rng = np.random.default_rng(0)
    for count, resolution in ((2, 9), (3, 7), (4, 5)):
        rules = MovieRecRules(
            personas=[Persona(f"p{i}", likes=("Action",)) for i in range(count)], max_session_length=1
        )
        policy = BeliefPolicy(rules, resolution)
        points, place = policy._grid()
        beliefs = np.concatenate([rng.dirichlet(np.full(count, 0.3), 200), np.eye(count), policy.prior[None]])
        cell, weight = policy._corners(beliefs)
        table = np.full(((resolution + 1) ** (count - 1), count), np.nan)
        table[place] = points
        used = np.where(weight[..., None] > 0, table[cell], 0.0)
        assert np.allclose((used * weight[..., None]).sum(axis=1), beliefs)
        assert np.allclose(weight.sum(axis=1), 1.0)
        assert weight.min() >= 0.0


def test_a_learned_belief_earns_the_lower_bound():
    """The belief policy in the real environment, with a shorter session so that the test stays quick."""
    rules = MovieRecRules(max_session_length=8)
    policy = BeliefPolicy(rules, resolution=16)
    lower, upper = policy.expected_return(), policy.upper_bound
    assert lower <= upper <= upper_bound(rules)
    env = MovieRecVectorEnv(4 * ENVS, max_session_length=8)
    obs, _ = env.reset(seed=9)
    belief, total = np.tile(policy.prior, (4 * ENVS, 1)), np.zeros(4 * ENVS)
    alive = np.ones(4 * ENVS, bool)
    for step in range(8):
        fatigue = np.rint(10 * obs[:, -2]).astype(int)
        movie = policy.act(belief, fatigue, step)
        obs, reward, terminated, truncated, infos = env.step(movie)
        total += np.where(alive, reward, 0.0)
        alive &= ~(terminated | truncated)
        clicked = infos["is_clicked"]
        belief = policy.update(belief, fatigue, movie, clicked)
    assert not alive.any()
    assert abs(total.mean() - lower) < 4 * total.std() / np.sqrt(len(total))


def test_a_grid_too_fine_is_refused():
    for resolution in (0, 1000):
        with pytest.raises(BadInput, match="expected 1 to 140 for 3 personas"):
            BeliefPolicy(resolution=resolution)
