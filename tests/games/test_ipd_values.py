"""Exact values of the iterated Prisoner's Dilemma against play, brute force, value iteration and by hand."""

import itertools

import numpy as np
import pytest

from drl.core.errors import BadInput
from drl.games.ipd import NAMED, IteratedPrisonersDilemmaVectorEnv, Rules, as_pool
from drl.games.ipd.exact_values import (
    best_memory_one_reply,
    best_response,
    policy_values,
    pool_value,
    upper_bound,
)
from drl.games.ipd.tournament import observe_behavior, play_games, round_robin, seat_for

SEEN_BY_OTHER = {"": 0, "CC": 1, "CD": 3, "DC": 2, "DD": 4}
STRANGE = Rules(payoffs=[2.0, -1.5, 3.5, 0.25], survival=0.7)


def naive_value(policy, opponent, rules, rounds):
    """Expected return by following every history, one outcome at a time; `rounds` deep."""

    def follow(last, left):
        if left == 0:
            return 0.0
        mine = policy[["", "CC", "CD", "DC", "DD"].index(last)]
        other = opponent[SEEN_BY_OTHER[last]]
        total = 0.0
        for outcome, payoff in zip(("CC", "CD", "DC", "DD"), rules.payoffs, strict=True):
            chance = (mine if outcome[0] == "C" else 1 - mine) * (other if outcome[1] == "C" else 1 - other)
            if chance:
                total += chance * (payoff + (rules.survival or 1.0) * follow(outcome, left - 1))
        return total

    return follow("", rounds)


def test_by_hand():
    survival = Rules(survival=0.9)
    assert policy_values([0] * 5, "tit_for_tat", survival) == pytest.approx([5 + 0.9 / 0.1 * 1])
    assert policy_values([1] * 5, "suspicious_tit_for_tat", survival) == pytest.approx([0.9 / 0.1 * 3])
    # Always defecting against win-stay-lose-shift earns 5, 1, 5, 1, …
    assert policy_values([0] * 5, "win_stay_lose_shift", survival) == pytest.approx([(5 + 0.9) / (1 - 0.81)])
    assert policy_values([0] * 5, "win_stay_lose_shift", Rules(rounds=5)).tolist() == [5 + 1 + 5 + 1 + 5]
    assert policy_values([0.5] * 5, "random", Rules(survival=0.0)) == pytest.approx([9 / 4])
    weighted = as_pool(["always_cooperate", "tit_for_tat"], [3, 1])
    assert float(pool_value([0] * 5, weighted, survival)) == pytest.approx(0.75 * 50 + 0.25 * 14)
    assert upper_bound(weighted, survival) == pytest.approx(0.75 * 50 + 0.25 * 30)


@pytest.mark.parametrize("seed", range(3))
def test_linear_solve_is_what_following_all_histories_gives(seed):
    policy, opponent = np.random.default_rng(seed).random((2, 5))
    fixed = Rules(payoffs=STRANGE.payoffs, rounds=5)
    assert policy_values(policy, opponent[None], fixed)[0] == pytest.approx(naive_value(policy, opponent, fixed, 5))
    short = Rules(payoffs=STRANGE.payoffs, survival=0.1)  # what comes after 8 rounds is 10⁻⁸ of it
    expected = naive_value(policy, opponent, short, 8)
    assert policy_values(policy, opponent[None], short)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("rules", [Rules(), STRANGE, Rules(rounds=1), Rules(rounds=12)], ids=str)
def test_no_memory_one_policy_beats_the_best_response(rules):
    """All 32 deterministic policies; where games end by chance one of them must reach it."""
    corners = np.array(list(itertools.product((0.0, 1.0), repeat=5)))
    tables = [*NAMED.values(), *np.random.default_rng(0).random((20, 5))]
    for opponent in tables:
        values = policy_values(corners, np.array(opponent)[None], rules)[:, 0]
        best = best_response([list(opponent)], rules)
        assert values.max() <= best.value + 1e-9
        if rules.survival is not None:
            assert values.max() == pytest.approx(best.value)
            assert policy_values(best.policy, np.array(opponent)[None], rules)[0] == pytest.approx(best.value)


