"""The axelrod package as an oracle, as a source of opponents and as a tournament for our agents.

Importing the package takes seconds, so it happens in the first test that needs it, not while tests are collected.
"""

import importlib.util
import inspect
import sys
import warnings

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from drl.algorithms.ppo import PPOConfig
from drl.core.configs import ModelConfig
from drl.core.errors import BadInput, MissingExtra
from drl.core.seeding import Seeds
from drl.engines.torch.build import build_learner
from drl.envs.make_vec_env import make_vec_env
from drl.games.ipd import NAMED, IteratedPrisonersDilemmaEnv, IteratedPrisonersDilemmaVectorEnv, Rules, as_pool
from drl.games.ipd.exact_values import policy_values, upper_bound
from drl.games.ipd.opponents import agent_player, load_axelrod
from drl.games.ipd.tournament import round_robin
from drl.testing.environment_check import check_environment

pytestmark = pytest.mark.full

# Our names and theirs.
PEERS = {
    "always_cooperate": "Cooperator",
    "always_defect": "Defector",
    "random": "Random",
    "tit_for_tat": "TitForTat",
    "suspicious_tit_for_tat": "SuspiciousTitForTat",
    "generous_tit_for_tat": "GTFT",
    "win_stay_lose_shift": "WinStayLoseShift",
    "grim": "Grudger",
    "zd_extort_2": "ZDExtort2",
    "zd_gtft_2": "ZDGTFT2",
}
DETERMINISTIC = [name for name, probs in NAMED.items() if set(probs) <= {0, 1}]
STOCHASTIC = [name for name in NAMED if name not in DETERMINISTIC]


@pytest.fixture(scope="module")
def axelrod():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package and of what it imports
        return load_axelrod()


def test_deterministic_pairings_agree_exactly(axelrod):
    assert len(DETERMINISTIC) == 6
    table = round_robin(dict.fromkeys(DETERMINISTIC), Rules(rounds=25))
    for i, one in enumerate(DETERMINISTIC):
        for j, other in enumerate(DETERMINISTIC):
            players = getattr(axelrod, PEERS[one])(), getattr(axelrod, PEERS[other])()
            match = axelrod.Match(players, turns=25)
            match.play()
            mine, theirs = match.final_score_per_turn()
            assert table.payoffs[i, j] == pytest.approx(mine, abs=1e-12)
            assert table.payoffs[j, i] == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("name", STOCHASTIC)
@pytest.mark.parametrize("ending", [{"rounds": 12}, {"survival": 0.8}], ids=["rounds", "survival"])
def test_stochastic_pairings_agree_within_sampling_error(axelrod, name, ending):
    rules = Rules(**ending)
    options = {"turns": 12} if "rounds" in ending else {"prob_end": 0.2}
    for other in ("suspicious_tit_for_tat", "zd_extort_2"):
        players = getattr(axelrod, PEERS[name])(), getattr(axelrod, PEERS[other])()
        match = axelrod.Match(players, seed=1, **options)
        scores = []
        for _ in range(200):
            match.play()
            scores.append(match.final_score())
        for side, (mine, theirs) in enumerate(((name, other), (other, name))):
            sampled = np.array(scores, float)[:, side]
            exact = policy_values(NAMED[mine], theirs, rules)[0]
            assert abs(sampled.mean() - exact) < 4 * sampled.std() / np.sqrt(200)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_an_opponent_from_the_package_plays_as_ours_of_the_same_kind(axelrod, name):
    envs = [IteratedPrisonersDilemmaEnv(opponent, rounds=30) for opponent in (name, f"axelrod:{PEERS[name]}")]
    actions = np.random.default_rng(0).integers(2, size=30)
    traces = []
    for env in envs:
        env.reset(seed=0)
        traces.append([env.step(action)[1] for action in actions])
    assert traces[0] == traces[1]
    assert len(set(traces[0])) > 1


@pytest.mark.parametrize("ending", [{"rounds": 9}, {"survival": 0.9}], ids=["rounds", "survival"])
def test_the_vector_form_is_the_single_form_here_too(axelrod, ending):
    opponents = ["axelrod:Random", "grim", "axelrod:Adaptive", "axelrod:Stalker"]  # Stalker knows the last round
    settings = {"opponents": opponents, **ending}
    make = [lambda: IteratedPrisonersDilemmaEnv(**settings)] * 6
    single = SyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP)
    vector = IteratedPrisonersDilemmaVectorEnv(6, **settings)
    assert np.array_equal(single.reset(seed=5)[0], vector.reset(seed=5)[0])
    rng, met = np.random.default_rng(0), set()
    for _ in range(150):
        actions = rng.integers(2, size=6)
        expected, got = single.step(actions), vector.step(actions)
        for one, other in zip(expected[:4], got[:4], strict=True):
            assert np.array_equal(one, other)
        met |= set(got[4]["opponent"])
    assert met == set(opponents)


