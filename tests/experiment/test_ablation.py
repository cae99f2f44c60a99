import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from drl.algorithms import ALGORITHMS
from drl.analysis import ablation
from drl.analysis.ablation import SETTINGS, _experiment, _table, ablate_experiment, variants
from drl.core.errors import BadInput, Interrupted
from drl.core.log import Episode, Log
from drl.runs.many_runs import RunAnswer, RunFailed
from drl.settings.experiment import Experiment
from drl.tracking.curves import bootstrap
from drl.tracking.files import JsonlTracker

SWITCHES = ALGORITHMS["dqn"].switches
TINY = {
    "algorithm": "dqn",
    "env": "drl/Match-v0",
    "total_timesteps": 120,
    "warmup": 20,
    "batch_size": 16,
    "num_envs": 1,
}


def test_variants_are_one_in_and_one_out():
    named = variants(SWITCHES)
    assert len(named) == 2 + 2 * len(SWITCHES)
    plain, full = named["plain"], named["full"]
    assert all(plain[key] != full[key] for key in plain)
    for name in SWITCHES:
        assert sum(named[f"plain + {name}"][key] != plain[key] for key in plain) == 1
        assert sum(named[f"full - {name}"][key] != full[key] for key in full) == 1


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A tiny run of DQN with one switch."""
    one = replace(ALGORITHMS["dqn"], switches={"double": SWITCHES["double"]})
    monkeypatch.setitem(ALGORITHMS, "dqn", one)
    return Experiment.from_flat(TINY | {"results_dir": str(tmp_path), "updates_per_log": 50, "seed": 7}, "test")


@pytest.mark.full
def test_an_ablation_leaves_a_table_and_a_picture_and_goes_on_where_it_was(base, capsys):
    folder, table = ablate_experiment(base, seeds=1, workers=2, episodes=3)
    assert folder.name == "drl_Match-v0_dqn_ablation"
    assert {row["variant"] for row in table} == {"plain", "plain + double", "full", "full - double"}
    assert json.loads((folder / "ablation.json").read_text()) == table
    assert all(row["low_95"] is row["high_95"] is None and len(row["returns"]) == 1 for row in table)
    assert (folder / "ablation.png").exists()
    records = [json.loads(file.read_text()) for file in folder.rglob("run.json")]
    assert [(record["seed"], record["final_evaluation"]["episodes"]) for record in records] == [(7, 3)] * 4
    (folder / "plain" / "seed_7.json").unlink()
    ablate_experiment(base, seeds=1, episodes=3)
    assert len(list(folder.rglob("run.json"))) == 5
    assert "4 of 4" in capsys.readouterr().out


def test_results_of_other_settings_are_never_taken_for_these(base, tmp_path, monkeypatch):
    monkeypatch.setattr("drl.analysis.ablation.train_many", answers("interrupted"))
    with pytest.raises(Interrupted):
        ablate_experiment(base, seeds=1)
    assert not list(tmp_path.rglob("seed_*.json")), "a run that was interrupted is no result"
    other = Experiment.from_flat(base.to_flat() | {"total_timesteps": 240}, "test")
    with pytest.raises(BadInput, match="total_timesteps was 120 and is now 240"):
        ablate_experiment(other, seeds=1)
    with pytest.raises(BadInput, match="episodes was 50 and is now 9"):
        ablate_experiment(base, seeds=1, episodes=9)
    (tmp_path / "drl_Match-v0_dqn_ablation" / SETTINGS).unlink()
    kept = tmp_path / "drl_Match-v0_dqn_ablation" / "plain" / "seed_0.json"
    kept.parent.mkdir()
    kept.write_text("{}")
    with pytest.raises(BadInput, match="give another --name"):
        ablate_experiment(base, seeds=1)


def test_a_run_that_fails_is_told_with_its_exit_code(base, monkeypatch):
    monkeypatch.setattr("drl.analysis.ablation.train_many", answers(error="the environment broke", exit_code=5))
    with pytest.raises(RunFailed, match="4 of 4 runs failed; plain, seed 7: the environment broke") as failed:
        ablate_experiment(base, seeds=1)
    assert failed.value.exit_code == 5


def answers(status="failed", **parts):
    """In place of training."""

    def train_many(runs, *_):
        for name, run in runs.items():
            folder = None if parts else Path(run.run.results_dir)
            yield name, RunAnswer(folder, status, **parts)

    return train_many


def test_the_table_has_a_bootstrap_interval_of_three_seeds():
    returns = {"plain": [1.0, 2.0, 6.0], "full": [7.0, 8.0, 9.0]}
    full, plain = _table({name: [{"mean_return": value} for value in of] for name, of in returns.items()})
    assert (full["variant"], plain["mean_return"], plain["returns"]) == ("full", 3.0, [1.0, 2.0, 6.0])
    assert (plain["low_95"], plain["high_95"]) == bootstrap(np.array([1.0, 2.0, 6.0]))


def test_the_picture_has_curves_beside_a_row_per_variant(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(ablation, "save_figure", lambda figure, path: kept.append(figure) or path)
    names, runs, scores = list(variants(dict.fromkeys("ab", ({}, {})))), {}, {}
    for i, name in enumerate(names):
        runs[name] = [tmp_path / name / str(seed) for seed in range(3)]
        scores[name] = [float(i), i + 1.0, i + 2.0]
        for run in runs[name]:
            tracker = JsonlTracker(run / "metrics.jsonl")
            tracker.write(Log(10, 1, 1, finished=[Episode(float(i), 5, True, None, 0)] * 2))
            tracker.close()
    ablation.draw_ablation(runs, scores, ["a", "b"], tmp_path / "x.png")
    with_full, with_plain, forest = kept[0].axes
    assert len(with_full.lines) == len(with_plain.lines) == 3
    rows = [text.get_text() for text in forest.texts][::2]
    assert rows == ["full", "full - a", "full - b", "plain", "plain + a", "plain + b"]
    places = [text.xy[1] for text in forest.texts][::2]
    bottom, top = forest.get_ylim()
    assert bottom > places[-1] > places[0] > top, "the full recipe is on top"
    assert set(forest.lines[0].get_xdata()) == {np.mean(scores["full"])}
    ends = [tuple(line.get_xdata()) for line in forest.lines[1:]]
    assert ends == [pytest.approx(bootstrap(np.array(scores[name]))) for name in rows]
    assert with_full.get_ylim() == with_plain.get_ylim()


def test_the_runs_of_an_ablation_are_one_group(tmp_path):
    for changes, group in (
        ({}, None),
        ({"wandb_project": "p"}, "parts"),
        ({"wandb_project": "p", "group": "g"}, "g"),
    ):
        base = Experiment.from_flat(TINY | changes, "test")
        assert _experiment(base, tmp_path / "parts", "plain", 0, 1).run.group == group
