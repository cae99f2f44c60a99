"""Pictures exist, show something, and survive odd data."""

import json
import sys

import imageio.v3 as imageio
import numpy as np
import pytest
import yaml

from drl.core.errors import BadInput
from drl.core.log import Episode, Log
from drl.tracking import plots
from drl.tracking.figures import short_number
from drl.tracking.files import JsonlTracker
from drl.tracking.plots import plot_compare, plot_run
from drl.tracking.run_groups import distinct_names, grouped_runs

ALL = ["return.png", "success_rate.png", "rollout_return.png", "loss.png", "evaluation.png"]


def make_run(run_dir, rows=30, per_row=8, seed=0, learn=True, evaluate=True, bad=False, ranges=False):
    rng, episodes = np.random.default_rng(seed), 0
    tracker = JsonlTracker(run_dir / "metrics.jsonl")
    for step in range(1, rows + 1):
        returns = rng.normal(100 * step / rows, 10, per_row)
        if bad:
            returns[::2] = np.nan
        finished = [Episode(float(r), 10, True, bool(r > 50), 0) for r in returns]
        episodes += per_row
        log = Log(1000 * step, episodes, step, finished=finished)
        if learn:
            log.learn = {"policy_loss": -0.01, "value_loss": float("nan") if bad else 9.0 / step, "entropy": 0.5}
        if evaluate and step % 5 == 0:
            mean = 100.0 * step / rows
            log.evaluation = {"mean_return": mean, "success_rate": step / rows}
            if ranges:
                log.evaluation |= {"min_return": mean - 20, "max_return": mean + 20, "std_return": 9.0, "episodes": 5}
        tracker.write(log)
    tracker.close()
    return run_dir


def ink(path):
    """Share of pixels of a colored curve: neither white nor gray."""
    picture = imageio.imread(path)[..., :3].astype(int)
    return float(((picture.max(-1) - picture.min(-1)) > 40).mean())


def test_a_run_gets_all_five_pictures(tmp_path):
    paths = plot_run(make_run(tmp_path / "cartpole" / "1"))
    assert [path.name for path in paths] == ALL
    assert sorted(p.name for p in (tmp_path / "cartpole" / "1" / "plots").iterdir()) == sorted(ALL)
    for path in paths:
        assert ink(path) > 0.001, path
        assert imageio.imread(path)[..., :3].std() > 5


def test_the_same_metrics_give_the_same_bytes(tmp_path):
    run = make_run(tmp_path / "cartpole" / "1", rows=5)
    assert [p.read_bytes() for p in plot_run(run)] == [p.read_bytes() for p in plot_run(run)]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({"rows": 1, "per_row": 1, "evaluate": False}, ALL[:4]),
        ({"rows": 2, "per_row": 1}, ALL[:4]),
        ({"rows": 5, "per_row": 0}, ALL[3:]),
        ({"rows": 5, "per_row": 0, "learn": False, "evaluate": False}, []),
        ({"rows": 6, "per_row": 4, "bad": True}, ALL),
        ({"rows": 6, "per_row": 1, "bad": True}, ["success_rate.png", "loss.png", "evaluation.png"]),
    ],
)
def test_pictures_without_data_are_skipped(tmp_path, shape, expected):
    paths = plot_run(make_run(tmp_path / "r", **shape))
    assert [path.name for path in paths] == expected
    assert all(ink(path) > 0.00002 for path in paths)


def test_an_evaluations_worst_and_best_shade_its_mean(tmp_path):
    bare = plot_run(make_run(tmp_path / "bare", per_row=0, learn=False))[0]
    shaded = plot_run(make_run(tmp_path / "shaded", per_row=0, learn=False, ranges=True))[0]
    assert imageio.imread(bare).shape == imageio.imread(shaded).shape  # no panels for the bounds
    assert tinted(shaded) > 3 * tinted(bare)


def tinted(path):
    picture = imageio.imread(path)[..., :3].astype(int)
    return float(((picture.max(-1) - picture.min(-1)) > 15).mean())


def test_very_many_episodes_are_drawn(tmp_path):
    assert len(plot_run(make_run(tmp_path / "r", rows=1000, per_row=200))) >= 3


