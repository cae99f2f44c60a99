import json

import numpy as np
import pytest

from drl.core.algorithms import ALGORITHMS
from drl.core.log import Episode, Log
from drl.experiment import ablation_picture
from drl.experiment.ablation import _run, _table, ablate, variants
from drl.experiment.config import Experiment
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


def test_an_ablation_leaves_a_table_and_a_picture_and_goes_on_where_it_was(tmp_path, capsys):
    base = Experiment.from_flat(TINY | {"results_dir": str(tmp_path), "updates_per_log": 50}, "test")
    folder, table = ablate(base, seeds=1, episodes=3)
    assert {row["variant"] for row in table} == set(variants(SWITCHES))
    assert json.loads((folder / "ablation.json").read_text()) == table
    assert all(row["low_95"] is row["high_95"] is None and len(row["returns"]) == 1 for row in table)
    assert (folder / "ablation.png").exists()
    runs = len(list(folder.rglob("run.json")))
    (folder / "plain" / "seed_0.json").unlink()
    ablate(base, seeds=1, episodes=3)
    assert len(list(folder.rglob("run.json"))) == runs + 1
    assert "14 of 14" in capsys.readouterr().out


def test_the_table_has_a_bootstrap_interval_of_three_seeds():
    returns = {"plain": [1.0, 2.0, 6.0], "full": [7.0, 8.0, 9.0]}
    full, plain = _table({name: [{"mean_return": value} for value in of] for name, of in returns.items()})
    assert (full["variant"], plain["mean_return"], plain["returns"]) == ("full", 3.0, [1.0, 2.0, 6.0])
    assert (plain["low_95"], plain["high_95"]) == bootstrap(np.array([1.0, 2.0, 6.0]))


def test_the_picture_has_curves_beside_a_row_per_variant(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(ablation_picture, "save_figure", lambda figure, path: kept.append(figure) or path)
    names, runs, scores = list(variants(dict.fromkeys("ab", ({}, {})))), {}, {}
    for i, name in enumerate(names):
        runs[name] = [tmp_path / name / str(seed) for seed in range(3)]
        scores[name] = [float(i), i + 1.0, i + 2.0]
        for run in runs[name]:
            tracker = JsonlTracker(run / "metrics.jsonl")
            tracker.write(Log(10, 1, 1, finished=[Episode(float(i), 5, True, None, 0)] * 2))
            tracker.close()
    ablation_picture.draw_ablation(runs, scores, ["a", "b"], tmp_path / "x.png")
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


def test_the_runs_of_an_ablation_are_one_group(tmp_path, monkeypatch):
    class Seen(Exception):
        pass

    def train(experiment, console):
        raise Seen(experiment.run.group)

    monkeypatch.setattr("drl.experiment.launch.train", train)
    for changes, group in (
        ({}, "None"),
        ({"wandb_project": "p"}, "parts"),
        ({"wandb_project": "p", "group": "g"}, "g"),
    ):
        with pytest.raises(Seen, match=group):
            _run(Experiment.from_flat(TINY | changes, "test"), tmp_path / "parts", "plain", 0, 1)
