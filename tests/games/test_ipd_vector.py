"""The vector form of the iterated Prisoner's Dilemma is its single form, N times, however it is stepped."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from vec_envs_under_test import play

from drl.core.errors import BadInput
from drl.envs.make_vec_env import make_vec_env
from drl.games.ipd import IteratedPrisonersDilemmaEnv, IteratedPrisonersDilemmaVectorEnv

ID = "IteratedPrisonersDilemma-v0"
SETTINGS = {
    "as specified": {},
    "fixed rounds": {"rounds": 7, "history": 3, "opponents": ["grim", [0.2, 0.4, 0.6, 0.8, 0.5]], "weights": [1, 2]},
    "long history": {"survival": 0.99, "history": 150, "payoffs": [1, -2, 3, 0]},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("seed", [3, [11, 5, 11, 0, 7]], ids=["one seed", "a seed each"])
def test_step_by_step_it_is_gymnasiums_vector_of_single_envs(seed, settings):
    """Observations, rewards, flags and infos with their masks; long enough for several blocks of draws and windows."""
    single = SyncVectorEnv(
        [lambda: IteratedPrisonersDilemmaEnv(**settings)] * 5, autoreset_mode=AutoresetMode.SAME_STEP
    )
    vector = IteratedPrisonersDilemmaVectorEnv(5, **settings)
    equal(single.reset(seed=seed), vector.reset(seed=seed))
    rng = np.random.default_rng(0)
    ends = 0
    for t in range(500):
        action = rng.integers(2, size=5)
        expected, got = single.step(action), vector.step(action)
        equal(expected, got)
        ends += int((got[2] | got[3]).sum())
        if t == 300:
            equal(single.reset(), vector.reset())  # an unseeded reset goes on in the same streams
    assert ends > 10


def equal(expected, got):
    if isinstance(expected, dict):
        assert set(expected) <= set(got), "an info is missing"
        for key in got:
            if key.startswith("_"):
                assert np.array_equal(got[key], expected.get(key, np.zeros(5, bool))), key
            elif isinstance(got[key], dict):
                equal(expected[key], got[key])
            else:  # where the mask is False the arrays hold what does not matter
                for i in np.flatnonzero(got[f"_{key}"]):
                    assert np.array_equal(expected[key][i], got[key][i]), key
    elif isinstance(expected, tuple):
        for one, other in zip(expected, got, strict=True):
            equal(one, other)
    else:
        assert expected.dtype == got.dtype
        assert np.array_equal(expected, got)


def test_a_env_does_not_depend_on_how_many_there_are():
    def env_two(n):
        env = IteratedPrisonersDilemmaVectorEnv(n)
        env.reset(seed=4)
        return np.stack([env.step(np.full(n, t % 2))[0][2] for t in range(100)])

    assert np.array_equal(env_two(3), env_two(40))


def test_what_was_handed_out_stays_as_it_was_and_is_the_receivers():
    env, twin = (IteratedPrisonersDilemmaVectorEnv(4) for _ in range(2))
    obs, _ = env.reset(seed=0)
    twin.reset(seed=0)
    kept = [(obs, obs.copy())]
    for t in range(150):
        obs, reward, *_, infos = env.step(np.full(4, t % 2))
        arrays = [obs, infos["opponent"], infos.get("outcome"), infos.get("final_obs")]
        kept += [(array, array.copy()) for array in arrays if array is not None]
        scribbled, same_reward, *_ = twin.step(np.full(4, t % 2))
        assert np.array_equal(scribbled, obs)
        assert np.array_equal(same_reward, reward)
        scribbled[:] = 9.0
    for one, other in kept:
        for row, old in zip(one, other, strict=True):
            assert np.array_equal(row, old)


def test_opponents_move_and_games_end_as_often_as_they_should():
    """Cooperation rates by the opponent's own last outcome, opponents by weight, games by survival."""
    probs = [0.3, 0.9, 0.2, 0.6, 0.1]
    env = IteratedPrisonersDilemmaVectorEnv(2048, {"x": probs, "y": [0] * 5}, weights=[3, 1], survival=0.9)
    obs, infos = env.reset(seed=1)
    rng = np.random.default_rng(0)
    seen, cooperated, ends, with_x = np.zeros(5), np.zeros(5), 0, 0
    for _ in range(60):
        state, is_x = obs[:, -1].argmax(axis=1), infos["opponent"] == "x"
        move = rng.integers(2, size=2048)
        obs, reward, terminated, _, infos = env.step(move)
        seen += np.bincount(state[is_x], minlength=5)
        cooperated += np.bincount(state[is_x], np.isin(reward, (3, 5))[is_x], minlength=5)
        with_x += int(is_x.sum())
        ends += int(terminated.sum())
    expected = np.array(probs)[[0, 1, 3, 2, 4]]  # the agent's CD is the opponent's DC
    assert (np.abs(cooperated / seen - expected) < 4 * np.sqrt(expected * (1 - expected) / seen)).all()
    rounds = 60 * 2048
    assert abs(ends / rounds - 0.1) < 4 * np.sqrt(0.09 / rounds)
    assert abs(with_x / rounds - 0.75) < 4 * np.sqrt(0.1875 / rounds * 19)  # games of about ten rounds: fewer draws


