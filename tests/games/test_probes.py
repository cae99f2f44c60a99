"""The probe environments keep their word, by Gymnasium's own checker and by their documented values."""

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.utils.env_checker import check_env

from drl.core.errors import BadInput
from drl.games.probes import (
    BitFlipEnv,
    CartPoleNoVelocityEnv,
    CountingEnv,
    MatchEnv,
    MoodEnv,
    OneStepEnv,
    RecallEnv,
    TargetEnv,
    TwoStepEnv,
)


@pytest.mark.filterwarnings("ignore:.*symmetric and normalized")  # the target environment's [−2, 2] is on purpose
@pytest.mark.parametrize(
    "make", [TwoStepEnv, OneStepEnv, MatchEnv, TargetEnv, RecallEnv, MoodEnv, CartPoleNoVelocityEnv, BitFlipEnv]
)
def test_gymnasium_accepts_them(make):
    check_env(make(), skip_render_check=True)


@pytest.mark.parametrize("truncate", [False, True])
def test_two_steps(truncate):
    env = TwoStepEnv(truncate)
    obs, _ = env.reset()
    assert obs == 0
    obs, reward, *flags, _ = env.step(0)
    assert (obs, reward, flags) == (1, 0.0, [False, False])
    obs, reward, *flags, _ = env.step(1)
    assert (obs, reward, flags) == (1, 1.0, [not truncate, truncate])


def test_one_step():
    env = OneStepEnv(reward=-3.0, truncate=True)
    env.reset()
    assert env.step(0)[1:4] == (-3.0, False, True)


def test_the_right_answer_pays():
    match = MatchEnv(choices=4)
    for seed in range(8):
        wanted, _ = match.reset(seed=seed)
        assert [match.step(a)[1] for a in range(4)] == [1.0 if a == wanted else -1.0 for a in range(4)]
    target = TargetEnv(size=2)
    goal, _ = target.reset(seed=0)
    assert target.step(2 * goal)[1] == 0.0
    assert target.step(2 * goal + 1)[1] == pytest.approx(-0.5)


def test_only_the_first_observation_shows_the_cue():
    env = RecallEnv(length=3)
    cues = set()
    for seed in range(6):
        cue = int(env.reset(seed=seed)[0][0])
        cues.add(cue)
        rows = [env.step(action) for action in (0, 0, int(cue > 0))]
        assert [row[0].tolist() for row in rows[:2]] == [[0, 0], [0, 1]]
        assert [row[1:4] for row in rows] == [(0.0, False, False), (0.0, False, False), (1.0, True, False)]
    assert cues == {-1, 1}
    wrong = int(env.reset(seed=0)[0][0] < 0)
    assert [env.step(wrong)[1] for _ in range(3)] == [0.0, 0.0, -1.0]


@pytest.mark.parametrize("truncate", [False, True])
def test_a_mood_pays_at_every_step(truncate):
    env = MoodEnv(length=3, truncate=truncate)
    mood = env.reset(seed=1)[0][0]
    rows = [env.step(0) for _ in range(3)]
    assert [row[1] for row in rows] == [mood] * 3
    assert [row[2:4] for row in rows] == [(False, False)] * 2 + [(not truncate, truncate)]
    assert all(row[0][0] == 0 for row in rows)


def test_cart_pole_without_its_velocities():
    env, full = CartPoleNoVelocityEnv(), CartPoleEnv()
    obs, seen = env.reset(seed=4)[0], full.reset(seed=4)[0]
    for _ in range(5):
        np.testing.assert_array_equal(obs, seen[[0, 2]])
        obs, seen = env.step(1)[0], full.step(1)[0]


def test_bits_are_flipped_until_they_equal_the_goal():
    env = BitFlipEnv(bits=6)
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        wrong = np.flatnonzero(obs["observation"] != obs["desired_goal"])
        rows = [env.step(action) for action in wrong]
        assert [row[1:4] for row in rows] == [(-1.0, False, False)] * (len(wrong) - 1) + [(0.0, True, False)]
        assert [row[4]["is_success"] for row in rows] == [False] * (len(wrong) - 1) + [True]
        assert all((row[0]["observation"] == row[0]["achieved_goal"]).all() for row in rows)
    env.reset(seed=0)
    elsewhere = int(np.flatnonzero(env.state == env.goal)[0])  # flipped back and forth: the goal is never reached
    rows = [env.step(elsewhere) for _ in range(6)]
    assert [row[1:4] for row in rows] == [(-1.0, False, False)] * 5 + [(-1.0, False, True)]


def test_bits_are_drawn_by_the_seed_and_never_begin_at_their_goal():
    starts = [[BitFlipEnv(bits=15).reset(seed=seed)[0] for seed in range(50)] for _ in range(2)]
    for one, other in zip(*starts, strict=True):
        assert all((one[key] == other[key]).all() for key in one)
    assert np.mean([obs["observation"] for obs in starts[0]]) == pytest.approx(0.5, abs=0.08)
    assert np.mean([obs["desired_goal"] for obs in starts[0]]) == pytest.approx(0.5, abs=0.08)
    env = BitFlipEnv(bits=2)
    assert all((obs["observation"] != obs["desired_goal"]).any() for obs, _ in (env.reset() for _ in range(200)))
    with pytest.raises(BadInput, match="bits = 0"):
        BitFlipEnv(bits=0)


def test_goal_functions_of_bits_take_a_batch():
    env, rng = BitFlipEnv(bits=3), np.random.default_rng(0)
    achieved, desired = rng.integers(2, size=(2, 40, 3))
    equal = [list(one) == list(other) for one, other in zip(achieved, desired, strict=True)]
    assert env.compute_terminated(achieved, desired, {}).tolist() == equal
    assert env.compute_reward(achieved, desired, {}).tolist() == [0.0 if one else -1.0 for one in equal]


def test_counting_lengths_follow_the_first_action():
    env = CountingEnv()
    for episode in range(6):
        obs, _ = env.reset()
        assert obs.tolist() == [episode, 0, -1]
        length = 1 + (2 * episode + 3) % 5
        ends = [env.step(3 if t == 0 else 0)[2:4] for t in range(length)]
        assert not np.any(ends[:-1])
        assert ends[-1] == (episode % 3 != 1, episode % 3 != 0)
