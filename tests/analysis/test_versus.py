"""Who is better: the label test, the numbers of seeds, and how often the answer is wrong."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from drl.analysis import versus as tests
from drl.analysis.versus import Contestant, Versus, all_against_all, holm
from drl.tracking.curves import Estimate

DRAWS = 400  # of the bootstrap, in simulations


def contestant(scores, first_seed=0):
    scores = np.asarray(scores, float).reshape(len(scores), -1)
    return Contestant(scores, (tuple(range(first_seed, first_seed + len(scores))),) * scores.shape[1])


def versus(first, second, shared=False, draws=DRAWS):
    """Of two arrays of scores."""
    pair = {"A": contestant(first), "B": contestant(second, first_seed=0 if shared else 1000)}
    return all_against_all(pair, draws=draws)[0]


@pytest.mark.parametrize("runs", [(4, 4), (5, 6)])
def test_the_exact_test_is_that_of_mann_and_whitney(runs):
    rng = np.random.default_rng(0)
    for _ in range(20):
        first, second = rng.normal(size=(runs[0], 1)), rng.normal(0.5, 1, size=(runs[1], 1))
        expected = stats.mannwhitneyu(first[:, 0], second[:, 0], method="exact").pvalue
        assert tests.label_test(first, second, False, rng).p_value == pytest.approx(expected, abs=1e-9)


def test_the_paired_test_counts_swaps():
    """All swaps of labels within pairs, by hand."""
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(6, 2)), rng.normal(size=(6, 2))
    ranks = tests.midranks(np.concatenate([first, second]))

    def probability(swaps):
        own = np.where(np.reshape(swaps, (6, 2)), ranks[6:], ranks[:6])
        return ((own.sum(axis=0) - 21) / 36).mean()

    observed = abs(probability([0] * 12) - 0.5)
    extreme = [abs(probability(swaps) - 0.5) >= observed - 1e-9 for swaps in itertools.product((0, 1), repeat=12)]
    assert tests.label_test(first, second, True, rng).p_value == pytest.approx(np.mean(extreme))


def test_shuffling_at_random_is_close_to_all_ways(monkeypatch):
    rng = np.random.default_rng(2)
    first, second = rng.normal(size=(6, 1)), rng.normal(0.8, 1, size=(6, 1))
    for paired in (False, True):
        exact = tests.label_test(first, second, paired, rng)
        with monkeypatch.context() as patch:
            patch.setattr(tests, "SHUFFLES", 60 if paired else 900)
            drawn = [tests.label_test(first, second, paired, rng) for _ in range(60)]
        assert np.mean([each.p_value for each in drawn]) == pytest.approx(exact.p_value, abs=0.03)
        assert np.mean([each.spread for each in drawn]) == pytest.approx(exact.spread, rel=0.05)


@pytest.mark.parametrize(("runs", "envs", "paired"), [((4, 4), 1, False), ((6, 6), 1, True), ((3, 3), 2, True)])
def test_the_smallest_p_value_is_reached_by_full_separation(runs, envs, paired):
    first, second = np.ones((runs[0], envs)) * 5 + np.arange(runs[0])[:, None], np.zeros((runs[1], envs))
    second = second + np.arange(runs[1])[:, None] / 10
    found = tests.label_test(first, second, paired, np.random.default_rng(0)).p_value
    assert found == pytest.approx(tests.smallest_p(runs, envs, paired))


def test_many_runs_on_many_environments_have_a_smallest_p_value():
    assert tests.smallest_p((18, 18), 57, paired=True) == 0.0
    assert tests.smallest_p((9, 9), 200, paired=False) == 0.0


def test_the_spread_is_that_of_the_rank_sum():
    rng = np.random.default_rng(3)
    found = tests.label_test(rng.normal(size=(6, 1)), rng.normal(size=(6, 1)), False, rng)
    assert found.spread == pytest.approx(math.sqrt((6 + 6 + 1) / (12 * 6 * 6)))


def test_a_permuted_label_changes_the_winner():
    """Sabotage: the same scores under the other's name."""
    low, high = np.arange(6.0), np.arange(6.0) + 4
    assert versus(high, low).winner == "A"
    assert versus(low, high).winner == "B"
    mixed = np.where(np.arange(6) % 2, low, high)
    assert versus(mixed, low + high - mixed).winner is None


def test_a_shifted_score_changes_the_answer():
    scores = np.random.default_rng(0).normal(size=8)
    assert versus(scores, scores + 1e-3).winner is None
    assert versus(scores, scores + 10).winner == "B"


