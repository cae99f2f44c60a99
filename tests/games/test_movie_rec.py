"""MovieRec's rules by hand, and the single form."""

import itertools

import gymnasium as gym
import numpy as np
import pygame
import pytest
from gymnasium.utils.env_checker import check_env

from drl.core.errors import BadInput
from drl.envs.make_vec_env import make_env
from drl.games.movie_rec import CATALOGUE, PERSONAS, MovieRecEnv, MovieRecRules, MovieRecVectorEnv, Persona
from drl.games.registry import register_envs
from drl.testing.environment_check import check_environment

ACTION, ROMANCE, SCI_FI = range(3)
INFO_KEYS = {"user_persona", "is_clicked", "click_prob", "fatigue", "recommended_movie", "churned"}


class Fixed:
    """Stands in for the generator and gives the numbers it was given."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)


def session(*draws, persona=0.0, **settings):
    """A running session whose clicks are decided by `draws`: 0 always clicks, 0.99 never does."""
    env = MovieRecEnv(**settings)
    env.np_random = Fixed(persona, *draws)
    env.reset()
    return env


def test_the_genre_index():
    expected = "Action Adventure Animation Children Comedy Documentary Drama Fantasy Horror IMAX Mystery Romance Sci-Fi"
    assert MovieRecRules().genres == (*expected.split(), "Thriller", "War")
    assert len(CATALOGUE) == 20
    assert [p.name for p in PERSONAS] == ["action_fan", "romance_lover", "sci-fi_geek"]


@pytest.mark.parametrize(
    ("persona", "movie", "fatigue", "prob"),
    [
        # 14 Sci-Fi, Action: 0.3 + 2·0.3 · 0.3 − 0.2 · 0.3 + 0.3, less 0.25 at fatigue 0.5
        (ACTION, 14, 0, 0.9),
        (ROMANCE, 14, 0, 0.1),
        (SCI_FI, 14, 0, 0.6),
        (ACTION, 14, 5, 0.65),
        (ROMANCE, 14, 5, 0.05),  # 0.1 − 0.25, clipped
        (SCI_FI, 14, 5, 0.35),
        (ROMANCE, 13, 0, 0.4),  # Action hated, Comedy liked
        (SCI_FI, 3, 0, 0.9),
        (SCI_FI, 3, 9, 0.45),
        (ACTION, 11, 0, 0.1),
        (ACTION, 11, 1, 0.05),
        (ACTION, 11, 9, 0.05),
        (ROMANCE, 8, 2, 0.05),  # exactly at the edge before clipping
    ],
)
def test_click_probabilities_by_hand(persona, movie, fatigue, prob):
    assert MovieRecRules().click_prob[persona, movie, fatigue] == prob


def test_probabilities_are_clipped_at_both_ends():
    rules = MovieRecRules([["A", "B", "C"], ["D"]], [Persona("one", ("A", "B", "C"), ("D",))])
    assert rules.click_base.tolist() == [[120, 10]]
    assert rules.click_prob[0, 0, :6].tolist() == [0.95] * 6
    assert rules.click_prob[0, 0, 6] == 0.9
    assert rules.click_prob[0, 1].tolist() == [0.1] + [0.05] * 9


def test_five_misses_and_no_fewer_are_the_end():
    env = session(*[0.99] * 5)
    steps = [env.step(11) for _ in range(5)]
    assert [s[4]["fatigue"] for s in steps] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert [s[1] for s in steps] == [-0.2] * 4 + [-10.0]
    assert [s[2] for s in steps] == [False] * 4 + [True]
    assert not any(s[3] for s in steps)
    assert [s[4]["churned"] for s in steps] == [False] * 4 + [True]
    assert steps[-1][4]["is_success"] is False
    assert "is_success" not in steps[0][4]
    with pytest.raises(BadInput, match="call reset"):
        env.step(0)


def test_fatigue_is_exact_on_the_way_up_and_down():
    env = session(*[0.99] * 3, *[0.0] * 7, *[0.99] * 4)
    seen = [env.step(14)[4]["fatigue"] for _ in range(14)]
    assert seen == [0.2, 0.4, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0, 0.2, 0.4, 0.6, 0.8]


def test_fatigue_past_the_limit_is_told_but_shown_as_one():
    env = session(*[0.99] * 2, 0.0, *[0.99] * 4)
    for _ in range(7):
        obs, reward, terminated, _, info = env.step(14)
    assert (info["fatigue"], obs[-2], reward, terminated) == (1.1, 1.0, -10.0, True)


def test_a_click_satisfies_every_genre_of_the_movie():
    env = session(*[0.0] * 7)
    index = env.rules.genres.index
    for click in range(1, 8):
        obs, reward, *_ = env.step(14)
        assert reward == 1.0
        assert obs[index("Sci-Fi")] == obs[index("Action")] == np.float32(min(click, 5) / 5)
        assert obs[:-2].sum() == 2 * obs[index("Action")]
        assert obs[-1] == np.float32(click / 20)
    assert env.observation_space.contains(obs)


def test_a_draw_at_the_probability_is_no_click():
    assert session(0.9).step(14)[4]["is_clicked"] is False
    assert session(np.nextafter(0.9, 0)).step(14)[4]["is_clicked"] is True


@pytest.mark.parametrize(("draw", "name"), [(0.0, 0), (0.333, 0), (0.334, 1), (0.666, 1), (0.667, 2), (1 - 2**-53, 2)])
def test_personas_share_the_unit_interval(draw, name):
    assert session(0.5, persona=draw).step(0)[4]["user_persona"] == PERSONAS[name].name


def test_the_clock_is_not_a_death():
    env = session(*[0.0] * 20)
    steps = [env.step(14) for _ in range(20)]
    assert [s[2:4] for s in steps] == [(False, False)] * 19 + [(False, True)]
    assert steps[-1][0][-1] == 1.0
    assert steps[-1][4]["is_success"] is True
    assert sum(s[1] for s in steps) == 20.0


def test_churn_at_the_last_step_is_terminated_only():
    env = session(*[0.99] * 5, max_session_length=5)
    steps = [env.step(11) for _ in range(5)]
    assert steps[-1][1:4] == (-10.0, True, False)
    assert steps[-1][4]["is_success"] is False


def test_info_has_the_promised_keys_and_types():
    env = MovieRecEnv()
    _, info = env.reset(seed=0)
    assert info == {"user_persona": info["user_persona"], "fatigue": 0.0}
    types = {key: type(value) for key, value in env.step(np.int64(3))[4].items()}
    assert types.keys() == INFO_KEYS
    assert list(types.values()) == [str, bool, float, float, int, bool]


@pytest.mark.parametrize("render_mode", [None, "ansi", "rgb_array"])
def test_both_checkers_are_content(render_mode):
    register_envs()
    check_env(gym.make("MovieRec-v1", render_mode=render_mode).unwrapped)
    check_environment(MovieRecEnv(), steps=3000)


def test_the_same_seed_gives_the_same_session():
    def play(seed):
        env = MovieRecEnv()
        trace = [env.reset(seed=seed)[1]["user_persona"]]
        for t in range(100):
            obs, reward, terminated, truncated, _ = env.step(t * 7 % 20)
            trace.append((obs.tolist(), reward))
            if terminated or truncated:
                env.reset()
        return trace

    assert play(5) == play(5)
    assert play(5) != play(6)


def test_one_line_a_step():
    env = session(0.0, 0.99, 0.99, 0.99, 0.99, 0.99, render_mode="ansi")
    lines = [env.render()]
    for movie in (14, 11, 11, 11, 11, 11):
        env.step(movie)
        lines.append(env.render())
    assert lines[0] == "step  0/20  action_fan     the session begins"
    assert " ".join(lines[1].split()) == (
        "step 1/20 action_fan movie 14 Sci-Fi, Action click p 0.90 fatigue 0.0 reward +1.0"
    )
    assert "no click" in lines[2]
    assert "churned" in lines[-1]
    assert "-10.0" in lines[-1]
    assert len({len(line) for line in lines[1:]}) == 1
    assert not any("\n" in line for line in lines)


def test_the_card_changes_with_the_session():
    env = session(0.0, *[0.99] * 5, render_mode="rgb_array")
    pictures = [env.render()]
    pygame.quit()  # as Gymnasium's own environments do when they are closed
    for movie in (14, 11, 11, 11, 11, 11):
        env.step(movie)
        pictures.append(env.render())
    for picture in pictures:
        assert picture.shape == (400, 640, 3)
        assert picture.dtype == np.uint8
        assert len(np.unique(picture.astype(int) @ (1, 256, 65536))) > 50
    assert all((one != other).any() for one, other in itertools.pairwise(pictures))
    red = (pictures[-1].astype(int) - (232, 84, 92) == 0).all(axis=2).sum()
    assert red > 5000  # the bar is full and the verdict is out


def test_a_long_session_and_a_movie_of_many_genres_can_be_drawn():
    catalogue = [[f"A rather long genre {i}" for i in range(9)]]
    env = session(0.0, catalogue=catalogue, personas={"x": {}}, max_session_length=500, render_mode="rgb_array")
    env.step(0)
    assert env.render().shape == (400, 640, 3)


def test_rendering_needs_a_mode():
    with pytest.raises(BadInput, match="without a render_mode"):
        session(0.5).render()


def test_everything_about_the_env_can_be_changed():
    catalogue = [["Opera"], ["Chess", "Opera"], ["Darts"]]
    personas = {"fan": {"likes": ["Opera", "Chess"], "hates": ["Darts"]}}
    settings = {"reward_click": 2, "reward_no_click": -1.0, "reward_churn": -5.0, "max_session_length": 6}
    env = session(0.0, *[0.99] * 5, catalogue=catalogue, personas=personas, **settings)
    assert env.observation_space.shape == (5,)
    assert env.action_space.n == 3
    steps = [env.step(movie) for movie in (1, 2, 2, 2, 2, 2)]
    assert steps[0][4]["click_prob"] == 0.9
    assert steps[1][4]["click_prob"] == 0.1
    assert [s[1] for s in steps] == [2.0, -1.0, -1.0, -1.0, -1.0, -5.0]
    assert steps[0][0].tolist() == np.float32([0.2, 0.0, 0.2, 0.0, 1 / 6]).tolist()
    check_environment(MovieRecEnv(catalogue, personas, **settings), steps=300)
    by_id = make_env("MovieRec-v1", env_kwargs={"catalogue": catalogue, "personas": personas})
    assert by_id.unwrapped.rules.catalogue == env.rules.catalogue


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"catalogue": []}, "expected a list with one list of genres"),
        ({"catalogue": ["Drama"]}, "movie 0: 'Drama'; expected a list of genre names"),
        ({"catalogue": [["Drama"], []]}, "movie 1 has no genre"),
        ({"catalogue": [["Drama", "Drama"]]}, "names a genre twice"),
        ({"personas": []}, "expected a list of Persona"),
        ({"personas": {"x": {"loves": ["Drama"]}}}, "persona 'x'"),
        ({"personas": {"x": {"likes": "Drama"}}}, "likes of persona 'x'"),
        ({"personas": [Persona("x"), Persona("x")]}, "a different name"),
        ({"personas": [Persona("x", ("Drama",), ("Drama",))]}, "both likes and hates Drama"),
        ({"reward_click": float("nan")}, "reward_click = nan; expected a finite number"),
        ({"reward_churn": "much"}, "reward_churn = 'much'"),
        ({"max_session_length": 0}, "max_session_length = 0"),
        ({"max_session_length": 2.5}, "max_session_length = 2.5"),
        ({"render_mode": "human"}, "render_mode = 'human'"),
    ],
)
@pytest.mark.parametrize("make", [MovieRecEnv, MovieRecVectorEnv])
def test_what_cannot_be_is_refused(make, settings, message):
    with pytest.raises(BadInput, match=message):
        make(**settings)


@pytest.mark.parametrize("action", [-1, 20, 1.0, "3", None, np.array([1])])
def test_an_action_that_is_no_movie_is_refused(action):
    with pytest.raises(BadInput, match="is no movie"):
        session(0.5).step(action)
