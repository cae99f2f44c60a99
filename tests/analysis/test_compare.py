"""`drl compare`: what is read, what is left out, what is normalized, and what is answered."""

import importlib.util
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from drl.analysis.comparison import compare_scores, comparison_lines
from drl.analysis.run_scores import choose_normalization, read_references, read_scores
from drl.cli.entry import main
from drl.core.errors import BadInput
from drl.runs.folder.run_folder import Run
from drl.settings.experiment import read_yaml
from drl.settings.preset_records import PUBLISHED
from tests.analysis.run_folders import make_run, make_runs

ROOT = Path(__file__).parents[2]
ACROBOT = {"settings": {"env": "Acrobot-v1"}}
DQN = {"settings": {"algorithm": "dqn"}}


@pytest.fixture
def results(tmp_path):
    """Two algorithms: A is better."""
    make_runs(tmp_path, "A", [100, 110, 120, 130, 140, 150])
    make_runs(tmp_path, "B", [10, 20, 30, 40, 50, 60], **DQN)
    return tmp_path


def folders(results, *names):
    return [results / name for name in names]


def test_the_better_one_wins(results, capsys):
    out = results / "x.json"
    assert main(["compare", str(results / "A"), str(results / "B"), "--out", str(out), str(results / "x.svg")]) == 0
    said = capsys.readouterr().out
    assert "A is better than B (probability 1.00" in said
    assert "6 seeds, paired by seed" in said
    assert "normalization: none, these are returns" in said
    assert "mean return of the final evaluation (10 episodes)" in said
    found = json.loads(out.read_text())
    assert found["pairs"][0]["winner"] == "A"
    assert found["aggregates"]["A"]["mean"]["value"] == 125.0
    assert found["aggregates"]["B"]["optimality gap"]["value"] == 500 - 35
    assert found["profiles"]["A"]["share"][0] == 1.0
    assert found["profiles"]["A"]["low"][-1] == 0.0
    assert found["runs"]["B"]["CartPole-v1"][2] == {"seed": 2, "score": 30.0}
    assert "performance profile" in (results / "x.svg").read_text()


def test_swapped_names_swap_the_winner(results, capsys):
    """Sabotage: each folder under the other's label."""
    assert main(["compare", str(results / "A"), str(results / "B"), "--labels", "B", "A"]) == 0
    assert "B is better than A" in capsys.readouterr().out


def test_the_answer_is_the_same_again(results):
    first, second = (compare_scores(read_scores(folders(results, "A", "B"))).to_json() for _ in range(2))
    assert first == second


def test_other_seeds_are_not_paired(results):
    make_runs(results, "C", [10, 20, 30, 40, 50, 60], first_seed=3)
    pairs = compare_scores(read_scores(folders(results, "A", "B", "C"))).pairs
    assert [(pair.first, pair.second, bool(pair.pairs)) for pair in pairs] == [
        ("A", "B", True),
        ("A", "C", False),
        ("B", "C", False),
    ]


def test_a_missing_seed_leaves_the_others_paired(results, capsys):
    scores = np.random.default_rng(0).normal(size=11) * 100
    make_runs(results, "D", scores)
    make_runs(results, "E", scores[1:] + 1, first_seed=1)
    assert main(["compare", str(results / "D"), str(results / "E")]) == 0
    said = capsys.readouterr().out
    assert "E is better than D" in said
    assert "11 and 10 seeds, paired by seed, on the 10 seeds that both have" in said
    assert "power" not in said  # it is decided


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"status": "unfinished"}, "unfinished"),
        ({"status": "interrupted"}, "interrupted"),
        ({"status": "failed", "error": "NonFinite: loss"}, "failed (NonFinite: loss)"),
        ({"settings": {"total_timesteps": 5000}}, "its budget is 5,000 steps, not 1,000 steps"),
        ({"steps": 400}, "it ended after 400 of 1,000 steps"),
    ],
)
def test_what_does_not_fit_is_named_and_left_out(results, options, reason):
    odd = make_run(results, "A", 9, 999.0, **options)
    table = read_scores(folders(results, "A", "B"))
    assert 9 not in table.scores["A"]["CartPole-v1"]
    (said,) = table.left_out
    assert str(odd) in said
    assert reason in said