def test_shared_seeds_find_a_small_difference():
    """Seeds differ much, and B is a little better with each of them."""
    of_seed = np.random.default_rng(0).normal(size=10) * 100
    assert versus(of_seed, of_seed + 1, shared=True).winner == "B"
    assert versus(of_seed, of_seed + 1, shared=False).winner is None


def test_too_few_pairs_are_tested_as_unpaired():
    low, high = np.arange(5.0), np.arange(5.0) + 10
    found = versus(low, high, shared=True)
    assert (found.pairs, found.paired_test, found.winner) == (5, False, "B")
    assert versus(np.arange(6.0), np.arange(6.0) + 10, shared=True).paired_test


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_three_seeds_never_crown_a_winner(runs):
    found = versus(np.arange(runs) + 100.0, np.arange(float(runs)))
    assert found.winner is None
    assert found.seeds_needed >= 4
    assert "undecided" in found.sentence()
    assert f"about {found.seeds_needed} seeds each would decide" in found.sentence()


def test_a_winner_has_not_the_lower_mean():
    """B scores higher more often, but fails completely now and then."""
    a = np.linspace(9, 10, 40)
    b = np.where(np.arange(40) < 5, -500.0, np.linspace(11, 12, 40))
    found = versus(a, b)
    assert found.p_value < 0.05
    assert found.probability.high < 0.5
    assert found.winner is None
    assert "has the lower mean" in found.sentence()
    assert found.seeds_needed > 40  # those that there are have not decided


def test_a_sentence_names_the_winner_first():
    numbers = {"runs": (9, 9), "iqm_difference": Estimate(-1, -2, -0.5), "mean_difference": -1.0, "p_value": 0.01}
    kept = {"pairs": 9, "paired_test": True, "seeds_needed": 6}
    pair = Versus(first="A", second="B", probability=Estimate(0.1, 0.05, 0.2), **numbers, **kept)
    assert pair.sentence() == "B is better than A (probability 0.90, 95 % interval 0.80 to 0.95, p = 0.01)"


def test_equal_scores_say_that_seeds_do_not_help():
    assert "hardly decide" in versus(np.ones(5), np.ones(5)).sentence()


def test_p_values_are_adjusted_for_the_number_of_pairs():
    scores = {name: contestant(np.arange(4.0) + shift, 10 * shift) for name, shift in (("A", 0), ("B", 9), ("C", 20))}
    raw = tests.smallest_p((4, 4), 1, paired=False)
    found = all_against_all(scores, draws=DRAWS)
    assert [pair.p_value for pair in found] == pytest.approx([3 * raw] * 3)
    assert [pair.winner for pair in found] == [None] * 3
    assert holm([0.5, 0.9]) == [1.0, 1.0]


# ── error rates, by simulation ────────────────────────────────────────────────────────────────────────────────────

WORLDS = 400
TOLERANCE = 3 * (0.05 * 0.95 / WORLDS) ** 0.5  # of a share of 5 %


def normal(rng, shape):
    return rng.normal(size=shape), rng.normal(size=shape)


def other_spread(rng, shape):
    """Equal chances, but one varies three times as much."""
    return rng.normal(size=shape), 3 * rng.normal(size=shape)


def failing(rng, shape):
    """A third of the runs fails, others reach the maximum: many ties."""
    return tuple(np.where(rng.random(shape) < 1 / 3, rng.normal(100, 20, shape), 500.0) for _ in range(2))


def shared(rng, shape):
    """Half of the variance comes from the seed."""
    of_seed = rng.normal(size=shape)
    return of_seed + rng.normal(size=shape), of_seed + rng.normal(size=shape)


@pytest.mark.default("shape0-normal", "shape1-failing")
@pytest.mark.parametrize("world", [normal, other_spread, failing, shared])
@pytest.mark.parametrize("shape", [(4, 1), (5, 1), (10, 1), (5, 3)])
def test_false_winners_are_rare(world, shape):
    rng = np.random.default_rng(7)
    false = sum(versus(*world(rng, shape), shared=world is shared).winner is not None for _ in range(WORLDS))
    assert false / WORLDS <= 0.05 + TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize("paired", [False, True])
def test_the_number_of_seeds_has_the_power_that_it_promises(paired):
    """A true probability of improvement of 0.76; N from it and the spread of the test."""
    rng, shift = np.random.default_rng(8), 1.0
    probability = stats.norm.cdf(shift / math.sqrt(2))
    spread = math.sqrt((2 * 50 + 1) / (12 * 50 * 50))
    needed = tests.seeds_needed(probability, spread, (50, 50), least=4)
    assert 15 <= needed <= 25
    won = [
        versus(rng.normal(shift, 1, needed), rng.normal(0, 1, needed), shared=paired).winner == "A" for _ in range(200)
    ]
    assert 0.7 <= np.mean(won) <= 0.92
