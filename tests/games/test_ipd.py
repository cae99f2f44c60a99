"""The rules of the iterated Prisoner's Dilemma by hand, and the single form."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from drl.core.errors import BadInput
from drl.envs.make_vec_env import make_env
from drl.games.ipd import NAMED, IteratedPrisonersDilemmaEnv, IteratedPrisonersDilemmaVectorEnv
from drl.games.registry import register_envs
from drl.testing.environment_check import check_environment

EMPTY, CC, CD, DC, DD = range(5)


class Fixed:
    """Stands in for the generator and gives the numbers it was given."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)


def game(opponents, *draws, **settings):
    """A running game whose chances are `draws`: first the opponent, then the moves (and ends) in turn."""
    env = IteratedPrisonersDilemmaEnv(opponents, **settings)
    env.np_random = Fixed(*draws)
    env.reset()
    return env


def moves_of(name, actions):
    """What a named opponent does while the agent plays `actions`."""
    env = IteratedPrisonersDilemmaEnv(name, rounds=100)
    env.reset(seed=0)
    return "".join(env.step("DC".index(action))[4]["outcome"][1] for action in actions)


# Worked by hand from the strategies' descriptions, not from the table. The agent's moves, then the opponent's.
@pytest.mark.parametrize(
    ("name", "agent", "opponent"),
    [
        ("always_cooperate", "CDDCD", "CCCCC"),
        ("always_defect", "CDDCC", "DDDDD"),
        ("tit_for_tat", "CDDCDC", "CCDDCD"),  # copies the move before
        ("suspicious_tit_for_tat", "CDDCDC", "DCDDCD"),
        ("grim", "CCDCCC", "CCCDDD"),  # never forgives
        ("win_stay_lose_shift", "CDCCDDD", "CCDDDCD"),  # stays after 3 and 5, changes after 0 and 1
    ],
)
def test_named_opponents_play_as_they_are_described(name, agent, opponent):
    assert moves_of(name, agent) == opponent


def test_all_ten_are_there():
    assert len(NAMED) == 10
    assert NAMED["random"] == (0.5,) * 5
    assert NAMED["generous_tit_for_tat"] == pytest.approx((1, 1, 1 / 3, 1, 1 / 3))
    # A zero-determinant player enforces (own payoff − k) = slope · (other's payoff − k): its chance to cooperate, less
    # 1 after its own cooperation, is φ times the difference of the two sides. Both have slope 2.
    own, other = np.array([3, 0, 5, 1]), np.array([3, 5, 0, 1])
    for name, k, phi in (("zd_extort_2", 1, 1 / 18), ("zd_gtft_2", 3, 1 / 8)):
        assert NAMED[name][1:] == pytest.approx(phi * ((own - k) - 2 * (other - k)) + [1, 1, 0, 0])


def test_rewards_outcomes_and_what_the_opponent_saw():
    """The opponent cooperates after its own DC only: the agent's CD. Its probabilities are seen from its own side."""
    env = game([[0, 0, 0, 1, 0]], 0.5, *[0.5] * 4, rounds=4)
    steps = [env.step(action) for action in (1, 1, 0, 1)]
    # D; after its DC it cooperates; after its CC and after its CD it defects.
    assert [s[4]["outcome"] for s in steps] == ["CD", "CC", "DD", "CD"]
    assert [s[1] for s in steps] == [0.0, 3.0, 1.0, 0.0]
    assert [s[2:4] for s in steps] == [(False, False)] * 3 + [(False, True)]


def test_the_observation_is_the_history_oldest_first():
    env = game("always_defect", 0.0, *[0.5] * 5, rounds=5, history=3)
    seen = [env.step(action)[0].argmax(axis=1).tolist() for action in (1, 0, 0, 1, 1)]
    assert seen == [[EMPTY, EMPTY, CD], [EMPTY, CD, DD], [CD, DD, DD], [DD, DD, CD], [DD, CD, CD]]
    obs, _ = env.reset(seed=1)
    assert obs.shape == (3, 5)
    assert obs.dtype == np.float32
    assert obs.argmax(axis=1).tolist() == [EMPTY] * 3
    assert obs.sum() == 3


def test_a_draw_below_the_probability_cooperates():
    assert game("random", 0.0, 0.5, rounds=1).step(1)[4]["outcome"] == "CD"
    assert game("random", 0.0, np.nextafter(0.5, 0), rounds=1).step(1)[4]["outcome"] == "CC"


def test_survival_ends_games_by_chance_and_that_is_an_end():
    env = game("always_cooperate", 0.0, 0.0, 0.89, 0.0, 0.9, survival=0.9)
    assert env.step(1)[2:4] == (False, False)
    assert env.step(1)[2:4] == (True, False)
    with pytest.raises(BadInput, match="call reset"):
        env.step(1)


def test_games_last_as_long_as_survival_says():
    env = IteratedPrisonersDilemmaEnv("random", survival=0.8)
    env.reset(seed=0)
    lengths, length = [], 0
    for _ in range(10_000):
        length += 1
        if env.step(1)[2]:
            lengths.append(length)
            length = 0
            env.reset()
    error = np.sqrt(0.2) / 0.8 / np.sqrt(len(lengths)) * 5  # deviation of a geometric length, in units of its mean
    assert abs(np.mean(lengths) / 5 - 1) < 4 * error


