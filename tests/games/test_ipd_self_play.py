"""The Prisoner's Dilemma between two learners: the same rules as against an opponent, and PPO plays both sides."""

import itertools

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

import drl
from drl.core.errors import BadInput
from drl.envs.make_vec_env import make_vec_env
from drl.games.ipd.ipd_env import IteratedPrisonersDilemmaEnv
from drl.games.ipd.self_play import PLAYERS, SelfPlay, parallel_env

GAME = "pettingzoo:drl.games.ipd.self_play"
PAYOFF = {(1, 1): (3, 3), (1, 0): (0, 5), (0, 1): (5, 0), (0, 0): (1, 1)}  # 1 cooperates, 0 defects


def test_pettingzoo_accepts_it(monkeypatch):
    monkeypatch.setattr("warnings.warn", lambda *_, **__: None)  # it recommends a name of its own for the observations
    parallel_api_test(parallel_env(rounds=5), num_cycles=50)
    parallel_seed_test(parallel_env)


def test_payoffs_of_every_pair_of_moves():
    with make_vec_env(GAME, env_kwargs={"rounds": 4}) as envs:
        envs.reset()
        for moves, payoffs in PAYOFF.items():
            assert envs.step(np.array(moves)).reward.tolist() == list(payoffs)


@pytest.mark.parametrize("moves", itertools.product(range(2), repeat=3))
@pytest.mark.parametrize("player", PLAYERS)
def test_each_player_plays_the_game_of_the_single_environment(player, moves):
    """Against a player that always defects, each side sees and earns what the agent of the Gymnasium form does."""
    single, game = IteratedPrisonersDilemmaEnv("always_defect", rounds=3, history=2), SelfPlay(rounds=3, history=2)
    obs, _ = single.reset(seed=1)
    seen, _ = game.reset(seed=1)
    other = next(name for name in PLAYERS if name != player)
    for move in moves:
        np.testing.assert_array_equal(seen[player], obs)
        obs, reward, terminated, truncated, _ = single.step(move)
        seen, rewards, terminations, truncations, _ = game.step({player: move, other: 0})
        assert (reward, terminated, truncated) == (rewards[player], terminations[player], truncations[player])
    np.testing.assert_array_equal(seen[player], obs)
    assert truncated
    assert game.agents == []


def test_games_end_by_chance():
    with make_vec_env(GAME, num_envs=50, seed=1, env_kwargs={"survival": 0.5}) as envs:
        envs.reset()
        episodes = [each for _ in range(40) for each in envs.step(np.ones(100, int)).episodes]
    assert all(each.terminated and each.episode_return == 3 * each.length for each in episodes)
    assert np.mean([each.length for each in episodes]) == pytest.approx(2, abs=0.2)


def test_one_policy_learns_from_both_sides(tmp_path):
    settings = {"num_envs": 4, "rollout_length": 16, "results_dir": str(tmp_path), "plots": False, "console": False}
    done = drl.train("ppo", env=GAME, env_kwargs={"rounds": 8}, total_timesteps=512, seed=3, **settings)
    assert done.log.env_steps == 512, "two rows for each of four games"
    assert done.log.episodes == 64
    assert (done.folder / "videos" / "final_agent.mp4").is_file()
    result = drl.evaluate(done.folder, episodes=6)
    first, second = (result.episodes[i].episode_return for i in (0, 1))
    assert len(result.episodes) == 6
    assert first + second in range(8 * 2, 8 * 6 + 1)


def test_wrong_moves():
    game = SelfPlay(rounds=1)
    with pytest.raises(BadInput, match="call reset"):
        game.step({})
    game.reset(seed=1)
    with pytest.raises(BadInput, match="expected 0"):
        game.step({"player_0": 2, "player_1": 0})
