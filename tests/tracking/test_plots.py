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
from drl.tracking.curves import curves_of, distinct_names, full_name, grouped_runs, history_of, short_number
from drl.tracking.figures import look
from drl.tracking.files import JsonlTracker
from drl.tracking.plots import plot_compare, plot_run

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


@pytest.mark.default("shape3-*", "shape5-*")
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


@pytest.mark.full
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


@pytest.mark.full
def test_pyplot_is_not_used(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)  # another room may have loaded it
    plot_run(make_run(tmp_path / "r", rows=2))
    assert "matplotlib.pyplot" not in sys.modules


def test_ticks_are_short():
    assert [short_number(x) for x in (25_000, 1e6, -0.5)] == ["25k", "1M", "−0.5"]


@pytest.mark.parametrize("metric", ["return", "value_loss"])
@pytest.mark.parametrize("rows", [30, 150])  # as they are, and in bins
def test_a_family_of_forks_is_one_tree(tmp_path, metric, rows):
    """A fork's curve begins on its parent's: all runs are smoothed in the same way, over what both share."""
    parent, child = make_run(tmp_path / "parent", rows, seed=1), make_run(tmp_path / "child", rows, seed=2)
    (parent / "run.json").write_text("{}")
    lines = [(run / "metrics.jsonl").read_text().splitlines(keepends=True) for run in (parent, child)]
    (child / "metrics.jsonl").write_text("".join(lines[1][20:]))
    origin = {"run": "parent", "env_steps": 20_000}
    (child / "run.json").write_text(json.dumps({"forked_from": origin}))
    histories = {"parent": [history_of(parent)], "child": [history_of(child)]}
    (of_parent,), (of_child,) = curves_of(histories, metric).lines.values()
    assert of_child.forked
    assert not of_parent.forked
    assert 20_000 - 1_500 < of_child.x[0] <= 20_000.0  # the last bin that both share, or the place itself
    assert of_child.y[0] == pytest.approx(of_parent.y[np.searchsorted(of_parent.x, of_child.x[0])])
    assert of_child.x[-1] == of_parent.x[-1]
    assert list(grouped_runs([parent, child]).values()) == [[parent], [child]]
    assert ink(plot_compare([parent, child], tmp_path / "tree.png")) > 0.005
    (child / "run.json").write_text(json.dumps({"forked_from": origin | {"run": "child"}}))
    assert history_of(child).begins == 0  # a record that names itself


@pytest.fixture
def figures_of(monkeypatch):
    """The figures that are saved, to look into."""
    kept = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: kept.append(figure) or path)
    return kept


def words(figure):
    found = [text.get_text() for text in figure.texts]
    found += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return found + [text for ax in figure.axes for text in (ax.get_title("left"), ax.get_xlabel(), ax.get_ylabel())]


def test_a_comparison_says_what_it_shows(tmp_path, figures_of):
    runs = [make_run(tmp_path / name / str(seed), seed=seed) for name in ("ppo", "a2c") for seed in range(4)]
    plot_compare(runs, tmp_path / "x.png", labels=["PPO"] * 4 + ["ours"] * 4, statistic="iqm", smooth=7)
    (figure,) = figures_of
    said = "|".join(words(figure))
    for part in ("PPO (4 seeds)", "ours (4 seeds)", "IQM", "95 % percentile bootstrap", "mean of the last 7 episodes"):
        assert part in said
    plot_compare(runs[:1], tmp_path / "x.png", metrics=["entropy", "evaluation/mean_return"])
    said = "|".join(words(figures_of[1]))
    for part in ("one seed per line", "learn/entropy", "evaluation/mean_return"):
        assert part in said
    assert "bootstrap" not in said
    assert len(figures_of[1].axes) == 2


def test_a_statistic_is_that_of_the_seeds(tmp_path, figures_of):
    runs = []
    for seed, level in enumerate((1.0, 2.0, 3.0, 4.0, 1000.0)):
        tracker = JsonlTracker(tmp_path / "ppo" / str(seed) / "metrics.jsonl")
        for step in (1, 2):
            tracker.write(Log(step, 0, step, learn={"entropy": level}))
        tracker.close()
        runs.append(tmp_path / "ppo" / str(seed))
    for statistic, expected in {"mean": 202.0, "median": 3.0, "iqm": 3.0}.items():
        plot_compare(runs, tmp_path / "x.png", metrics=["entropy"], statistic=statistic)
        line = figures_of[-1].axes[0].lines[-1]
        assert set(line.get_ydata()) == {expected}
    with pytest.raises(BadInput, match="did you mean 'median'"):
        plot_compare(runs, tmp_path / "x.png", statistic="medain")


def test_smoothing_is_a_trailing_mean_of_what_is_asked_for(tmp_path):
    histories = {"r": [history_of(make_run(tmp_path / "r", rows=150))]}
    rough, smooth = (curves_of(histories, "value_loss", smooth) for smooth in (1, 10))
    assert (rough.smoothing, smooth.smoothing) == ("", "mean of the last 10 values")
    np.testing.assert_allclose(rough.lines["r"][0].y, 9.0 / np.arange(1, 151))
    np.testing.assert_allclose(smooth.lines["r"][0].y[-1], np.mean(9.0 / np.arange(141, 151)))