def test_policy_iteration_agrees_with_value_iteration():
    for opponent in np.random.default_rng(1).random((10, 5)):
        other = opponent[[0, 1, 3, 2, 4]]
        values = np.zeros(5)
        for _ in range(200):  # 0.7²⁰⁰ is nothing
            future = np.array(STRANGE.payoffs) + 0.7 * values[1:]
            cooperate = other * future[0] + (1 - other) * future[1]
            values = np.maximum(cooperate, other * future[2] + (1 - other) * future[3])
        assert best_response([opponent.tolist()], STRANGE).values == pytest.approx(values)


def test_fixed_rounds_against_every_plan():
    """The best reply over all trees of moves, by brute force without states."""
    rules = Rules(rounds=4)

    def best(history, opponent):
        if len(history) == rules.rounds:
            return 0.0
        chance = opponent[SEEN_BY_OTHER[history[-1] if history else ""]]
        worth = {}
        for move in "CD":
            after = [(f"{move}C", chance), (f"{move}D", 1 - chance)]
            payoff = dict(zip(("CC", "CD", "DC", "DD"), rules.payoffs, strict=True))
            worth[move] = sum(p * (payoff[o] + best((*history, o), opponent)) for o, p in after if p)
        return max(worth.values())

    for opponent in (*NAMED.values(), *np.random.default_rng(2).random((3, 5)).tolist()):
        assert best_response([list(opponent)], rules).value == pytest.approx(best((), opponent))
    reply = best_response("tit_for_tat", rules)
    assert reply.value == 3 * 3 + 5
    assert reply.policy[:, 1].tolist() == [1, 1, 1, 0]  # the end is known, so the last defection is free


def test_the_numbers_of_the_readme():
    values = {name: best_response(name).value for name in NAMED}
    expected = [100, 20, 60, 60, 57, 61.0256, 61.0256, 60, 46.5882, 60]
    assert list(values.values()) == pytest.approx(expected, abs=1e-4)
    assert upper_bound("all") == pytest.approx(np.mean(expected), abs=1e-4)
    policy, value = best_memory_one_reply("all")
    assert value == pytest.approx(51.4793, abs=1e-4)
    assert policy == pytest.approx([1, 1, 0.732, 0, 0.039], abs=1e-3)


@pytest.mark.parametrize("rules", [Rules(), Rules(rounds=6)], ids=str)
@pytest.mark.parametrize("pool", ["all", "three"])
def test_no_policy_of_a_grid_beats_the_best_memory_one_reply(pool, rules):
    opponents = as_pool("all") if pool == "all" else as_pool(np.random.default_rng(5).random((3, 5)), [1, 2, 3])
    policy, value = best_memory_one_reply(opponents, rules)
    assert value == pytest.approx(float(pool_value(policy, opponents, rules)))
    levels = np.linspace(0, 1, 6)
    grid = np.array(list(itertools.product(levels, repeat=5)))
    assert pool_value(grid, opponents, rules).max() <= value + 1e-9
    nearby = np.clip(policy + np.random.default_rng(0).normal(0, 0.02, (2000, 5)), 0, 1)
    assert pool_value(nearby, opponents, rules).max() <= value + 1e-6
    assert value <= upper_bound(opponents, rules) + 1e-9


def test_against_one_opponent_the_best_memory_one_reply_is_the_best_response():
    for name in NAMED:
        assert best_memory_one_reply(name)[1] == pytest.approx(best_response(name).value)


@pytest.mark.parametrize("ending", [{"survival": 0.9}, {"rounds": 15}], ids=["survival", "rounds"])
def test_play_in_the_env_earns_the_exact_value_of_a_policy(ending):
    """Independent of the formulas: the environment itself, whole games only."""
    policy, num_envs, games = np.array([0.8, 0.9, 0.3, 0.6, 0.2]), 1024, 12
    env = IteratedPrisonersDilemmaVectorEnv(num_envs, **ending)
    obs, _ = env.reset(seed=2)
    rng = np.random.default_rng(3)
    total, finished = np.zeros(num_envs), np.zeros(num_envs, int)
    while finished.min() < games:
        move = (rng.random(num_envs) < policy[obs[:, -1].argmax(axis=1)]).astype(int)
        obs, reward, terminated, truncated, _ = env.step(move)
        total += np.where(finished < games, reward, 0.0)
        finished += terminated | truncated
    mean, error = total.mean() / games, total.std() / games / np.sqrt(num_envs)
    assert error < 0.02 * mean
    assert abs(mean - float(pool_value(policy, "all", Rules(**ending)))) < 4 * error


