"""Games of several agents: rows for agents, those who are out, exact continuation, names, errors."""

import sys

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv
from roster_game import ACTS, ENDS, Masked, Roster

from drl.core.errors import BadInput, EnvFailed, MissingExtra
from drl.envs.env_config import check_trusted
from drl.envs.env_names import game_module
from drl.envs.make_vec_env import make_env, make_vec_env
from drl.envs.parallel_vec_env import SeveralAgents


def play(envs, steps, seed=0):
    """Steps with random actions, after a reset if there was none."""
    rng = np.random.default_rng(seed)
    obs = envs.stats.obs if envs.stats.begun else envs.reset()
    taken = []
    for _ in range(steps):
        action = rng.integers(4, size=envs.num_envs)
        step = envs.step(action)
        taken.append((obs, action, step))
        obs = step.obs
    return taken


def test_rows_are_agents_and_those_who_are_out_contribute_nothing():
    with make_vec_env(Roster, num_envs=2, seed=3) as envs:
        assert (envs.num_envs, envs.vectorization) == (6, "parallel")
        taken = play(envs, 10)  # two games of five rounds
    returns = np.zeros(6)
    for number, (obs, action, step) in enumerate(taken):
        current = number % 5 + 1
        acts = np.array([current in ACTS[name] for name in ACTS] * 2)
        ends = np.array([current == ACTS[name][-1] for name in ACTS] * 2)
        died = ends & np.array([ENDS[name] == "terminated" for name in ACTS] * 2)
        np.testing.assert_array_equal(step.valid, acts)
        np.testing.assert_array_equal(step.terminated, died)
        np.testing.assert_array_equal(step.truncated, ends & ~died)
        np.testing.assert_array_equal(step.reward, np.where(acts, 10 * current + action, 0))
        returns += step.reward
        np.testing.assert_array_equal(step.next_obs[acts, 1], current)
        np.testing.assert_array_equal(step.next_obs[acts, 2], action[acts])
        if current == 5:
            assert set(step.obs[[0, 1, 3, 4], 1]) == {0}, "the next game has begun"
            assert (step.obs[[0, 1, 3, 4], 0] != obs[[0, 1, 3, 4], 0]).all(), "with another seed"
        else:
            np.testing.assert_array_equal(step.obs, step.next_obs)
        finished = {each.env_index: each for each in step.episodes}
        assert sorted(finished) == np.flatnonzero(ends).tolist()
        for row, episode in finished.items():
            name = list(ACTS)[row % 3]
            assert episode.length == len(ACTS[name])
            assert episode.episode_return == returns[row]
            assert episode.terminated == (ENDS[name] == "terminated")
            assert episode.played is None
            returns[row] = 0
    assert envs.stats.env_steps == 2 * 2 * sum(map(len, ACTS.values()))
    assert envs.stats.episodes == 2 * 6


def test_a_copy_does_not_depend_on_the_number_of_copies():
    with make_vec_env(Roster, num_envs=1, seed=3) as one, make_vec_env(Roster, num_envs=3, seed=3) as three:
        np.testing.assert_array_equal(one.reset(), three.reset()[:3])
        for _ in range(12):
            few, many = one.step(np.ones(3, int)), three.step(np.ones(9, int))
            np.testing.assert_array_equal(few.obs, many.obs[:3])


@pytest.mark.parametrize("steps", [0, 1, 3, 9])
@pytest.mark.parametrize("game", [Roster, Masked])
def test_continues_exactly_in_the_middle_of_games(game, steps):
    with make_vec_env(game, num_envs=2, seed=3) as envs, make_vec_env(game, num_envs=2, seed=4) as others:
        play(envs, steps)
        assert others.load_state_dict(envs.state_dict()) is None
        for ours, theirs in zip(play(envs, 9, seed=1), play(others, 9, seed=1), strict=True):
            for a, b in zip(ours[2], theirs[2], strict=True):
                np.testing.assert_equal(a, b)


def test_a_game_that_does_not_repeat_itself_says_so(monkeypatch):
    with make_vec_env(Roster, num_envs=2, seed=3) as envs:
        play(envs, 3)
        state = envs.state_dict()
        monkeypatch.setattr(Roster, "noise", 1.0)
        assert "copy 0 of 'Roster', played again with 3 rounds, shows another" in envs.load_state_dict(state)


