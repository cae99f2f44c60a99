"""Every sabotaged run is named, at the head of its findings; healthy ones get no complaint."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from drl.agents.load_agent import load_agent
from drl.core.errors import DrlError, UnusableFile
from drl.doctor.diagnose import examine_run
from drl.doctor.run_checks import run_findings
from drl.doctor.run_records import AgentPlay, RunRecords
from drl.runs.folder.run_folder import Run, read_settings
from tests.doctor.sabotaged_runs import HEALTHY, HERE, PPO, SABOTAGED, train_tiny


def examined(folder, **options):
    return examine_run(folder, steps=400, trust=True, **options)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Trains a healthy run when it is first asked for."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = train_tiny(HEALTHY[name], tmp_path_factory.mktemp("healthy"))
        return made[name]

    return make


@pytest.mark.default("no reward", "huge learning rate", "few updates", "short discount")
@pytest.mark.parametrize("name", SABOTAGED)
def test_a_sabotaged_run_is_named(name, tmp_path):
    settings, expected = SABOTAGED[name]
    found = examined(train_tiny(settings, tmp_path))
    assert expected in found.names()[:2], found.text()
    assert found.problems == len(found.findings)
    flags = {flag for finding in found.findings for flag in re.findall(r"--([a-z-]+)", finding.change)}
    known = {"wrapper", "which", "sampled", *(name.replace("_", "-") for name in read_settings(Path(found.subject)))}
    assert flags <= known, found.text()
    drawn = any(finding.series is not None for finding in found.findings)
    assert [path.name for path in tmp_path.rglob("doctor/*")] == (["evidence.png"] if drawn else [])


@pytest.mark.default("ppo CartPole", "very short")
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_gets_no_complaint(name, healthy):
    found = examined(healthy(name))
    assert found.findings == (), found.text()
    assert found.pictures == ()
    assert bool(found.notes) is (name == "very short")


def test_a_stale_normalizer_is_named(healthy, tmp_path):
    folder = shutil.copytree(healthy("ppo Acrobot"), tmp_path / "acrobot" / "run")
    agent = load_agent(folder)
    state = agent.normalizer.state_dict()
    state["stats"][""]["mean"] = state["stats"][""]["mean"] + np.array([100.0, 0, 0, 0, 0, 0])  # of another sensor
    agent.normalizer.load_state_dict(state)
    agent.save(folder / "agent", **agent.notes)
    assert "stale-normalizer" in examined(folder).names()


def test_a_run_that_failed_repeats_its_error(tmp_path):
    with pytest.raises(DrlError):
        train_tiny(PPO | {"env": f"{HERE}:Fails"}, tmp_path)
    found = examined(next(tmp_path.glob("*/*")))
    assert found.names() == ["failed"]
    assert "the wheel came off" in found.findings[0].seen


def written(folder, settings=None, count=40, status="finished", **columns):
    """A run with these numbers in its rows: a list, or a function of the share of the run."""
    run = Run.create("written", {"algorithm": "ppo", "env": "CartPole-v1", "wrappers": []} | (settings or {}), folder)
    run.note(status=status)
    with (run.folder / "metrics.jsonl").open("w") as file:
        for i in range(count):
            row = {"env_steps": 100 * (i + 1), "episodes": 5 * (i + 1), "learning_steps": i + 1, "learn/loss": 1.0}
            row["finished"] = [[1.0 + j, 20, True, None] for j in range(5)]
            row |= {name.replace("__", "/"): value(i / (count - 1)) for name, value in columns.items()}
            file.write(json.dumps(row) + "\n")
    run.close()
    return run.folder


@pytest.mark.parametrize(
    ("expected", "columns"),
    [
        ("truncated-episodes", {"finished": lambda x: [[1.0 + j, 20, x < 0.5, None] for j in range(5)]}),
        ("constant-return", {"finished": lambda x: [[-200.0, 200, False, None]] * 5}),
        ("exploding-temperature", {"learn__temperature": lambda x: 0.1 + 50 * x}),
        ("exploding-gradients", {"learn__grad_norm": lambda x: 1e5 if x > 0.8 else 1.0}),
        ("zero-gradients", {"learn__actor_grad_norm": lambda x: 1.0 if x < 0.3 else 0.0}),
        ("growing-loss", {"learn__loss": lambda x: 10.0 ** (4 * x)}),
        ("kl-spikes", {"learn__approx_kl": lambda x: 3.0 if x == 1.0 else 0.01}),
    ],
)
def test_symptoms_in_records_are_named(tmp_path, expected, columns):
    assert examine_run(written(tmp_path, **columns)).names() == [expected]


def test_returns_that_grow_explain_a_growing_loss(tmp_path):
    grown = {"finished": lambda x: [[10.0 ** (2 * x), 20, True, None]] * 5, "learn__loss": lambda x: 10.0 ** (4 * x)}
    assert examine_run(written(tmp_path, **grown)).names() == []


def test_too_few_numbers_are_no_symptom(tmp_path):
    found = examine_run(written(tmp_path, count=10, learn__approx_kl=lambda x: 0.3))
    assert found.names() == []
    assert "too early to say after 10 learning steps" in found.notes[0]
    assert "actions and values" in found.notes[1]  # there is no agent


def updates(count):
    return {"trainer__gradient_steps": lambda x: count}


@pytest.mark.parametrize(
    ("count", "columns", "expected"),
    [
        (12, {"learn__approx_kl": lambda x: 0.3} | updates(240), ["kl-spikes"]),
        (12, {"learn__clip_fraction": lambda x: 0.8} | updates(240), ["clip-fraction"]),
        (12, {"learn__approx_kl": lambda x: 0.3 * (x == 1)} | updates(240), []),  # once in twelve is chance
        (12, {"learn__approx_kl": lambda x: 0.3} | updates(20), []),
        (4, {"learn__approx_kl": lambda x: 0.3} | updates(1000), []),
        (3, {"learn__approx_kl": lambda x: 3.0}, ["kl-spikes"]),  # no healthy update does that
        (2, {"learn__approx_kl": lambda x: 3.0}, []),
    ],
)
def test_long_learning_steps_need_not_be_many(tmp_path, count, columns, expected):
    found = examine_run(written(tmp_path, count=count, **columns), picture=False)
    assert found.names() == expected
    early = any("too early to say" in note for note in found.notes)
    assert early is (count < 5 or columns["trainer__gradient_steps"](0) == 20)


def test_a_few_lucky_episodes_are_no_improvement(tmp_path):
    """Of 30, the last 6 are better than the first 6, but the last 10 hardly better than the first 10."""
    returns = [0.0] * 6 + [5.0] * 4 + [2.0] * 10 + [0.0] * 4 + [5.0] * 6
    folder = written(tmp_path, count=30, finished=lambda x: [[returns[round(29 * x)], 20, True, None]])
    assert not RunRecords(folder).improved


def test_a_better_return_does_not_excuse_an_actor_that_is_stuck(tmp_path):
    rises = {"finished": lambda x: [[10 * x + j, 20, True, None] for j in range(5)]}
    settings = {"learning_rate": 0.3, "activation": "relu"}
    agent = SimpleNamespace(action_spec=SimpleNamespace(kind="box"), normalizer=None)
    play = AgentPlay(agent, np.zeros((40, 3)), np.ones((40, 1)), np.zeros(40), None, None)
    free = RunRecords(written(tmp_path / "free", settings, **rises, learn__actor_grad_norm=lambda x: 0.1))
    assert free.improved
    assert not list(run_findings(free, play))
    stuck = written(tmp_path / "stuck", settings, **rises, learn__actor_grad_norm=lambda x: 0.1 if x < 0.1 else 0.0)
    saturated, _ = run_findings(RunRecords(stuck), play)
    assert saturated.name == "saturated-actions"
    assert "the actor's gradient is 0" in saturated.seen
    (finding,) = examine_run(stuck, picture=False).findings
    assert finding.name == "zero-gradients"
    assert finding.change.startswith("--learning-rate 0.03 (a tenth)")


def ended(**columns):
    """The columns of a run whose returns do not change, with many updates."""
    return updates(100) | columns


BUDGET = {"total_timesteps": 4000}
SOLVED = [[490.0 + j, 20, False, None] for j in range(5)]


@pytest.mark.parametrize(
    ("settings", "columns", "expected"),
    [
        (BUDGET, ended(), ["no-progress"]),
        ({"total_timesteps": 8000}, ended(), []),
        (BUDGET, updates(1), []),
        (BUDGET | {"from_agent": "elsewhere"}, ended(), []),
        (BUDGET, ended(finished=lambda x: SOLVED), []),
        (BUDGET | {"wrappers": ["Changed"]}, ended(finished=lambda x: SOLVED), ["no-progress"]),
        (BUDGET, ended(finished=lambda x: [[10 * x + j, 20, True, None] for j in range(5)]), []),
        (BUDGET, ended(finished=lambda x: [[j + (x > 0.1), 20, True, None] for j in range(5)]), []),  # early on
        (BUDGET, ended(evaluation__mean_return=lambda x: 5.0), []),  # exploring hides what was learned
        (BUDGET, ended(learn__loss=lambda x: 10.0 ** (4 * x)), ["growing-loss"]),  # there is a reason
    ],
)
def test_a_run_without_progress_is_advised(tmp_path, settings, columns, expected):
    found = examine_run(written(tmp_path, settings, **columns), picture=False)
    assert found.names() == expected
    assert found.problems == len([name for name in expected if name != "no-progress"])


def test_a_return_that_was_best_from_the_beginning_is_no_symptom(tmp_path):
    solved = {"finished": lambda x: [[500.0, 500, False, None]] * 5}
    assert examine_run(written(tmp_path, BUDGET, **ended(**solved))).names() == []


def test_numbers_that_cannot_be_drawn_are_no_failure(tmp_path):
    found = examine_run(written(tmp_path, learn__approx_kl=lambda x: -1e308 if x < 0.5 else 1e308))
    assert found.names() == ["kl-spikes"]
    assert found.pictures == ()
    assert "there is no picture of the evidence" in found.notes[-1]
    assert "▁█" in found.text()


def test_a_run_without_rows_is_not_called_healthy(tmp_path):
    with pytest.raises(UnusableFile, match="no row"):
        examine_run(written(tmp_path / "ended", count=0))
    found = examine_run(written(tmp_path / "goes on", count=0, status="running"))
    assert "metrics.jsonl has no rows" in found.notes[0]


def test_forged_records_are_refused(tmp_path):
    folder = written(tmp_path, finished=lambda x: {"a": 1})
    with pytest.raises(UnusableFile, match="cannot be examined"):
        examine_run(folder)


def test_nothing_is_written_through_a_link(tmp_path):
    folder = written(tmp_path, learn__approx_kl=lambda x: 3.0)
    (tmp_path / "outside").mkdir()
    (folder / "doctor").symlink_to(tmp_path / "outside")
    with pytest.raises(UnusableFile, match="leads out of"):
        examine_run(folder)
    assert list((tmp_path / "outside").iterdir()) == []
