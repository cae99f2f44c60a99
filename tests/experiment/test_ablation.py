import json

import pytest

from drl.core.algorithms import ALGORITHMS
from drl.experiment.ablation import _run, ablate, variants
from drl.experiment.config import Experiment

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
    assert (folder / "ablation.png").exists()
    runs = len(list(folder.rglob("run.json")))
    (folder / "plain" / "seed_0.json").unlink()
    ablate(base, seeds=1, episodes=3)
    assert len(list(folder.rglob("run.json"))) == runs + 1
    assert "14 of 14" in capsys.readouterr().out


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