def test_a_forged_run_does_no_harm(results):
    """Settings of other types than drl writes, and a name that would clear the screen."""
    settings = {"env_kwargs": 5, "wrappers": "x", "num_episodes": "many", "env": "\x1b[2J", "algorithm": "ppo"}
    odd = Run.create("A", settings, results, 9)
    odd.note(status="finished", final_evaluation=[1])
    odd.close()
    (said,) = read_scores(folders(results, "A", "B")).left_out
    assert said == f"{odd.folder}: its budget is 'many', which is no number"
    other = Run.create("A", settings | {"num_episodes": 1}, results, 9)
    other.note(status="finished", final_evaluation={"mean_return": 1.0})
    other.close()
    lines = comparison_lines(compare_scores(read_scores(folders(results, "A", "B"))))
    assert all(line.isprintable() for line in lines)
    assert any("\\x1b[2J is left out" in line for line in lines)


def test_a_damaged_run_is_named(results):
    odd = make_run(results, "A", 9, 999.0)
    (odd / "run.json").write_text("{}")
    assert str(odd) in read_scores(folders(results, "A", "B")).left_out[0]


def test_damaged_metrics_are_named(results):
    for run in (results / "A").iterdir():
        (run / "metrics.jsonl").write_text('{"env_steps": 8, "recent/mean_ep_return": 12.5}\n')
    odd = make_run(results, "A", 9, 1.0)
    (odd / "metrics.jsonl").write_text("{")
    table = read_scores(folders(results, "A"), score="training")
    assert len(table.scores["A"]["CartPole-v1"]) == 6
    assert str(odd) in table.left_out[0]


def test_the_reason_is_that_of_the_folder(results):
    make_run(results, "A", 9, None)
    make_run(results, "D", 0, None, status="failed")
    with pytest.raises(BadInput, match=r"D has no run that can be compared; \S+/D/\S+: failed"):
        read_scores(folders(results, "A", "D"))


def test_mixed_budgets_need_to_be_asked_for(results):
    make_runs(results, "C", [1, 2, 3], settings={"total_timesteps": 5000})
    with pytest.raises(BadInput, match=r"C has no run that can be compared.*its budget is 5,000 steps"):
        read_scores(folders(results, "A", "C"))
    table = read_scores(folders(results, "A", "C"), mixed_budgets=True)
    assert table.scores["C"]["CartPole-v1"] == {0: 1.0, 1: 2.0, 2: 3.0}
    assert "budgets on CartPole-v1 are mixed: 1,000 steps, 5,000 steps" in table.notes[0]


def test_a_seed_counts_once(results):
    make_run(results, "A", 0, 7.0)
    table = read_scores(folders(results, "A", "B"))
    assert len(table.scores["A"]["CartPole-v1"]) == 6
    assert "a newer run with seed 0" in table.left_out[0]


def test_different_settings_are_not_repetitions(results):
    make_run(results, "A", 9, 100.0, settings={"learning_rate": 0.5})
    with pytest.raises(BadInput, match=r"A has runs with different settings on CartPole-v1 \(learning_rate\)"):
        read_scores(folders(results, "A", "B"))


def test_runs_without_an_evaluation(results):
    odd = make_run(results, "A", 9, None)
    assert f"{odd}: it has no evaluation score" in read_scores(folders(results, "A", "B")).left_out
    bare = make_run(results, "C", 0, None)
    (bare / "metrics.jsonl").write_text('{"env_steps": 8, "recent/mean_ep_return": 12.5}\n')
    table = read_scores(folders(results, "C"))
    assert table.scores == {"C": {"CartPole-v1": {0: 12.5}}}
    assert "last training episodes" in table.score_is


def test_default_folders_of_several_environments_belong_together(tmp_path):
    for env in ("CartPole-v1", "Acrobot-v1"):
        for algorithm in ("ppo", "dqn"):
            settings = {"settings": {"env": env, "algorithm": algorithm}}
            make_runs(tmp_path, f"{env}_{algorithm}", [-90, -80, -95, -85], **settings)
    given = [tmp_path / f"{env}_{algorithm}" for algorithm in ("ppo", "dqn") for env in ("CartPole-v1", "Acrobot-v1")]
    result = compare_scores(read_scores(given))
    assert list(result.contestants) == ["ppo", "dqn"]
    assert result.envs == ["Acrobot-v1", "CartPole-v1"]
    assert "Acrobot-v1 -499.1 … -100 (threshold)" in result.normalization.words
    column = result.contestants["ppo"].scores[:, 0]
    np.testing.assert_allclose(column, (np.array([-90, -80, -95, -85]) + 499.1) / 399.1)
    same = read_scores([tmp_path / "CartPole-v1_ppo", tmp_path / "Acrobot-v1_dqn"], labels=("x", "x"))
    assert {env: len(scores) for env, scores in same.scores["x"].items()} == {"CartPole-v1": 4, "Acrobot-v1": 4}


