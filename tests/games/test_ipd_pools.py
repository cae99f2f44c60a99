"""Pools of opponents: plain data, files, breeding."""

import json

import numpy as np
import pytest

from drl.core.errors import BadInput, UnusableFile
from drl.games.ipd import IteratedPrisonersDilemmaEnv, Rules, as_pool, load_pool
from drl.games.ipd.exact_values import Breeding, breed_pool, payoff_matrix, policy_values
from drl.settings.experiment import RunConfig


def test_the_same_pool_in_every_notation(tmp_path):
    rows = np.array([[1, 1, 0, 1, 0], [1, 1, 0, 0, 0]])
    pools = [
        as_pool(rows, [1, 3]),
        as_pool(rows.tolist(), (1, 3)),
        as_pool(["tit_for_tat", "grim"], [0.25, 0.75]),
        as_pool({"a": "tit_for_tat", "b": [1, 1, 0, 0, 0]}, np.array([2, 6])),
        as_pool(as_pool(["tit_for_tat", "grim"]), [1, 3]),
    ]
    pools[0].save(tmp_path / "pool.json")
    pools.append(as_pool(str(tmp_path / "pool.json")))
    pools.append(load_pool(tmp_path / "pool.json", weights=[5, 15]))
    for pool in pools:
        assert np.array_equal(pool.probs, rows)
        assert pool.weights.tolist() == [0.25, 0.75]
    assert pools[0].names == pools[-1].names == ("0", "1")


def test_the_command_lines_values_make_a_pool(tmp_path):
    as_pool(["grim", "random"], [1, 4]).save(tmp_path / "p.json")
    for pair, names in (
        ("opponents=tit_for_tat", ("tit_for_tat",)),
        ("opponents=[grim, random]", ("grim", "random")),
        ("opponents={x: [1, 0.5, 0, 1, 0]}", ("x",)),
        (f"opponents={tmp_path}/p.json", ("grim", "random")),
    ):
        env = IteratedPrisonersDilemmaEnv(**RunConfig(env_kwargs=(pair,)).env_config.env_kwargs)
        assert env.pool.names == names
    assert env.pool.weights.tolist() == [0.2, 0.8]


def test_a_saved_pool_is_the_pool_to_the_last_bit(tmp_path):
    rng = np.random.default_rng(0)
    pool = as_pool(rng.random((7, 5)), rng.random(7))
    pool.save(tmp_path / "deep" / "pool.json")
    again = load_pool(tmp_path / "deep" / "pool.json")
    assert np.array_equal(again.probs, pool.probs)
    assert again.weights == pytest.approx(pool.weights, abs=1e-16)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["pool.json"]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("{", UnusableFile, "not valid JSON"),
        ("[]", UnusableFile, "no pool of opponents"),
        ('{"format": 99, "players": []}', UnusableFile, "another version"),
        ('{"format": 1}', UnusableFile, "players"),
        ('{"format": 1, "players": [{"name": "grim"}]}', UnusableFile, "weight"),
        ('{"format": 1, "players": [3]}', UnusableFile, "without name and weight"),
        ('{"format": 1, "players": []}', BadInput, "p.json: .*at least one"),
        ('{"format": 1, "players": [{"name": "grimm", "weight": 1}]}', BadInput, "p.json: .*did you mean 'grim'"),
        ('{"format": 1, "players": [{"name": "x", "weight": 1, "cooperation": [1]}]}', BadInput, "five probabilities"),
        ('{"format": 1, "players": [{"name": "grim", "weight": -1}]}', BadInput, "p.json: weights"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, content, error, message):
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(error, match=message):
        load_pool(tmp_path / "p.json")


def test_a_missing_file_is_named():
    with pytest.raises(UnusableFile, match=r"nowhere\.json does not exist"):
        IteratedPrisonersDilemmaEnv("nowhere.json")


def test_the_payoff_matrix_is_every_pairs_value():
    table, rules = np.random.default_rng(0).random((4, 5)), Rules(survival=0.5)
    matrix = payoff_matrix(table, rules)
    for i in range(4):
        for j in range(4):
            assert matrix[i, j] == pytest.approx(policy_values(table[i], table[j][None], rules)[0] / 2)


def test_one_generation_by_hand():
    """Grid {0, 1}⁵ in games of one round: only the first move counts, so half the grid cooperates."""
    breeding = Breeding(levels=(0, 1), generations=1, selection=0.5, mutation=0.1, least_share=0.0)
    bred = breed_pool(breeding, Rules(rounds=1))
    cooperators = np.arange(32) >= 16  # the first probability varies slowest
    earned = np.where(cooperators, 1.5, 3.0)  # against half cooperators: (3 + 0) / 2 and (5 + 1) / 2
    grown = np.exp(0.5 * earned)
    expected = 0.9 * grown / grown.sum() + 0.1 / 32
    assert bred.shares[1] == pytest.approx(expected)
    assert bred.payoffs[0] == pytest.approx(2.25)
    assert bred.pool.weights.sum() == pytest.approx(1)


def test_one_round_breeds_defectors_and_long_games_breed_reciprocity():
    one_round = breed_pool(Breeding(levels=(0, 1)), Rules(rounds=1))
    assert (one_round.pool.probs[:, 0] == 0).all()
    assert one_round.payoffs[-1] < 1.1
    long = breed_pool(Breeding(levels=(0, 1)), Rules(survival=0.95))
    assert (long.pool.probs[:, :2] == 1).all()  # nice
    assert long.pool.weights[long.pool.probs[:, 2] == 0].sum() > 0.8  # and not to be exploited
    assert long.payoffs[-1] > 2.9
    assert (np.diff(long.pool.weights) <= 0).all()


def test_without_mutation_what_is_gone_stays_gone_and_with_it_nothing_is():
    for mutation, least in ((0.0, 0.0), (0.01, 0.01 / 32)):
        bred = breed_pool(Breeding(levels=(0, 1), mutation=mutation, generations=2000))
        assert bred.shares.sum(axis=1) == pytest.approx(1)
        assert bred.shares.min() >= least
        assert (bred.shares.min() < 1e-6) == (mutation == 0.0)


def test_a_bred_pool_goes_to_a_file_and_into_a_env(tmp_path):
    bred = breed_pool(Breeding(generations=50))
    bred.pool.save(tmp_path / "bred.json")
    env = IteratedPrisonersDilemmaEnv(str(tmp_path / "bred.json"))
    assert env.pool.names == bred.pool.names
    assert json.loads((tmp_path / "bred.json").read_text())["players"][0]["name"] == bred.pool.names[0]
    assert env.reset(seed=0)[1]["opponent"] in bred.pool.names


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"levels": ()}, "different probabilities"),
        ({"levels": (0, 0, 1)}, "different probabilities"),
        ({"levels": (0, 2)}, "different probabilities"),
        ({"levels": (0, 0.2, 0.5, 0.8, 1)}, "at most 4 levels"),
        ({"generations": 0}, "generations"),
        ({"selection": 0.0}, "selection"),
        ({"mutation": 1.0}, "mutation"),
    ],
)
def test_impossible_breeding_is_refused(settings, message):
    with pytest.raises(BadInput, match=message):
        Breeding(**settings)


def test_a_pool_without_survivors_is_refused():
    with pytest.raises(BadInput, match="no strategy reached"):
        breed_pool(Breeding(levels=(0, 1), generations=1, least_share=0.9))