def test_masks_are_those_of_the_agents_in_the_game():
    with make_vec_env(Masked, seed=3) as envs:
        envs.reset()
        np.testing.assert_array_equal(envs.action_mask, np.ones((3, 4)))
        step = envs.step(np.zeros(3, int))
        assert step.action_mask[:, 1].tolist() == [False, False, False]
        step = envs.step(np.zeros(3, int))
        assert step.next_action_mask[:, 1].tolist() == [False, False, False]
        assert step.action_mask[:, 1].tolist() == [True, False, False], "Ann is out: anything goes"


class Leaves(Roster):
    def step(self, actions):
        result = super().step(actions)
        self.agents = ["bob"]
        return result


class Differs(Roster):
    def observation_space(self, agent):
        return spaces.Box(-1, 1, (3 if agent == "ann" else 4,), np.float32)


class Empty(Roster):
    def reset(self, seed=None, options=None):
        result = super().reset(seed)
        self.agents = []
        return result


class Turns(AECEnv):
    metadata = {"is_parallelizable": False}  # noqa: RUF012


def test_what_cannot_be_played_is_said_in_one_line():
    with make_vec_env(Leaves) as envs:
        envs.reset()
        with pytest.raises(EnvFailed, match="'ann' left the game, neither terminated nor truncated"):
            envs.step(np.zeros(3, int))
    with make_vec_env(Empty) as envs, pytest.raises(EnvFailed, match="no agent is in the game after reset"):
        envs.reset()
    with pytest.raises(BadInput, match=r"observations differ: ann has .*\(3,\).*, bob has .*pad_observations_v0"):
        make_vec_env(Differs)
    with pytest.raises(BadInput, match="is played in turns"):
        make_vec_env(Turns)
    with pytest.raises(BadInput, match="expected vectorization auto or sync, not async"):
        make_vec_env(Roster, 2, vectorization="async")
    with pytest.raises(SeveralAgents, match="Roster is a game of several agents"):
        make_env(Roster)
    with pytest.raises(BadInput, match="cannot wrap"):
        make_vec_env(Roster, wrappers=["TimeLimit:max_episode_steps=3"])


class Doubled(Roster):
    """A wrapper for games, as SuperSuit has them."""

    def __init__(self, game):
        super().__init__()

    def step(self, actions):
        seen, rewards, *rest = super().step(actions)
        return seen, {name: 2 * reward for name, reward in rewards.items()}, *rest


def test_wrappers_for_games_and_copies_of_a_game():
    with make_vec_env(Roster(), wrappers=[Doubled]) as envs:
        envs.reset()
        assert envs.step(np.ones(3, int)).reward.tolist() == [22, 22, 0]


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("pettingzoo:butterfly.pistonball_v6", "pettingzoo.butterfly.pistonball_v6"),
        ("pettingzoo:mpe2.simple_spread_v3", "mpe2.simple_spread_v3"),
        ("pettingzoo:mpe.simple_spread_v3", "mpe2.simple_spread_v3"),
        ("pettingzoo:drl.games.ipd.self_play", "drl.games.ipd.self_play"),
    ],
)
def test_names(name, module):
    assert game_module(name) == module


def test_unknown_names():
    with pytest.raises(BadInput, match="did you mean 'simple_spread_v3'"):
        make_vec_env("pettingzoo:mpe2.simple_spread_v9")
    with pytest.raises(BadInput, match="os has no parallel_env"):
        make_vec_env("pettingzoo:os")
    with pytest.raises(BadInput, match="tictactoe_v3 is played in turns"):
        make_vec_env("pettingzoo:classic.tictactoe_v3")


def test_without_pettingzoo_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(MissingExtra, match=r"pip install 'drl-workshop\[pettingzoo\]'"):
        make_vec_env("pettingzoo:mpe2.simple_spread_v3")


def test_a_file_may_name_only_games_of_known_packages():
    check_trusted("pettingzoo:mpe2.simple_spread_v3", [], "card")
    check_trusted("pettingzoo:butterfly.pistonball_v6", [], "card")
    with pytest.raises(BadInput, match="importing the module 'evil' runs its code"):
        check_trusted("pettingzoo:evil", [], "card")
    with pytest.raises(BadInput, match=r"importing the module 'evil\.py' runs its code"):
        check_trusted("pettingzoo:evil.py", [], "card")
    with pytest.raises(BadInput, match=r"importing the module 'mpe2\.py' runs its code"):
        check_trusted("pettingzoo:mpe2.py", [], "card")