def test_a_env_with_such_opponents_keeps_the_contract(axelrod):
    check_environment(IteratedPrisonersDilemmaEnv(["axelrod:Random", "axelrod:EvolvedLookerUp2_2_2"]), steps=300)


def test_pools_with_such_opponents(axelrod, tmp_path):
    pool = as_pool(["axelrod:TitForTat", "grim"], [1, 3])
    pool.save(tmp_path / "pool.json")
    again = as_pool(str(tmp_path / "pool.json"))
    assert again.names == ("axelrod:TitForTat", "grim")
    assert again.strategies == (axelrod.TitForTat, None)
    with pytest.raises(BadInput, match="'axelrod:TitForTat' is no memory-1 player"):
        upper_bound(pool)
    with pytest.raises(BadInput, match="did you mean 'TitForTat'"):
        as_pool("axelrod:TitForTatt")
    with pytest.raises(BadInput, match="Darwin looks into or changes its opponent"):
        as_pool("axelrod:Darwin")


class Copycat:
    """Tit for tat as an agent: it sees observations, one or many."""

    def __init__(self):
        self.shapes = set()  # shared by copies

    def act(self, obs, explore=False):
        self.shapes.add(obs.shape)
        return np.isin(obs[..., -1, :].argmax(axis=-1), (0, 1, 3)).astype(np.int64)


def test_an_agent_enters_a_tournament_of_the_package(axelrod):
    """And earns what tit for tat earns; the whole table is ours."""
    agent = Copycat()
    names = ["tit_for_tat", "grim", "always_defect", "win_stay_lose_shift", "suspicious_tit_for_tat"]
    players = [agent_player(agent, "copycat", history=7), *(getattr(axelrod, PEERS[name])() for name in names)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = axelrod.Tournament(players, turns=15, repetitions=1).play(progress_bar=False)
    ours = round_robin({"copycat": agent, **{name: name for name in names}}, Rules(rounds=15, history=7), games=2)
    assert results.players[0] == "copycat"
    assert np.array(results.payoff_matrix) == pytest.approx(ours.payoffs)
    assert [np.mean(s) for s in results.normalised_scores] == pytest.approx(ours.scores)
    assert (7, 5) in agent.shapes


def test_the_adapter_shows_what_the_env_shows(axelrod):
    """The observations of an agent in a match, round by round, are those of our environment."""
    seen = []

    class Recorder:
        def act(self, obs, explore=False):
            seen.append((obs.copy(), explore))
            return np.int64(len(seen) % 3 > 0)

    match = axelrod.Match((agent_player(Recorder(), history=4, explore=True), axelrod.TitForTat()), turns=9)
    match.play()
    env = IteratedPrisonersDilemmaEnv("tit_for_tat", rounds=9, history=4)
    obs, _ = env.reset(seed=0)
    for number, (shown, explore) in enumerate(seen):
        assert np.array_equal(shown, obs)
        assert shown.dtype == np.float32
        assert explore
        obs = env.step(int((number + 1) % 3 > 0))[0]
    assert len(seen) == 9


@pytest.mark.parametrize("backbone", ["mlp", "conv1d"])
def test_a_drl_agent_moves_in_the_package_as_in_our_env(axelrod, backbone):
    """An untrained network: it still answers histories in its own way. It says itself that it sees six rounds."""
    settings = {"opponents": "win_stay_lose_shift", "rounds": 25, "history": 6}
    with make_vec_env("IteratedPrisonersDilemma-v0", env_kwargs=settings) as envs:
        agent, _ = build_learner("ppo", envs, (ModelConfig(backbone=backbone), PPOConfig()), Seeds(3))
        obs, payoffs = envs.reset(), []
        for _ in range(25):
            step = envs.step(agent.act(obs))
            obs = step.obs
            payoffs.append(float(step.reward[0]))
    match = axelrod.Match((agent_player(agent), axelrod.WinStayLoseShift()), turns=25)
    match.play()
    assert [one for one, _ in match.scores()] == payoffs
    table = round_robin({"agent": agent, "wsls": "win_stay_lose_shift"}, Rules(rounds=25), games=2)
    assert table.payoffs[0, 1] == pytest.approx(np.mean(payoffs))


def test_loading_leaves_the_standard_library_as_it_was(axelrod):
    assert inspect.getsource.__module__ == "inspect"


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "axelrod", raising=False)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "axelrod" else find_spec(name))
    with pytest.raises(MissingExtra, match=r"pip install 'drl-workshop\[axelrod\]'"):
        IteratedPrisonersDilemmaEnv("axelrod:TitForTat")
