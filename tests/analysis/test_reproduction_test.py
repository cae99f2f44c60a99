"""PASS, FAIL and UNDECIDED: the interval, the margin, and how often the answer is wrong."""

import numpy as np
import pytest
from scipy import stats

from drl.analysis.reproduction import judge, margin_of, stored_variance
from drl.settings.preset_records import FAIL, PASS, REPRODUCE, UNDECIDED, Record


def stored(reached=None, **changes):
    """A stored result: of these scores, or of numbers alone."""
    numbers = {"seeds": 10, "first_seed": 0, "mean": 100.0, "worst": 90.0}
    if reached is not None:
        numbers |= {"seeds": len(reached), "mean": float(np.mean(reached)), "worst": float(np.min(reached))}
        numbers |= {"scores": {seed: float(score) for seed, score in enumerate(reached)}}
    named = {"algorithm": "ppo", "env": "CartPole-v1", "engine": "torch", "steps": 1, "command": "x"}
    return Record(**named | {"settings": "sha256:0", "provenance": REPRODUCE} | numbers | changes)


def test_the_interval_is_students():
    old, new = [90.0, 100.0, 110.0, 104.0], [95.0, 105.0, 99.0]
    found = judge(stored(old), new)
    expected = stats.ttest_ind(new, old).confidence_interval()
    assert found.difference == pytest.approx(np.mean(new) - np.mean(old))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-3)


def test_spread_from_what_was_kept():
    scores = [90.0, 100.0, 110.0, 104.0]
    assert stored_variance(stored(scores)) == pytest.approx(np.var(scores, ddof=1))
    summary = stored(scores, scores=None, std=float(np.std(scores)))
    assert stored_variance(summary) == pytest.approx(np.var(scores, ddof=1))
    one_bad = [135.0] + [500.0] * 19  # the others are equal, so that the least variance is the real one
    assert stored_variance(stored(one_bad, scores=None)) == pytest.approx(np.var(one_bad, ddof=1))
    assert stored_variance(stored([5.0])) is None


def test_the_margin_is_a_tenth_or_the_spread():
    assert margin_of(stored(std=2.0)) == pytest.approx(10.0)
    assert margin_of(stored(std=30.0)) == pytest.approx(30.0 * (10 / 9) ** 0.5)


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ([100.0, 101.0, 99.0], PASS),
        ([97.0, 95.0, 96.0], PASS),  # worse, but within the margin
        ([150.0, 151.0], PASS),  # better
        ([20.0, 22.0, 25.0], FAIL),
        ([90.0, 89.0, 91.0], UNDECIDED),  # at the margin
    ],
)
def test_verdicts(scores, verdict):
    found = judge(stored(std=2.0), scores)
    assert found.verdict == verdict
    assert (found.more_seeds is not None) == (verdict == UNDECIDED and found.difference != -found.margin)


def test_equal_scores_need_no_spread():
    old = stored(mean=-13.0, worst=-13.0, std=0.0)
    assert judge(old, [-13.0] * 3).verdict == PASS
    assert judge(old, [-15.0] * 3).verdict == FAIL
    few = judge(old, [-13.0] * 2)  # too few to tell that there is no spread
    assert (few.verdict, few.more_seeds) == (UNDECIDED, 1)


def test_few_equal_seeds_do_not_hide_the_stored_spread():
    """Three seeds at the maximum say little if one stored seed of 20 failed."""
    old = stored([135.0] + [500.0] * 19)
    assert judge(old, [500.0]).verdict == UNDECIDED
    assert judge(old, [500.0] * 8).verdict == PASS


def test_the_advised_seeds_decide_if_nothing_changes():
    old, new = stored(np.linspace(80, 120, 20)), [88.0, 100.0, 112.0, 96.0]
    found = judge(old, new)
    assert found.verdict == UNDECIDED
    more = found.more_seeds
    spread = np.var(new, ddof=1)
    for count, verdict in ((len(new) + more, PASS), (len(new) + more - 1, UNDECIDED)):
        later = np.resize([1.0, -1.0], count) - (1 / count if count % 2 else 0.0)
        later = np.mean(new) + later * (spread / np.var(later, ddof=1)) ** 0.5
        assert judge(old, later).verdict == verdict


def test_a_stored_result_of_too_few_seeds_cannot_decide():
    found = judge(stored([50.0, 150.0]), [99.0, 101.0, 75.0, 125.0])
    assert found.verdict == UNDECIDED
    assert judge(stored([100.0]), [100.0]).verdict == UNDECIDED


@pytest.mark.default("-20.0-PASS", "0.0-FAIL")
@pytest.mark.parametrize(("shift", "wrong"), [(0.0, FAIL), (-10.0, PASS), (-20.0, PASS)])
def test_wrong_answers_are_rare(shift, wrong):
    """The margin is 10: what is worse by that may pass in 2.5 %, what is equal may fail in 2.5 %."""
    rng, worlds = np.random.default_rng(0), 600
    answers = []
    for _ in range(worlds):
        old = rng.normal(100, 6, 10)
        error = old.mean() - 100  # of the stored mean; given to the new scores, so that the margin is always 10
        answers.append(judge(stored(old, mean=100.0), rng.normal(100 + shift, 6, 5) - error).verdict)
    assert np.mean([answer == wrong for answer in answers]) <= 0.025 + 3 * (0.025 / worlds) ** 0.5