def test_many_values_are_put_into_bins(tmp_path, figures_of):
    run = make_run(tmp_path / "r", rows=150, evaluate=False)
    curves = curves_of({"r": [history_of(run)]}, "value_loss")
    (curve,) = curves.lines["r"]
    assert curves.smoothing == "mean per bin of 1.5k steps"
    assert len(curve.x) == 100
    np.testing.assert_allclose(curve.y[:2], [9.0, 9.0 * (1 / 2 + 1 / 3) / 2])  # steps to 1500, to 3000
    plot_run(run)
    rollouts = figures_of[2]
    assert "mean per bin of 1.5k steps" in rollouts.axes[0].get_ylabel()
    assert len(rollouts.axes[0].lines[0].get_xdata()) == 100
    plot_run(make_run(tmp_path / "short", rows=20))
    assert "mean per rollout" in figures_of[6].axes[0].get_ylabel()


def test_an_unknown_metric_is_named_with_those_there_are(tmp_path):
    run = make_run(tmp_path / "r", rows=2)
    with pytest.raises(BadInput, match=r"'entropi'; did you mean 'entropy' .*there are return, .*learn/value_loss"):
        plot_compare([run], tmp_path / "x.png", metrics=["entropi"])
    with pytest.raises(BadInput, match=r"'zzz'; there are return, learn/entropy") as raised:
        plot_compare([run], tmp_path / "x.png", metrics=["return", "zzz"])
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "x.png").exists()


def test_a_plain_name_means_what_it_means_in_a_log(tmp_path):
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    tracker.write(Log(1, 0, 1, rollout={"mean_ep_return": 1.0}, recent={"mean_ep_return": 2.0}))
    tracker.close()
    history = history_of(tmp_path)
    assert full_name("mean_ep_return", [history]) == "recent/mean_ep_return"
    assert full_name("rollout/mean_ep_return", [history]) == "rollout/mean_ep_return"
    assert full_name("env_steps", [history]) == "env_steps"


def test_labels_take_the_place_of_experiments(tmp_path):
    runs = [tmp_path / name for name in ("a", "b", "c")]
    for run, rate in zip(runs, (1, 1, 2), strict=True):
        run.mkdir()
        (run / "config.yaml").write_text(f"learning_rate: {rate}")
    assert grouped_runs(runs, ["x", "y", "y"]) == {
        "x": [runs[0]],
        "y, learning_rate=1": [runs[1]],
        "y, learning_rate=2": [runs[2]],
    }
    assert grouped_runs(runs[:2], ["x", "x"]) == {"x": runs[:2]}
    assert grouped_runs([runs[0], runs[0]]) == {tmp_path.name: [runs[0]]}, "a run is not two seeds"


def test_groups_that_differ_in_what_no_label_shows_stay_apart(tmp_path):
    runs = [tmp_path / name for name in "abc"]
    for run, values in zip(runs, ((0, 0), (1, 0), (1, 1)), strict=True):
        run.mkdir()
        settings = {f"s{i}": values[0] for i in range(5)} | {"s5": values[1]}
        (run / "config.yaml").write_text(yaml.safe_dump(settings))
    labels = grouped_runs(runs, ["x"] * 3)
    assert list(labels.values()) == [[run] for run in runs]
    assert [label.split(" more")[1] for label in labels] == ["", "", " (2)"]


@pytest.mark.parametrize("kind", ["png", "pdf", "svg", "SVG"])
def test_pictures_have_three_formats_and_equal_bytes(tmp_path, kind):
    run = make_run(tmp_path / "a $b$ run" / "1", rows=5)
    first, second = (plot_compare([run], tmp_path / f"{i}.{kind}").read_bytes() for i in range(2))
    assert first == second
    assert first.startswith({"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[kind.lower()])
    if kind == "svg":
        assert b">environment steps</text>" in first
        assert b">a $b$ run</text>" in first
        assert b"dc:date" not in first


@pytest.mark.parametrize("name", ["x.jpg", "x", "x.png.txt"])
def test_another_suffix_is_refused(tmp_path, name):
    with pytest.raises(BadInput, match=r"one of \.png, \.pdf, \.svg"):
        plot_compare([tmp_path], tmp_path / name)


@pytest.mark.default("metrics1-3-9", "metrics0-*")
@pytest.mark.parametrize("count", [1, 2, 9])
@pytest.mark.parametrize("length", [3, 60, 300])
@pytest.mark.parametrize("metrics", [["return"], ["entropy", "return", "value_loss"]])
def test_a_legend_is_never_over_data(tmp_path, figures_of, count, length, metrics):
    runs = [make_run(tmp_path / str(i), rows=3, per_row=2) for i in range(count)]
    labels = [f"{i} " + "label " * (length // 6) for i in range(count)]
    plot_compare(runs, tmp_path / "x.png", labels=labels, metrics=metrics)
    (figure,) = figures_of
    (legend,) = figure.legends
    box, page = legend.get_window_extent(), figure.bbox
    assert box.y0 > 0
    assert page.x0 <= box.x0 < box.x1 <= page.x1
    for ax in figure.axes:
        assert box.y1 < ax.get_tightbbox().y0
        assert not ax.get_legend()
    for text in figure.texts:
        assert text.get_window_extent().y0 > max(ax.get_tightbbox().y1 for ax in figure.axes)


def test_lines_differ_without_their_color():
    looks = [look(i) for i in range(28)]
    assert len(set(looks)) == 28
    assert len({(each.dashes, each.marker) for each in looks}) == 28
