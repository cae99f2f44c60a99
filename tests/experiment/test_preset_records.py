"""What the presets reach: measurements, published scores and optima, and the pages that show them."""

import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import yaml

from drl.cli.entry import main
from drl.core.errors import UnusableFile
from drl.settings import preset_records
from drl.settings.experiment import read_yaml
from drl.settings.preset_records import (
    COLUMNS,
    FAIL,
    PASS,
    PUBLISHED,
    RECORDS,
    REPRODUCE,
    UNDECIDED,
    Record,
    all_records,
    read_records,
    score_summary,
    settings_digest,
    zoo_rows,
)
from drl.settings.presets import list_presets, load_preset

ROOT = Path(__file__).parents[2]
OPTIMA = {entry["env"]: entry["score"] for entry in read_yaml(PUBLISHED)["optima"]}


@pytest.mark.parametrize("record", all_records(), ids=lambda record: "/".join((*record.preset, record.provenance)))
def test_a_record_is_of_the_preset_as_it_is(record):
    """If this fails, the settings have changed: measure again with `drl reproduce … --record`."""
    assert record.settings == settings_digest(*record.preset)
    assert record.worst <= record.mean
    assert len(record.all_seeds) == record.seeds
    words = record.command.split()
    if record.provenance == REPRODUCE:
        assert words == ["drl", "reproduce", "/".join(record.preset), "--seeds", str(record.seeds)]
        assert record.verdict in (PASS, FAIL, UNDECIDED)
        assert score_summary(record.scores).items() <= vars(record).items()
    else:
        assert words[:2] == ["python", record.provenance]
        assert (ROOT / record.provenance).is_file()
        assert record.verdict is None
    budget = (load_preset(*record.preset) | record.changes)["total_timesteps"]
    assert record.steps >= budget  # the rollout that reaches it is finished


def test_enough_is_measured():
    assert len(list_presets()) >= 40
    assert len(read_records()) >= 25


def test_published_scores_belong_to_a_preset_and_name_their_source():
    published = read_yaml(PUBLISHED)
    for entry in published["scores"]:
        assert (entry["algorithm"], entry["env"]) in list_presets(), entry
        assert entry["source"] in published["sources"], entry
    assert set(OPTIMA) <= {env for _, env in list_presets()}