@pytest.mark.parametrize("rules", [Rules(survival=0.9), Rules(rounds=15)], ids=str)
def test_games_between_seats_earn_the_exact_values(rules):
    one, other = np.random.default_rng(4).random((2, 5))
    played = play_games(seat_for(one, rules), seat_for(other, rules), rules, games=4000)
    for values, exact in (
        (played.returns(), policy_values(one, other[None], rules)),
        (played.returns(second=True), policy_values(other, one[None], rules)),
    ):
        assert abs(values.mean() - exact[0]) < 4 * values.std() / np.sqrt(4000)
    rates = np.array(list(played.cooperation().values()))
    assert rates == pytest.approx(one, abs=0.03)


class TitForTatAgent:
    """An agent as training leaves it: `act` on a batch of observations."""

    def act(self, obs, explore=False):
        return np.isin(obs[:, -1].argmax(axis=1), (0, 1, 3)).astype(int)


def test_an_agent_in_the_table_is_what_it_plays():
    rules = Rules(rounds=20)
    players = {"agent": TitForTatAgent(), "tit_for_tat": "tit_for_tat", "grim": "grim", "defect": [0] * 5}
    table = round_robin(players, rules, games=3)
    assert table.payoffs[0] == pytest.approx([3, 3, 3, 19 / 20])
    assert table.payoffs[:, 0] == pytest.approx([3, 3, 3, 24 / 20])
    assert table.payoffs[1] == pytest.approx(table.payoffs[0])  # exact values, not play
    assert table.errors == pytest.approx(0)
    assert table.scores.tolist() == pytest.approx([6.95 / 3, 6.95 / 3, 6.95 / 3, 1.2])
    assert table.ranking[-1] == "defect"


class Counter:
    """A recurrent agent of its own kind: it sees one round and cooperates in every third one of a game."""

    class Spec:
        shape = (1, 5)

    obs_spec = Spec()
    played = 99  # in the middle of another game

    def begin(self):
        self.played = 0

    def act(self, obs, explore=False):
        assert obs.shape[1:] == (1, 5)
        self.played = self.played + 1
        return np.full(len(obs), int(self.played % 3 == 0))


def test_an_agent_with_a_memory_meets_itself_and_is_left_as_it_was():
    agent = Counter()
    table = round_robin({"agent": agent, "cooperate": "always_cooperate"}, Rules(rounds=6), games=2)
    assert table.payoffs[0] == pytest.approx([(1 + 1 + 3) / 3, (5 + 5 + 3) / 3])
    assert agent.played == 99


def test_behavior_of_an_agent(tmp_path):
    seen = observe_behavior(TitForTatAgent(), ["always_defect", "always_cooperate"], games=2)
    assert seen.payoffs == pytest.approx([0.95, 3.0], abs=1e-5)
    assert seen.best == pytest.approx([1, 5])
    assert seen.share == pytest.approx(3.95 / 6, abs=1e-5)
    assert np.isnan(seen.cooperation[0]).tolist() == [False, True, False, True, False]
    assert seen.cooperation[0, [0, 2, 4]].tolist() == [1, 0, 0]
    from matplotlib.image import imread

    assert imread(seen.draw(tmp_path / "new" / "picture.png", "title")).shape[2] == 4
    drawn = seen.draw(tmp_path / "picture.svg", "title").read_text()
    for words in ("title", "always_defect", "first round", "after CD", "95%", "60%", "1.00"):
        assert f">{words}</text>" in drawn


def test_what_cannot_be_valued_is_refused():
    assert best_response([0.0] * 5).value == pytest.approx(20)  # one row is one opponent
    with pytest.raises(BadInput, match="10 opponents"):
        best_response("all")
    with pytest.raises(BadInput, match="five probabilities"):
        policy_values([1, 1], "grim")
    with pytest.raises(BadInput, match="five probabilities"):
        policy_values([1, 1, 1, 1, 2], "grim")
    with pytest.raises(BadInput, match="games = 0"):
        play_games(seat_for("grim", Rules()), seat_for("grim", Rules()), games=0)
    with pytest.raises(BadInput, match="10 players for one seat"):
        seat_for("all", Rules())
    with pytest.raises(BadInput, match="without players"):
        round_robin({})