@pytest.mark.parametrize(("draw", "name"), [(0.0, "grim"), (0.249, "grim"), (0.25, "random"), (1 - 2**-53, "random")])
def test_opponents_share_the_unit_interval_by_weight(draw, name):
    env = IteratedPrisonersDilemmaEnv(["grim", "random"], weights=[1, 3])
    env.np_random = Fixed(draw)
    assert env.reset()[1] == {"opponent": name}


@pytest.mark.parametrize("settings", [{}, {"rounds": 9, "render_mode": "ansi"}, {"render_mode": "rgb_array"}])
def test_both_checkers_are_content(settings):
    register_envs()
    check_env(gym.make("IteratedPrisonersDilemma-v0", **settings).unwrapped)
    check_environment(IteratedPrisonersDilemmaEnv(**settings), steps=500)


def test_the_same_seed_gives_the_same_games():
    def play(seed):
        env = IteratedPrisonersDilemmaEnv()
        trace = [env.reset(seed=seed)[1]["opponent"]]
        for t in range(200):
            _, reward, terminated, _, info = env.step(t % 3 > 0)
            trace.append((reward, terminated, info["opponent"]))
            if terminated:
                env.reset()
        return trace

    assert play(5) == play(5)
    assert play(5) != play(6)


def test_plain_data_makes_a_env():
    settings = {"opponents": {"mine": [1, 1, 0, 1, 0], "other": "grim"}, "payoffs": [2, -1, 4, 0], "history": 4}
    env = make_env("IteratedPrisonersDilemma-v0", env_kwargs=settings | {"rounds": 3}).unwrapped
    assert env.pool.names == ("mine", "other")
    env.reset(seed=0)
    assert [env.step(action)[1] for action in (1, 0, 0)] == [2.0, 4.0, 0.0]


def test_a_line_of_text():
    env = game("tit_for_tat", *[0.0] * 60, rounds=60, render_mode="ansi")
    lines = [env.render()]
    for t in range(45):
        env.step(int(t > 0))
        lines.append(env.render())
    assert lines[0] == "round 0  tit_for_tat  the game begins"
    assert lines[3] == "round 3  tit_for_tat  agent DCC  opponent CDC  CC  reward +3.0  total 8.0"
    assert "agent …CCC" in lines[45]
    assert "total 134.0" in lines[45]  # 5 + 0 + 43 · 3
    assert not any("\n" in line for line in lines)


def test_the_picture_changes_with_the_game():
    env = game("random", *[0.0] * 90, survival=0.99, render_mode="rgb_array")
    pictures = [env.render()]
    for t in range(40):  # more rounds than columns
        env.step(t % 3 % 2)
        pictures.append(env.render())
    for picture in pictures:
        assert picture.shape == (288, 640, 3)
        assert picture.dtype == np.uint8
    assert all((one != other).any() for one, other in itertools.pairwise(pictures))

    def painted(picture, color):
        return (picture == color).all(axis=2).sum()

    assert painted(pictures[0], (72, 199, 132)) == painted(pictures[0], (232, 84, 92)) == 0
    assert painted(pictures[1], (232, 84, 92)) > 100  # the agent's defection
    assert painted(pictures[40], (72, 199, 132)) > painted(pictures[40], (232, 84, 92)) > 1000


def test_rendering_needs_a_mode():
    with pytest.raises(BadInput, match="without a render_mode"):
        game("grim", 0.0).render()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"payoffs": [3, 0, 5]}, "payoffs = .*expected four finite numbers"),
        ({"payoffs": [3, 0, 5, float("inf")]}, "four finite numbers"),
        ({"survival": 1.0}, "survival = 1.0; expected a number from 0 to below 1"),
        ({"survival": -0.1}, "survival = -0.1"),
        ({"survival": 0.9, "rounds": 10}, "choose one ending"),
        ({"rounds": 0}, "rounds = 0"),
        ({"rounds": 2.5}, "rounds = 2.5"),
        ({"history": 0}, "history = 0"),
        ({"opponents": "tit_for_tatt"}, "did you mean 'tit_for_tat'.*axelrod:tit_for_tatt"),
        ({"opponents": []}, "expected names, rows of five"),
        ({"opponents": {}}, "at least one"),
        ({"opponents": 3}, "opponents = 3"),
        ({"opponents": [[1, 0, 0, 1]]}, "opponent '0' is .* expected five probabilities"),
        ({"opponents": [[1, 0, 0, 1, 1.5]]}, "five probabilities"),
        ({"opponents": [[1, 0, 0, 1, float("nan")]]}, "five probabilities"),
        ({"opponents": ["grim", "grim"]}, "a different name"),
        ({"weights": [1, 2]}, "expected 10 numbers"),
        ({"opponents": ["grim", "random"], "weights": [0, 0]}, "not all 0"),
        ({"opponents": ["grim", "random"], "weights": [1, -1]}, "0 or more"),
        ({"opponents": ["grim", "random"], "weights": [1, "x"]}, "weights"),
        ({"render_mode": "human"}, "render_mode = 'human'"),
    ],
)
@pytest.mark.parametrize("make", [IteratedPrisonersDilemmaEnv, IteratedPrisonersDilemmaVectorEnv])
def test_what_cannot_be_is_refused(make, settings, message):
    with pytest.raises(BadInput, match=message):
        make(**settings)


@pytest.mark.parametrize("action", [-1, 2, 1.0, "C", None, np.array([1])])
def test_an_action_that_is_no_move_is_refused(action):
    with pytest.raises(BadInput, match="is no move"):
        game("grim", 0.0).step(action)