def test_folders_of_experiments(results):
    make_runs(results / "all", "one", [1, 2])
    make_runs(results / "all", "two", [3, 4], **ACROBOT)
    assert {env: len(each) for env, each in read_scores([results / "all"]).scores["all"].items()} == {
        "CartPole-v1": 2,
        "Acrobot-v1": 2,
    }


def test_every_environment_has_as_many_runs(results):
    make_runs(results, "A", [-100, -90], **ACROBOT)
    make_runs(results, "B", [-100, -90, -80], settings={"env": "Acrobot-v1", "algorithm": "dqn"})
    make_runs(results, "A", [1], settings={"env": "Pendulum-v1", "algorithm": "ppo"})
    result = compare_scores(read_scores(folders(results, "A", "B")))
    assert result.contestants["A"].scores.shape == (2, 2)
    assert result.contestants["A"].seeds == ((0, 1), (0, 1))
    assert "A: seeds 2, 3, 4, 5 of CartPole-v1 are left out, so that every environment has 2 runs" in result.notes
    assert "Pendulum-v1 is left out because not every algorithm has it" in result.notes


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ((), "give a folder of runs"),
        (("nowhere",), "nowhere holds no runs"),
        (("A", "B", "--labels", "x"), "--labels has 1 name for 2 folders"),
        (("A", "B", "--normalize", "refrence"), "did you mean 'reference'"),
        (("A", "B", "--score", "best"), "--score is 'best'"),
        (("A", "B", "--out", "x.jpg"), ".png, .pdf, .svg"),
        (("A", "D"), "have no environment in common"),
        (("E", "F", "--normalize", "none"), "--normalize none is for one environment"),
        (("E", "F"), "no reference scores are known for Walker2d-v5"),
    ],
)
def test_bad_input_is_one_line(results, monkeypatch, capsys, arguments, hint):
    monkeypatch.chdir(results)
    make_runs(results, "D", [1, 2], **ACROBOT)
    for name in ("E", "F"):
        make_runs(results, name, [1, 2])
        make_runs(results, name, [1, 2], settings={"env": "Walker2d-v5"})
    before = sorted(results.iterdir())
    assert main(["compare", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert hint in said
    assert "\n" not in said
    assert sorted(results.iterdir()) == before


def test_existing_files_are_kept(results, capsys):
    out = results / "x.json"
    out.write_text("mine")
    assert main(["compare", str(results / "A"), "--out", str(out)]) == 2
    assert out.read_text() == "mine"
    assert main(["compare", str(results / "A"), "--out", str(out), "--overwrite"]) == 0
    assert json.loads(out.read_text())["pairs"] == []


# ── normalization ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_references_are_what_they_say():
    optima = {entry["env"]: entry["score"] for entry in read_yaml(PUBLISHED)["optima"]}
    for env, entry in read_references().items():
        assert entry["random"] < entry["target"], env
        if entry["target_is"] == "threshold":
            assert gym.spec(env).reward_threshold == entry["target"]
        elif entry["target_is"] == "optimum":
            assert optima[env] == entry["target"]
        else:
            assert entry["target_is"] in ("maximum", "upper bound")


def test_a_random_policy_scores_as_the_table_says():
    script = importlib.util.spec_from_file_location("random_scores", ROOT / "benchmarks" / "random_scores.py")
    random_scores = importlib.util.module_from_spec(script)
    script.loader.exec_module(random_scores)
    assert random_scores.random_score("CartPole-v1", 300) == pytest.approx(
        read_references()["CartPole-v1"]["random"], abs=2.5
    )


def test_scales(tmp_path):
    scores = {"a": [0.0, 10.0], "b": [5.0, 7.0]}
    minmax = choose_normalization("minmax", scores)
    assert minmax("b", np.array([5.0, 6.0, 7.0])).tolist() == [0.0, 0.5, 1.0]
    assert "the worst run of this comparison" in minmax.words
    own = tmp_path / "own.yaml"
    own.write_text("a: [0, 100]\nb: [0, 10]\n")
    assert choose_normalization(str(own), scores)("a", np.array([10.0])).tolist() == [0.1]
    for wrong in ("a: [0, 100]\n", "a: [0, 100]\nb: [9, 1]\n", "a: [0, 100]\nb: [0, .inf]\n", "a: [0, 1]\nb: 3\n"):
        own.write_text(wrong)
        with pytest.raises(BadInput, match="expected two numbers"):
            choose_normalization(str(own), scores)
    with pytest.raises(BadInput, match="all scores of a are 1"):
        choose_normalization("minmax", {"a": [1.0, 1.0]})


def test_an_unknown_environment_has_no_gap():
    assert choose_normalization("none", {"Mine-v0": [1.0]}).target is None
    assert choose_normalization("none", {"CartPole-v1": [1.0]}).target == 500.0