@pytest.mark.parametrize("vectorization", ["sync", "native"])
@pytest.mark.parametrize("ending", [{"rounds": 6}, {"survival": 0.8}], ids=["truncated", "terminated"])
def test_rows_are_true_successors_and_returns_add_up(vectorization, ending):
    with make_vec_env(ID, 6, seed=1, vectorization=vectorization, env_kwargs=ending | {"history": 4}) as envs:
        rows, episodes = play(envs, lambda obs, i: int(obs[-1].argmax() + i) % 2, 200)
    for env_rows, env_episodes in zip(rows, episodes, strict=True):
        previous, total, ends = None, 0.0, []
        for obs, action, reward, terminated, truncated, next_obs in env_rows:
            obs, next_obs = np.float32(obs), np.float32(next_obs)
            if previous is not None:
                assert np.array_equal(obs, previous)
            assert np.array_equal(next_obs[:-1], obs[1:])
            outcome = int(next_obs[-1].argmax()) - 1
            assert outcome // 2 == 1 - action
            assert reward == (3, 0, 5, 1)[outcome]
            assert not (terminated if "rounds" in ending else truncated)
            total += reward
            previous = next_obs
            if terminated or truncated:
                previous = np.tile(np.eye(5, dtype=np.float32)[0], (4, 1))
                ends.append(total)
                total = 0.0
        assert [episode.episode_return for episode in env_episodes] == pytest.approx(ends)
        assert len(ends) > 20


def test_auto_takes_the_vector_form_for_many_envs():
    with make_vec_env(ID, 16, env_kwargs={"opponents": ["grim", "random"]}) as envs:
        assert envs.vectorization == "native"
        assert envs.reset().shape == (16, 20, 5)


@pytest.mark.parametrize("actions", [[0, 2], [-1, 0], [0], [[0], [1]], [0.0, 1.0], [True, False]])
def test_actions_that_are_no_moves_are_refused(actions):
    env = IteratedPrisonersDilemmaVectorEnv(2)
    with pytest.raises(BadInput, match="reset"):
        env.step([0, 0])
    env.reset(seed=np.int64(0))
    with pytest.raises(BadInput, match="0 \\(defect\\)"):
        env.step(np.array(actions))


@pytest.mark.parametrize("seed", [-1, [1], [1, -2], ["a", "b"], 1.5])
def test_bad_seeds_and_counts_are_refused(seed):
    with pytest.raises(BadInput, match="expected a whole number"):
        IteratedPrisonersDilemmaVectorEnv(2).reset(seed=seed)
    with pytest.raises(BadInput, match="num_envs"):
        IteratedPrisonersDilemmaVectorEnv(0)
