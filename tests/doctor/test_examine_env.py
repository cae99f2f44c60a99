"""Every broken environment is named by its one fault; healthy ones get no complaint."""

import pytest

from drl.doctor.diagnose import examine_env
from drl.doctor.findings import ADVICE, PROBLEM
from drl.envs.env_config import as_config
from tests.doctor.broken_envs import BROKEN, HARD, Endless, Push, Slow, Walk
from tests.doctor.subtle_envs import HARMLESS, SUBTLE, SUBTLY_HARD, SlowReset, SlowSometimes

HEALTHY = [
    "CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0", "FrozenLake-v1", "Taxi-v4",
    "Blackjack-v1", "MovieRec-v1", "IteratedPrisonersDilemma-v0", "drl/LegalMoves-v0", "drl/Recall-v0",
    "drl/BitFlip-v0", "drl/Match-v0", "drl/CartPoleNoVelocity-v1", Walk, Push, *HARMLESS,
]  # fmt: skip


PROBLEMS, PIECES_OF_ADVICE = BROKEN | SUBTLE, HARD | SUBTLY_HARD
NAMES = [*PROBLEMS.items(), *PIECES_OF_ADVICE.items()]


@pytest.mark.default("[A-H]*")
@pytest.mark.parametrize(("env", "name"), NAMES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_broken_environment_is_named(env, name):
    found = examine_env(as_config(env), steps=40 if env in (Slow, SlowSometimes) else 1000, seed=1)
    assert found.names() == [name], found.text()
    assert found.findings[0].severity == (PROBLEM if env in PROBLEMS else ADVICE)
    assert found.notes == ()


@pytest.mark.default("Masked", "FrozenLake-v1", "CartPole-v1")
@pytest.mark.parametrize("env", HEALTHY, ids=lambda each: getattr(each, "__name__", each))
def test_a_healthy_environment_gets_no_complaint(env):
    found = examine_env(as_config(env), seed=1)
    assert found.findings == (), found.text()
    assert found.notes == ()
    assert "share of a training step" in found.numbers


class Cache(Walk):
    """Its first observations do not depend on what was played before."""

    played = 0

    def reward(self):
        self.played += 1
        return self.speed + 1e-9 * self.played


def test_a_cache_that_earlier_episodes_fill_is_advice():
    (finding,) = examine_env(as_config(Cache), steps=400, seed=1).findings
    assert (finding.name, finding.severity) == ("depends-on-earlier-episodes", ADVICE)


class BreaksLater(Walk):
    """After more steps than the first play has."""

    steps = 0

    def reward(self):
        self.steps += 1
        if self.steps > 450:
            raise RuntimeError("worn out")
        return self.speed


class CannotClose(Walk):
    def close(self):
        raise RuntimeError("no")


def test_what_breaks_when_it_is_played_again_is_named():
    (finding,) = examine_env(as_config(BreaksLater), steps=400, seed=1).findings
    assert finding.name == "raises"
    assert "worn out" in finding.seen


@pytest.mark.filterwarnings("ignore:.*close")
def test_an_environment_that_cannot_be_closed_is_examined():
    assert examine_env(as_config(CannotClose), steps=400, seed=1).findings == ()


class Astronomic(Walk):
    """In float32 the square of its rewards is infinite."""

    def reward(self):
        return 1e30 * self.speed


def test_training_that_fails_at_once_is_a_problem():
    found = examine_env(as_config(Astronomic), steps=400, seed=1)
    assert found.names() == ["reward-scale", "training-fails"]
    assert "became non-finite" in found.findings[1].seen


def test_slow_episodes_without_end_are_advice(monkeypatch):
    """They may end yet."""
    monkeypatch.setattr("drl.doctor.diagnose.PATIENCE", 0.01)
    (finding,) = examine_env(as_config(Endless), steps=400, seed=1).findings
    assert (finding.name, finding.severity) == ("endless-episodes", ADVICE)


def test_effects_that_need_long_play_are_not_judged_by_short_play(monkeypatch):
    monkeypatch.setattr("drl.doctor.random_play.EPISODE_SECONDS", 0.0)
    found = examine_env(as_config(HARMLESS[1]), steps=400, seed=1)
    assert found.findings == ()
    assert "the effect of actions" in found.notes[0]


def test_slow_resets_are_named():
    (finding,) = examine_env(as_config(SlowReset), steps=12, seed=1).findings
    assert (finding.name, finding.severity) == ("slow-steps", ADVICE)
    assert "is spent in resets" in finding.seen
    assert "profile `reset`" in finding.change