@pytest.mark.parametrize("name", ["zoo", "by_environment"])
def test_the_pages_show_the_records(name):
    """If this fails: `make zoo`."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") == script.page()


def record(**changes):
    settings = {"algorithm": "ppo", "env": "gymnax:Breakout-MinAtar", "engine": "jax", "settings": "sha256:0"}
    settings |= {"provenance": "x.py"}
    numbers = {"steps": 1000, "seeds": 3, "first_seed": 0, "mean": 1.5, "worst": 1.0, "command": "python x.py"}
    return Record(**settings | numbers | changes)


def reproduction(scores, **changes):
    return record(provenance=REPRODUCE, **{"verdict": PASS, "minutes": 2.04} | score_summary(scores) | changes)


def test_rows_are_of_reproductions_only(monkeypatch):
    reproduced = reproduction({7: 1.25, 8: 1.75})
    monkeypatch.setattr(preset_records, "all_records", lambda path=None: [record(env="FrozenLake-v1"), reproduced])
    rows = {row[:2]: row[2:] for row in zoo_rows()}
    shown = rows["ppo", "gymnax:Breakout-MinAtar"]
    assert shown == ("1.5 ± 0.25", "1.25", "2", "1,000 of 10,000,000", "2 min", PASS, "28 (gymnax)")
    assert rows["ppo", "FrozenLake-v1"] == ("not reproduced", "", "", "200,000", "", "", "0.7442 is optimal")
    assert rows["dqn", "LunarLander-v3"][6] == "154.4 (RL Zoo, LunarLander-v2, 100,000 steps)"


def test_all_seeds_of_reproductions_count_whatever_the_answer(monkeypatch):
    failed, passed = reproduction({7: 1.0}, verdict=FAIL), reproduction({8: 2.0, 9: 3.0})
    other_engine = reproduction({10: 9.0}, env="FrozenLake-v1", engine="torch")
    alone = reproduction({11: 4.0}, env="FrozenLake-v1")
    monkeypatch.setattr(
        preset_records, "all_records", lambda path=None: [record(), failed, passed, other_engine, alone]
    )
    kept = preset_records.reproductions()
    assert kept[passed.preset].scores == {7: 1.0, 8: 2.0, 9: 3.0}
    assert (kept[passed.preset].mean, kept[passed.preset].worst, kept[passed.preset].verdict) == (2.0, 1.0, PASS)
    assert kept[alone.preset] == alone


def test_several_records_of_a_preset(tmp_path):
    """Scripts replace what scripts measured; reproductions are added, and go on from an undecided one. The stored
    result is the one with the most seeds."""
    path = tmp_path / "records.yaml"
    first, again = record(seeds=3), record(seeds=2, date="2026-11-17")
    undecided = reproduction({7: 1.0}, verdict=UNDECIDED)
    passed = reproduction({7: 1.0, 8: 2.0, 9: 2.5})
    other = reproduction({10: 1.0})
    for each, expected in [
        (first, [first]),
        (undecided, [first, undecided]),
        (again, [undecided, again]),
        (passed, [again, passed]),
        (other, [again, passed, other]),
    ]:
        preset_records.keep_record(each, path)
        assert all_records(path) == expected
    assert read_records(path) == {first.preset: passed}
    assert passed.all_seeds == {7, 8, 9}
    more = reproduction(dict.fromkeys(range(20, 29), 0.5), verdict=UNDECIDED)
    preset_records.keep_record(more, path)
    assert read_records(path) == {first.preset: passed}  # what decided nothing is nothing to compare with
    of_now = reproduction({11: 1.0}, settings="sha256:1")
    preset_records.keep_record(of_now, path)
    assert all_records(path) == [of_now]


def test_a_file_that_is_none_of_records(tmp_path):
    path = tmp_path / "records.yaml"
    plain = {name: value for name, value in vars(record()).items() if value is not None}
    for wrong in ({"oops": 1}, {"mean": "high"}, {"scores": {"x": 1.0}}, {"scores": [1.0]}):
        path.write_text(yaml.safe_dump({"measured": [plain | wrong]}))
        with pytest.raises(UnusableFile, match="not a file of records"):
            all_records(path)


def test_time_of_a_run():
    assert record(minutes=10.0, seeds=5, command="x --at-once").minutes_per_run == 2.0
    assert record(minutes=10.0, cpu_minutes=4.0).minutes_per_run == 4.0
    assert record().minutes_per_run is None


def test_the_list_shows_the_same_table(capsys):
    assert main(["list", "presets"]) == 0
    lines = [re.split(r" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == list(COLUMNS)
    assert lines[2:-3] == [[cell for cell in row if cell] for row in zoo_rows()]


def learning(*arguments, folder):
    command = [sys.executable, str(ROOT / "benchmarks" / "learning.py"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


@pytest.mark.full
def test_a_result_is_recorded_in_place_of_the_last_one(tmp_path):
    path = tmp_path / "records.yaml"
    kept = read_records(RECORDS)["a2c", "CartPole-v1"]
    preset_records.keep_record(kept, path)
    tiny = ("--seeds", "2", "--workers", "1", "--episodes", "2", "--total-timesteps", "1024", "--record", str(path))
    for first_seed in ("5", "7"):
        result = learning("ppo", "CartPole-v1", "--first-seed", first_seed, *tiny, folder=tmp_path)
        assert result.returncode == 0, result.stderr
    records = read_records(path)
    assert list(records) == [("a2c", "CartPole-v1"), ("ppo", "CartPole-v1")]
    assert records["a2c", "CartPole-v1"] == kept
    new = records["ppo", "CartPole-v1"]
    assert (new.engine, new.seeds, new.first_seed, new.steps, new.episodes) == ("torch", 2, 7, 1024, 2)
    assert new.command == (
        "python benchmarks/learning.py ppo CartPole-v1 --seeds 2 --first-seed 7 --episodes 2 --total-timesteps 1024"
    )
    assert new.mean - new.worst == pytest.approx(new.std, abs=0.11)  # of two seeds
    assert new.settings == settings_digest("ppo", "CartPole-v1")
    assert (new.provenance, new.changes) == ("benchmarks/learning.py", {"total_timesteps": 1024})
    assert list(new.scores) == [7, 8]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ppo", "CartPole-v1", "--learning-rate", "1"), "without --learning-rate"),
        (("a2c", "Pendulum-v1"), "this pair has none"),
    ],
)
def test_only_presets_as_they_are_get_recorded(tmp_path, arguments, words):
    result = learning(*arguments, "--record", str(tmp_path / "x.yaml"), folder=tmp_path)
    assert result.returncode == 2
    assert words in result.stderr
    assert list(tmp_path.iterdir()) == []


# ── optima ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"])
def test_optima_of_tabular_environments(env_id):
    """Value iteration over as many steps as an episode has."""
    settings = load_preset("dqn", env_id).get("env_kwargs", [])
    env = gym.make(env_id, **{name: int(value) for name, value in (pair.split("=") for pair in settings)})
    table, limit = env.unwrapped.P, env.spec.max_episode_steps
    rows = [(s, a, *outcome) for s in table for a in table[s] for outcome in table[s][a]]
    state, action, chance, successor, reward, terminated = map(np.array, zip(*rows, strict=True))
    value = np.zeros(len(table))
    for _ in range(limit):
        gain = np.zeros((len(table), len(table[0])))
        np.add.at(gain, (state, action), chance * (reward + ~terminated * value[successor]))
        value = gain.max(axis=1)
    assert value @ env.unwrapped.initial_state_distrib == pytest.approx(OPTIMA[env_id], abs=5e-5)


def test_optimum_of_blackjack():
    """By recursion over hands. Cards are put back, the dealer sticks at 17, a natural beats another 21."""
    assert gym.spec("Blackjack-v1").kwargs == {"sab": True, "natural": False}
    cards = [min(card, 10) for card in range(1, 14)]

    def score(total, ace):
        return total + 10 if ace and total <= 11 else total

    @cache
    def dealer(total, ace):
        """How often the dealer ends with which score; 0: bust."""
        if score(total, ace) >= 17:
            return np.eye(22)[score(total, ace) if total <= 21 else 0]
        return sum(dealer(total + card, ace or card == 1) for card in cards) / 13

    @cache
    def outcomes(up):
        return sum(dealer(up + card, 1 in (up, card)) for card in cards) / 13

    @cache
    def value(total, ace, up):
        if total > 21:
            return -1.0
        stick = outcomes(up) @ np.sign(score(total, ace) - np.arange(22))
        return max(stick, sum(value(total + card, ace or card == 1, up) for card in cards) / 13)

    def dealt(first, second, up):
        if {first, second} == {1, 10}:
            return 1 - sum({up, hole} == {1, 10} for hole in cards) / 13
        return value(first + second, 1 in (first, second), up)

    best = sum(dealt(first, second, up) for first in cards for second in cards for up in cards) / 13**3
    assert best == pytest.approx(OPTIMA["Blackjack-v1"], abs=5e-5)


def test_optimum_of_bit_flip():
    """One less than the bits that differ; two draws that are equal are made to differ in one."""
    differing = 15 / 2 + 0.5**15
    assert OPTIMA["drl/BitFlip-v0"] == pytest.approx(1 - differing, abs=5e-5)
