"""MovieRec's vector form is its single form, N times; through every vectorization the rows are true."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from vec_envs_under_test import play

from drl.core.errors import BadInput
from drl.envs.make_vec_env import make_vec_env
from drl.games.movie_rec import MovieRecEnv, MovieRecRules, MovieRecVectorEnv
from drl.games.movie_rec.optimal import random_return
from drl.games.registry import register_envs

CUSTOM = {
    "catalogue": [["Opera"], ["Chess", "Opera"], ["Darts"]],
    "personas": {"fan": {"likes": ["Opera"]}, "foe": {"hates": ["Opera", "Darts"]}},
    "reward_churn": -3.0,
    "max_session_length": 7,
}


@pytest.mark.parametrize("settings", [{}, CUSTOM], ids=["as specified", "custom"])
@pytest.mark.parametrize("seed", [3, [11, 5, 11, 0, 7]], ids=["one seed", "a seed each"])
def test_step_by_step_it_is_gymnasiums_vector_of_single_envs(seed, settings):
    """Observations, rewards, flags and infos with their masks; long enough for several blocks of draws."""
    single = SyncVectorEnv([lambda: MovieRecEnv(**settings)] * 5, autoreset_mode=AutoresetMode.SAME_STEP)
    vector = MovieRecVectorEnv(5, **settings)
    _equal(single.reset(seed=seed), vector.reset(seed=seed))
    rng = np.random.default_rng(0)
    ends = 0
    for t in range(700):
        action = rng.integers(vector.single_action_space.n, size=5)
        expected, got = single.step(action), vector.step(action)
        _equal(expected, got)
        ends += int((got[2] | got[3]).sum())
        if t == 400:
            _equal(single.reset(), vector.reset())  # an unseeded reset goes on in the same streams
    assert ends > 300


def _equal(expected, got):
    if isinstance(expected, dict):
        assert set(expected) <= set(got), "an info is missing"
        for key in got:
            mask = got.get(f"_{key}")
            if key.startswith("_"):
                assert np.array_equal(got[key], expected.get(key, np.zeros(5, bool))), key
            elif isinstance(got[key], dict):
                _equal(expected[key], got[key])
            elif mask.any():  # elsewhere the arrays hold what does not matter
                for i in np.flatnonzero(mask):
                    assert np.array_equal(expected[key][i], got[key][i]), key
    elif isinstance(expected, tuple):
        for one, other in zip(expected, got, strict=True):
            _equal(one, other)
    else:
        assert expected.dtype == got.dtype
        assert np.array_equal(expected, got)


def test_a_env_does_not_depend_on_how_many_there_are():
    def env_two(n):
        env = MovieRecVectorEnv(n)
        env.reset(seed=4)
        return np.stack([env.step(np.full(n, t % 20))[0][2] for t in range(50)])

    assert np.array_equal(env_two(3), env_two(40))


def test_what_was_handed_out_stays_as_it_was():
    env = MovieRecVectorEnv(4)
    obs, infos = env.reset(seed=0)
    kept = [(obs, obs.copy())]
    for t in range(60):
        obs, *_, infos = env.step(np.full(4, t % 20))
        arrays = [obs, infos["user_persona"], infos["fatigue"], infos["click_prob"], infos.get("final_obs", obs)]
        kept += [(array, array.copy()) for array in arrays]
    assert all(np.array_equal(one, other) for one, other in kept)


def _clicks(env_rows):
    """Chi-square of click counts per (persona, movie, fatigue) against the table; expected: its degrees of freedom."""
    rules = MovieRecRules()
    names = [p.name for p in rules.personas]
    persona, movie, fatigue, clicked = (np.concatenate(x) for x in zip(*env_rows, strict=True))
    who = np.array([names.index(name) for name in persona])
    cell = np.ravel_multi_index((who, movie, np.rint(fatigue * 10).astype(int)), rules.click_prob.shape)
    shown = np.bincount(cell, minlength=rules.click_prob.size)
    hits = np.bincount(cell, clicked, minlength=rules.click_prob.size)
    prob = rules.click_prob.ravel()
    variance = shown * prob * (1 - prob)
    enough = variance >= 5
    assert enough.sum() > 100
    assert np.bincount(who, minlength=3).min() > 0.2 * len(who)
    return ((hits - shown * prob)[enough] ** 2 / variance[enough]).sum(), enough.sum()


@pytest.mark.parametrize("form", ["single", "vector"])
def test_clicks_come_as_often_as_the_table_says(form):
    count, steps = (8, 2500) if form == "single" else (1024, 200)
    env = SyncVectorEnv([MovieRecEnv] * 8, autoreset_mode=AutoresetMode.SAME_STEP)
    env = env if form == "single" else MovieRecVectorEnv(1024)
    rng = np.random.default_rng(2)
    obs, infos = env.reset(seed=1)
    rows = []
    for _ in range(steps):
        persona, fatigue = infos["user_persona"], obs[:, -2].copy()
        movie = rng.integers(20, size=count)
        obs, _, terminated, truncated, infos = env.step(movie)
        clicked = np.array(infos["is_clicked"]) if "is_clicked" in infos else np.zeros(count, bool)
        if (ended := terminated | truncated).any():
            clicked = np.where(ended, infos["final_info"]["is_clicked"], clicked)
        rows.append((persona, movie, fatigue, clicked))
    statistic, freedom = _clicks(rows)
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(("vectorization", "num_envs", "steps"), [("sync", 8, 1200), ("native", 512, 160)])
def test_random_play_returns_what_it_should_through_every_engine(vectorization, num_envs, steps):
    rng = np.random.default_rng(0)
    with make_vec_env("MovieRec-v1", num_envs, seed=2, vectorization=vectorization) as envs:
        envs.reset()
        # Whole sessions only, or the short ones would count too often: each environment's first few.
        first = [[] for _ in range(num_envs)]
        for _ in range(steps):
            step = envs.step(rng.integers(20, size=num_envs))
            for episode in step.episodes:
                first[episode.env_index].append(episode)
        whole = min(len(f) for f in first)
        assert whole >= steps // 20
        returns = np.array([e.episode_return for f in first for e in f[:whole]])
        assert all(e.success == (not e.terminated) for f in first for e in f)
        assert any(e.success for f in first for e in f)
    error = returns.std() / np.sqrt(len(returns))
    assert abs(returns.mean() - random_return()) < 4 * error
    assert error < 0.15


@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_rows_are_true_successors_and_returns_add_up(vectorization):
    with make_vec_env("MovieRec-v1", 6, seed=1, vectorization=vectorization) as envs:
        rows, episodes = play(envs, lambda obs, i: int(7 * obs[-1] * 20 + i) % 20, 200)
    for env_rows, env_episodes in zip(rows, episodes, strict=True):
        ends = []
        previous, total = None, 0.0
        for obs, _, reward, terminated, truncated, next_obs in env_rows:
            obs, next_obs = np.float32(obs), np.float32(next_obs)
            if previous is not None:
                assert np.array_equal(obs, previous)
            assert round(20 * float(next_obs[-1] - obs[-1])) == 1
            clicked = (next_obs[:-2] > obs[:-2]).any() or next_obs[-2] <= obs[-2]
            tenths = round(10 * float(obs[-2]))
            after = max(tenths - 1, 0) if clicked else tenths + 2
            assert next_obs[-2] == np.float32(min(after / 10, 1.0))
            assert terminated == (after >= 10)
            assert truncated == (next_obs[-1] == 1.0 and not terminated)
            assert reward == np.float32(-10.0 if terminated else 1.0 if clicked else -0.2)
            total += reward
            previous = np.zeros_like(obs) if terminated or truncated else next_obs
            if terminated or truncated:
                ends.append((total, terminated, truncated))
                total = 0.0
        assert len(env_episodes) == len(ends) > 5
        for episode, (episode_return, terminated, truncated) in zip(env_episodes, ends, strict=True):
            assert episode.episode_return == pytest.approx(episode_return, abs=1e-5)
            assert (episode.terminated, episode.success) == (terminated, truncated)


def test_auto_takes_the_vector_form_for_many_envs():
    with make_vec_env("MovieRec-v1", 16, env_kwargs=CUSTOM) as envs:
        assert envs.vectorization == "native"
        assert envs.reset().shape == (16, 5)
    with make_vec_env("MovieRec-v1", 2) as envs:
        assert envs.vectorization == "sync"


def test_the_same_seed_gives_the_same_rows_through_the_native_engine():
    def rows(seed):
        with make_vec_env("MovieRec-v1", 4, seed=seed, vectorization="native") as envs:
            return play(envs, lambda obs, i: i + 3, 100)

    assert rows(1) == rows(1)
    assert rows(1) != rows(2)


def test_gymnasium_makes_it_by_id():
    register_envs()
    env = gym.make_vec("MovieRec-v1", num_envs=3, max_session_length=4)
    assert isinstance(env.unwrapped, MovieRecVectorEnv)
    assert env.observation_space.contains(env.reset(seed=0)[0])
    env.close()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_whole_numbers_of_any_width_are_movies(dtype):
    env = MovieRecVectorEnv(3)
    env.reset(seed=0)
    movie = env.step(np.array([0, 7, 19], dtype))[4]["recommended_movie"]
    assert movie.tolist() == [0, 7, 19]
    assert movie.dtype == np.int64


@pytest.mark.parametrize("actions", [[0, 20], [-1, 0], [0], [[0], [1]], [0.0, 1.0]])
def test_actions_that_are_no_movies_are_refused(actions):
    env = MovieRecVectorEnv(2)
    with pytest.raises(BadInput, match="reset"):
        env.step([0, 0])
    env.reset(seed=np.int64(0))
    with pytest.raises(BadInput, match=r"whole numbers 0–19"):
        env.step(np.array(actions))


@pytest.mark.parametrize("seed", [-1, [1], [1, -2], ["a", "b"], 1.5])
def test_bad_seeds_and_counts_are_refused(seed):
    with pytest.raises(BadInput, match="expected a whole number"):
        MovieRecVectorEnv(2).reset(seed=seed)
    with pytest.raises(BadInput, match="num_envs"):
        MovieRecVectorEnv(0)
