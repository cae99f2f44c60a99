"""Pictures of a study that was made up."""

import optuna
import pytest

from drl.search import search_report
from drl.tracking.figures import log_ticks


@pytest.fixture(scope="module")
def study():
    made = optuna.create_study(
        study_name="made_up", direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0)
    )

    def score(trial):
        rate, gamma = trial.suggest_float("rate", 1e-4, 1e-2, log=True), trial.suggest_float("gamma", 0.9, 0.99)
        size = trial.suggest_int("size", 1, 4)
        kind = trial.suggest_categorical("kind", ["tanh", "relu"])
        if trial.number == 5:
            trial.report(0.5, 1)
            raise optuna.TrialPruned
        return rate * gamma * size + (kind == "relu")

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    made.optimize(score, 12)
    return made


@pytest.fixture
def pictures(study, tmp_path, monkeypatch):
    kept = {}
    monkeypatch.setattr(search_report.figures, "save_figure", lambda figure, path: kept.setdefault(path.stem, figure))
    search_report.draw_study(study, tmp_path)
    return kept


def ticks(ax):
    low, high = ax.get_xlim()
    return [text.get_text() for text in ax.get_xticklabels() if low <= text.get_position()[0] <= high]


def test_every_axis_has_several_readable_ticks(pictures):
    axes = {ax.get_title("left"): ax for ax in pictures["slices"].axes}
    for ax in axes.values():
        ax.figure.draw_without_rendering()
    assert ticks(axes["rate"]) == ["1e-4", "3e-4", "1e-3", "3e-3", "1e-2"]
    assert ticks(axes["kind"]) == ["tanh", "relu"]
    assert ticks(axes["size"]) == ["1", "2", "3", "4"]
    assert len(ticks(axes["gamma"])) >= 4


def test_the_history_and_the_importances(pictures):
    assert set(pictures) == {"history", "importances", "slices"}
    (legend,) = pictures["history"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["complete", "pruned, last score", "best so far"]
    (ax,) = pictures["importances"].axes
    assert {text.get_text() for text in ax.get_yticklabels()} == {"rate", "gamma", "size", "kind"}


@pytest.mark.parametrize(("low", "high"), [(1e-5, 1e-2), (3e-4, 8e-4), (32, 512), (1e-8, 1e-3), (1, 1e9), (0.5, 0.9)])
def test_log_axes_have_three_to_six_ticks(low, high):
    found = log_ticks(low, high)
    assert 3 <= len(found) <= 6
    assert low <= found[0] < found[-1] <= high
