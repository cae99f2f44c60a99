"""`drl reproduce`: fresh seeds, verdicts, exit codes, records, and a time limit. Presets here are tiny ones."""

import itertools
import shutil
import time

import pytest

from drl.analysis import reproduction
from drl.analysis.reproduction import find_preset, reproduce_preset
from drl.cli.entry import main
from drl.core.errors import NonFinite
from drl.runs.folder.run_folder import read_record, read_settings, runs_in
from drl.settings import preset_records, presets
from drl.settings.preset_records import (
    FAIL,
    PASS,
    REPRODUCE,
    UNDECIDED,
    Record,
    all_records,
    keep_record,
    read_records,
    settings_digest,
)
from tests.run_files import rows

NAME, KEY = "ppo/CartPole-v1", ("ppo", "CartPole-v1")


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A preset of 256 steps, and no records."""
    folder = tmp_path / "presets"
    (folder / "ppo").mkdir(parents=True)
    tiny = "total_timesteps: 256\nnum_envs: 2\nrollout_length: 32\nminibatches: 1\nepochs: 1\nhidden_sizes: [4]\n"
    (folder / "ppo" / "CartPole-v1.yaml").write_text(tiny)
    monkeypatch.setattr(presets, "PRESETS", folder)
    monkeypatch.setattr(preset_records, "RECORDS", tmp_path / "records.yaml")
    return tmp_path / "results"


def store(mean, std=1.0, env="CartPole-v1", **changes):
    """A stored result of the preset."""
    numbers = {"seeds": 10, "first_seed": 0, "mean": mean, "worst": mean - 2 * std, "std": std, "episodes": 3}
    named = {"engine": "torch", "steps": 256, "command": "x", "settings": settings_digest("ppo", env)}
    provenance = {"provenance": "benchmarks/learning.py"}
    keep_record(Record(algorithm="ppo", env=env, **named | numbers | provenance | changes))


def answer(results, seeds=2, **options):
    return reproduce_preset(find_preset(NAME), seeds, results, say=lambda _: None, **options)


def run_seeds(results):
    return sorted(read_record(run)["seed"] for run in runs_in(results / "reproduce" / "ppo_CartPole-v1"))


@pytest.mark.parametrize(("stored", "verdict", "code"), [(5.0, PASS, 0), (450.0, FAIL, 1), (None, UNDECIDED, 7)])
def test_verdicts_and_exit_codes(results, capsys, stored, verdict, code):
    """A hardly trained agent balances for about ten to a hundred steps."""
    if stored is not None:
        store(stored)
    assert main(["reproduce", NAME, "--seeds", "2", "--results-dir", str(results)]) == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"{verdict}: ppo/CartPole-v1 reaches ")
    (record,) = all_records(results / "reproductions.yaml")
    assert (record.verdict, record.provenance, record.seeds) == (verdict, REPRODUCE, 2)
    assert read_records().get(KEY, record).provenance != REPRODUCE or stored is None  # nothing is added to the package


def test_it_trains_the_preset_as_it_is_with_fresh_seeds(results):
    store(5.0, first_seed=10_003)
    found = answer(results)
    assert run_seeds(results) == [10_013, 10_014]  # after those of the stored result
    assert list(found.record.scores) == [10_013, 10_014]
    settings = read_settings(runs_in(results / "reproduce" / "ppo_CartPole-v1")[0])
    expected = presets.load_preset("ppo", "CartPole-v1")
    assert {name: settings[name] for name in expected} == expected
    assert (settings["evaluation_episodes"], settings["engine"]) == (3, "torch")
    assert (found.record.steps, found.record.episodes) == (256, 3)


def test_the_stored_budget_is_kept(results):
    store(5.0, changes={"total_timesteps": 128})
    found = answer(results, seeds=1)
    assert (found.record.steps, found.record.changes) == (128, {"total_timesteps": 128})


def test_a_changed_preset_has_no_stored_result(results):
    store(5.0, settings="sha256:0")
    assert find_preset(NAME).stored is None


def test_decided_seeds_are_not_used_again(results):
    store(5.0)
    answer(results, seeds=1)
    assert run_seeds(results) == [10_000]
    shutil.rmtree(results / "reproduce")  # the answers still name them
    answer(results, seeds=1)
    assert run_seeds(results) == [10_001]
    assert [record.verdict for record in all_records(results / "reproductions.yaml")] == [PASS, PASS]


def test_undecided_seeds_count_again(results, monkeypatch):
    store(5.0, std=100.0)  # so much spread that nothing can be told
    first = answer(results, seeds=1)
    assert first.verdict == UNDECIDED
    assert f"drl reproduce {NAME} --seeds {first.judgement.more_seeds}" in first.sentence()
    second = answer(results, seeds=2)
    assert list(second.record.scores) == [10_000, 10_001, 10_002]
    assert second.record.scores[10_000] == first.record.scores[10_000]
    (only,) = all_records(results / "reproductions.yaml")
    assert only.seeds == 3


def test_undecided_seeds_of_another_budget_do_not_count(results):
    store(5.0, std=100.0)
    answer(results, seeds=1)
    store(5.0, std=100.0, changes={"total_timesteps": 128})
    other = answer(results, seeds=1)
    assert list(other.record.scores) == [10_001]
    assert other.record.changes == {"total_timesteps": 128}


def test_a_failed_reproduction_is_never_compared_with(results):
    store(450.0, seeds=3)
    failed = answer(results, seeds=4, engine="torch")
    assert failed.verdict == FAIL
    assert failed.record.command.endswith("--seeds 4 --engine torch")
    keep_record(failed.record)
    assert read_records()[KEY].mean == 450.0


def test_a_run_that_the_time_stopped_goes_on(results, monkeypatch):
    """Metrics are those of a run that was never stopped."""
    store(5.0)
    clock = itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(reproduction.time, "monotonic", lambda: next(clock) * 1.0)
        assert answer(results, seeds=2, deadline=3.0) is None
    (run,) = runs_in(results / "reproduce" / "ppo_CartPole-v1")
    assert read_record(run)["status"] == "interrupted"
    stopped = len(rows(run))
    assert 0 < stopped < 4
    assert not (results / "reproductions.yaml").exists()
    found = answer(results, seeds=1)
    assert list(found.record.scores) == [10_000]
    assert len(read_record(run)["resumed"]) == 1
    whole = answer(results.with_name("others"), seeds=1)
    assert whole.record.scores == found.record.scores
    assert rows(run) == rows(runs_in(results.with_name("others") / "reproduce" / "ppo_CartPole-v1")[0])


def test_finished_seeds_of_a_stopped_call_count(results):
    store(5.0)
    assert answer(results, seeds=1).verdict == PASS
    (results / "reproductions.yaml").unlink()  # as if the call had been stopped before its answer
    found = answer(results, seeds=2)
    assert list(found.record.scores) == [10_000, 10_001]
    assert run_seeds(results) == [10_000, 10_001]


def test_other_settings_and_versions_do_not_count(results, monkeypatch):
    store(5.0)
    answer(results, seeds=1)
    (results / "reproductions.yaml").unlink()
    monkeypatch.setattr(reproduction.drl, "__version__", "9.9.9")
    assert list(answer(results, seeds=1).record.scores) == [10_001]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ((), "give one preset"),
        ((NAME, "--all", "--minutes", "1"), "give one preset"),
        (("--all",), "--all needs a time limit"),
        (("ppo/CartPol",), "did you mean 'ppo/CartPole-v1'"),
        ((NAME, "--seeds", "0"), "--seeds is 0"),
        ((NAME, "--minutes", "0"), "--minutes is 0"),
        ((NAME, "--engine", "tensorflow"), "expected torch or jax"),
        ((NAME, "--total-timesteps", "5"), "--total-timesteps"),  # another budget would be no reproduction
        (("ppo/ALE/*",), "every environment of ALE"),
    ],
)
def test_bad_input_is_one_line(results, capsys, arguments, hint):
    (presets.PRESETS / "ppo" / "ALE__.yaml").write_text("total_timesteps: 1\n")
    assert main(["reproduce", *arguments, "--results-dir", str(results)]) == 2
    said = capsys.readouterr().err.strip()
    assert hint in said
    assert "\n" not in said
    assert not results.exists()


def test_record_is_for_a_clone(results, tmp_path, monkeypatch, capsys):
    store(5.0)
    records = tmp_path / "lib" / "drl" / "experiment" / "records" / "measured.yaml"
    monkeypatch.setattr(reproduction, "RECORDS", records)
    assert main(["reproduce", NAME, "--record", "--results-dir", str(results)]) == 2
    assert "clone of the repository" in capsys.readouterr().err
    (tmp_path / "lib" / ".git").mkdir(parents=True)
    assert main(["reproduce", NAME, "--record", "--seeds", "1", "--results-dir", str(results)]) == 0
    assert [record.provenance for record in all_records()] == ["benchmarks/learning.py", REPRODUCE]
    assert read_records()[KEY].provenance == "benchmarks/learning.py"  # it has more seeds


def test_a_result_is_not_compared_with_itself(results):
    """The first result of a preset, kept with the presets, is what the next one is compared with."""
    first = answer(results, seeds=2)
    keep_record(first.record)
    second = answer(results, seeds=1)
    assert second.preset.stored == first.record
    assert list(second.record.scores) == [10_002]


# ── --all ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def many(results):
    """Four presets: one without a stored result, one for a namespace, two that were measured."""
    tiny = (presets.PRESETS / "ppo" / "CartPole-v1.yaml").read_text()
    for name in ("Acrobot-v1", "Pendulum-v1", "ALE__"):
        (presets.PRESETS / "ppo" / f"{name}.yaml").write_text(tiny)
    store(5.0, cpu_minutes=3.0)
    store(-500.0, std=20.0, env="Acrobot-v1", minutes=4.0, seeds=10, command="x --at-once")
    return results


def test_the_cheapest_of_the_least_recent_comes_first(many):
    def names():
        return [preset.env for preset in reproduction.queue(many)]

    assert names() == ["Acrobot-v1", "CartPole-v1", "Pendulum-v1"]  # 0.4 and 3 minutes; nothing stored
    old = read_records()["ppo", "Acrobot-v1"]
    fields = vars(old) | {"provenance": REPRODUCE, "verdict": PASS}
    keep_record(Record(**fields | {"date": "2026-01-02"}), many / "reproductions.yaml")
    assert names() == ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"]
    newer = fields | {"env": "CartPole-v1", "date": "2026-01-03"}
    keep_record(Record(**newer), many / "reproductions.yaml")
    assert names() == ["Acrobot-v1", "CartPole-v1", "Pendulum-v1"]


def test_all_answers_what_it_can(many, capsys):
    (presets.PRESETS / "ppo" / "Pendulum-v1.yaml").write_text("no_setting: 1\n")
    assert main(["reproduce", "--all", "--minutes", "5", "--seeds", "1", "--results-dir", str(many)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith((PASS, FAIL, UNDECIDED))] == [
        ["UNDECIDED:", "ppo/Acrobot-v1"],  # with one seed
        ["PASS:", "ppo/CartPole-v1"],
        ["PASS:", "ppo/Acrobot-v1"],
    ]
    assert any(line.startswith("ppo/Pendulum-v1: left out: ") and "no_setting" in line for line in lines)
    assert lines[-1] == "presets: 2 PASS, 0 FAIL, 0 UNDECIDED"


@pytest.mark.full
def test_a_preset_that_breaks_in_training_has_failed(many, monkeypatch, capsys):
    def broken(preset, *rest, **options):
        if preset.env == "CartPole-v1":
            raise NonFinite("loss is nan")
        return reproduce_preset(preset, *rest, **options)

    monkeypatch.setattr("drl.analysis.reproduction.reproduce_preset", broken)
    assert main(["reproduce", "--all", "--minutes", "5", "--seeds", "2", "--results-dir", str(many)]) == 1
    assert "FAIL: ppo/CartPole-v1 breaks in training: loss is nan" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize(("stored", "code"), [(400.0, 1), (5.0, 7)])
def test_the_exit_code_of_all_is_that_of_the_worst(many, stored, code):
    """Without a stored result Pendulum is undecided."""
    store(stored)
    assert main(["reproduce", "--all", "--minutes", "5", "--seeds", "1", "--results-dir", str(many)]) == code


def test_all_stops_at_its_time_and_goes_on(many, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        ticks = itertools.count()
        patch.setattr(time, "monotonic", lambda: float(next(ticks)))
        assert main(["reproduce", "--all", "--minutes", "0.1", "--seeds", "1", "--results-dir", str(many)]) == 7
    assert "the time is over; the same command continues" in capsys.readouterr().out
    (run,) = (many / "reproduce").glob("*/*/run.json")
    assert read_record(run.parent)["status"] == "interrupted"
    (presets.PRESETS / "ppo" / "Pendulum-v1.yaml").unlink()
    assert main(["reproduce", "--all", "--minutes", "5", "--seeds", "1", "--results-dir", str(many)]) == 0
    assert read_record(run.parent)["status"] == "finished"


def test_all_undecided_gets_further_seeds(many, monkeypatch):
    """Each round adds seeds to what is undecided, until it is decided."""
    asked = []

    def fake(preset, seeds, results_dir, **options):
        asked.append(preset.env)
        verdict = UNDECIDED if preset.env == "Acrobot-v1" and asked.count("Acrobot-v1") < 3 else PASS
        judged = reproduction.judge(preset.stored, [preset.stored.mean]) if preset.stored else None
        record = Record(**vars(read_records()[KEY]) | {"verdict": verdict})
        more = None if judged is None else vars(judged) | {"verdict": verdict, "more_seeds": 3}
        return reproduction.Answer(preset, record, None if more is None else reproduction.Judgement(**more))

    monkeypatch.setattr(reproduction, "reproduce_preset", fake)
    list(reproduction.reproduce_all(1, None, many))
    assert asked == ["Acrobot-v1", "CartPole-v1", "Pendulum-v1", "Acrobot-v1", "Acrobot-v1"]