def test_runs_of_one_experiment_share_a_curve_and_a_band(tmp_path):
    runs = [make_run(tmp_path / "ppo" / str(s), seed=s, evaluate=False) for s in range(3)]
    one = plot_compare(runs[:1], tmp_path / "one.png")
    many = plot_compare([*runs, make_run(tmp_path / "dqn" / "1", rows=20)], tmp_path / "deep" / "many.png")
    assert ink(many) > 2 * ink(one) > 0


def test_only_repetitions_are_averaged(tmp_path):
    """Another rate, engine or budget is another line, labeled by what differs; another seed or name is not."""

    def run(number, **settings):
        folder = tmp_path / "ppo" / str(number)
        folder.mkdir(parents=True)
        same = {"algorithm": "ppo", "learning_rate": 1e-3, "engine": "torch", "seed": number, "name": str(number)}
        (folder / "config.yaml").write_text(yaml.safe_dump(same | settings, sort_keys=False))
        return folder

    alike = [run(1), run(2)]
    assert grouped_runs(alike) == {"ppo": alike}
    odd, jax = run(3, learning_rate=0.5), run(4, engine="jax")
    assert grouped_runs([*alike, odd, jax]) == {
        "ppo, learning_rate=0.001, engine=torch": alike,
        "ppo, learning_rate=0.5, engine=torch": [odd],
        "ppo, learning_rate=0.001, engine=jax": [jax],
    }
    (odd / "config.yaml").write_text("- [")  # not readable: no settings
    assert list(grouped_runs([odd])) == ["ppo"]


def test_a_band_does_not_pass_what_an_episode_can_reach(tmp_path):
    from drl.tracking.curves import Band
    from drl.tracking.figures import draw_band, make_figure

    _, ax = make_figure("", "")
    x = np.arange(3.0)
    draw_band(ax, Band(x, np.full(3, 490.0), np.full(3, 50.0)), "red", bounds=(0.0, 500.0))
    corners = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (corners.min(), corners.max()) == (440.0, 500.0)


def test_what_cannot_be_compared_is_said(tmp_path):
    with pytest.raises(BadInput, match="no runs"):
        plot_compare([], tmp_path / "x.png")
    with pytest.raises(BadInput, match="does not exist"):
        plot_compare([tmp_path], tmp_path / "x.png")
    with pytest.raises(BadInput, match="finished episode"):
        plot_compare([make_run(tmp_path / "r", per_row=0)], tmp_path / "x.png")


def test_experiments_of_one_name_stay_apart(tmp_path):
    old, new = tmp_path / "old" / "ppo", tmp_path / "new" / "ppo"
    assert distinct_names([old, new]) == {old: "old/ppo", new: "new/ppo"}
    assert distinct_names([old]) == {old: "ppo"}


def test_pyplot_is_not_used(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)  # another room may have loaded it
    plot_run(make_run(tmp_path / "r", rows=2))
    assert "matplotlib.pyplot" not in sys.modules


def test_ticks_are_short():
    assert [short_number(x) for x in (25_000, 1e6, -0.5)] == ["25k", "1M", "−0.5"]


def test_a_family_of_forks_is_one_tree(tmp_path):
    """A fork's curve begins on its parent's, with the episodes that both share in its mean."""
    parent, child = make_run(tmp_path / "parent", seed=1), make_run(tmp_path / "child", rows=40, seed=2)
    (parent / "run.json").write_text("{}")
    kept = (child / "metrics.jsonl").read_text().splitlines(keepends=True)[20:]
    (child / "metrics.jsonl").write_text("".join(kept))
    (child / "run.json").write_text(json.dumps({"forked_from": {"run": "parent", "env_steps": 20_000}}))
    (of_parent,), (of_child,) = plots._curves([parent]), plots._curves([child])
    assert of_child.forked
    assert not of_parent.forked
    assert of_child.x[0] == 20_000.0
    shared = of_parent.y[np.searchsorted(of_parent.x, 20_000.0)]
    assert of_child.y[0] == pytest.approx(shared, rel=0.05)  # the windows differ a little in length
    assert list(grouped_runs([parent, child]).values()) == [[parent], [child]]
    assert ink(plot_compare([parent, child], tmp_path / "tree.png")) > 0.005
    (child / "run.json").write_text(json.dumps({"forked_from": {"run": "child", "env_steps": 20_000}}))
    assert not plots._curves([child])[0].forked  # a record that names itself
