"""Every command has a function of its name: silent, typed, shown well, and what the command calls."""

import dataclasses
import importlib
import json
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import huggingface_hub
import pytest

import drl
from drl.analysis.comparison import Comparison
from drl.analysis.reproduction_queue import Reproduction
from drl.cli.entry import COMMANDS, main
from drl.core.algorithms import ALGORITHMS
from drl.core.errors import BadInput, DrlError
from drl.deploy.export_agent import Converted, Exported
from drl.doctor.findings import PROBLEM, Diagnosis, Finding
from drl.experiment import preset_records, presets
from drl.experiment.ablation import Ablation
from drl.experiment.evaluation import Evaluation
from drl.experiment.finished import Finished
from drl.experiment.hub import Pulled, Pushed
from drl.experiment.offers import Offers
from drl.experiment.play_again import Replay
from drl.report.one_file import ReportPage
from drl.report.plot_call import Plots
from tests.experiment.hub_stand_in import TOKEN, StandIn

TINY = {"num_envs": 2, "rollout_length": 32, "minibatches": 2, "epochs": 1, "hidden_sizes": (8,), "video": False}
TINY |= {"total_timesteps": 256, "plots": False, "tensorboard": False, "evaluation_episodes": 2, "compile": "off"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Finished]:
    """Three seeds of one experiment."""
    place = {"results_dir": str(tmp_path_factory.mktemp("results")), "name": "first", "console": False}
    return [drl.train("ppo", "CartPole-v1", seed=seed, **TINY, **place) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def run(runs) -> Finished:
    return runs[0]


def same(capsys, result, *command: object, code: int = 0) -> str:
    """Checks that the function has printed nothing and that its result is what the command prints."""
    assert capsys.readouterr().out == ""
    assert main([str(word) for word in command]) == code
    assert capsys.readouterr().out == f"{result}\n"
    assert dataclasses.is_dataclass(result)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.path = None
    return shown(result)


def shown(result) -> str:
    """As a notebook shows it: small, escaped, without scripts, and nothing from the network."""
    page = result._repr_html_()
    assert "<script" not in page
    assert not re.search(r"src=\"(?!data:)", page)
    assert len(re.sub(r"base64,[^\"]+", "", page)) < 20_000
    assert len(repr(result)) < 2_000
    return page


def test_every_command_has_a_function_of_its_name():
    assert set(COMMANDS) - set(drl._MODULE_OF) == {"completion"}  # which is for shells


def test_packages_of_the_same_name_are_called_as_the_function():
    """Python puts `drl.doctor`, the package, where the function was."""
    code = (
        "import inspect, drl, drl.doctor.findings, drl.report.one_file, drl.search.search_plan\n"
        "from drl.doctor.examine_run import doctor\n"
        "assert inspect.signature(drl.doctor) == inspect.signature(doctor)\n"
        "assert drl.doctor('CartPole-v1', steps=50).subject == 'CartPole-v1'\n"
        "assert 'video' in inspect.signature(drl.report).parameters\n"
        "assert 'search_space' in inspect.signature(drl.search).parameters"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "name", sorted(set(COMMANDS) - {"completion", "train", "resume", "fork", "search", "evaluate"})
)
def test_the_command_calls_the_function(name):
    """Each command module imports it from its package; only parsing is left there."""
    source = Path(importlib.import_module(COMMANDS[name][0]).__file__).read_text()
    assert re.search(rf"from {re.escape(drl._MODULE_OF[name])} import {name}\b", source)


def test_compare(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = runs[0].folder, runs[1].folder
    result = drl.compare([runs[0], second], out="x.json")
    assert isinstance(result, Comparison)
    assert result.written == (Path("x.json"),)
    assert json.loads(Path("x.json").read_text())["envs"] == result.envs == ["CartPole-v1"]
    page = same(capsys, result, "compare", first, second, "--out", "x.json", "--overwrite")
    assert "<th>IQM</th>" in page
    with pytest.raises(BadInput, match="give a folder of runs"):
        drl.compare([])


def test_compare_takes_lists_of_runs(runs):
    result = drl.compare({"a": runs[:2], "b": runs[2]})
    assert [(label, each.scores.shape) for label, each in result.contestants.items()] == [("a", (2, 1)), ("b", (1, 1))]
    assert list(drl.compare([runs[:2], runs[2]], labels=("x", "y")).contestants) == ["x", "y"]
    assert list(drl.compare([runs]).contestants) == ["first"]
    assert repr(result) == f"Comparison(algorithms=['a', 'b'], envs=['CartPole-v1'], winners={result.winners})"
    with pytest.raises(BadInput, match="names that differ"):
        drl.compare([runs[:2], runs[1:]])
    with pytest.raises(BadInput, match="labels has 1 names for 2 entries"):
        drl.compare([runs[:2], runs[2]], labels=("x",))


def test_doctor(run, capsys):
    result = drl.doctor(run, steps=200, picture=False)
    assert isinstance(result, Diagnosis)
    command = ("doctor", run.folder, "--steps", "200", "--no-picture")
    page = same(capsys, result, *command, code=1 if result.problems else 0)
    assert str(run.folder) in page
    with pytest.raises(BadInput, match="steps is 3"):
        drl.doctor(run, steps=3)
    with pytest.raises(BadInput, match="for an environment"):
        drl.doctor(run, wrappers=["TimeLimit"])
    with pytest.raises(BadInput, match="there is no folder nowhere"):
        drl.doctor(Path("nowhere"))


def test_doctor_of_an_environment_that_is_an_object():
    import gymnasium as gym

    class Still(gym.Wrapper):
        def step(self, action):
            return *self.env.step(action)[:1], float("nan"), False, False, {}

    assert "nan-reward" in drl.doctor(lambda: Still(gym.make("CartPole-v1")), steps=100).names()
    assert drl.doctor("FrozenLake-v1", env_kwargs={"is_slippery": False}, steps=300).problems == 0


def test_export_and_convert(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exported = drl.export(run, "c", out="a.c")
    assert isinstance(exported, Exported)
    assert exported.path.read_text().startswith("/*")
    with pytest.raises(BadInput, match=r"a\.c exists"):
        drl.export(run, "c", out="a.c")
    Path("a.c").unlink()
    assert "a.c" in same(capsys, exported, "export", run.folder, "--to", "c", "--out", "a.c")
    converted = drl.convert(run.agent, "torch", out="there")
    assert (converted.engine, converted.written_by, converted.rows) == ("torch", "torch", 1000)
    assert isinstance(converted, Converted)
    assert drl.load_agent("there").obs_spec == run.agent.obs_spec
    Path("there").rename("elsewhere")
    same(capsys, converted, "convert", run.folder, "--engine", "torch", "--out", "there")
    with pytest.raises(BadInput, match="out="):
        drl.export(run.agent, "c")
    with pytest.raises(BadInput, match="unknown engine 'tf'"):
        drl.convert(run, "tf")
    with pytest.raises(BadInput, match="expected an agent"):
        drl.export(5, "c", out="x.c")


def test_report(run, tmp_path, capsys):
    out = tmp_path / "page.html"
    page = drl.report(run, out=out)
    assert isinstance(page, ReportPage)
    assert (page.path, page.runs) == (out, (run.folder,))
    assert out.read_text().startswith("<!")
    same(capsys, page, "report", run.folder, "--out", out)
    assert drl.report(run.folder.parent, out=out).runs == drl.report([run.folder.parent], out=out).runs
    with pytest.raises(BadInput, match="expected an HTML file"):
        drl.report(run, out="page.txt")


def test_plot(runs, tmp_path, capsys):
    plots = drl.plot(runs[0])
    assert isinstance(plots, Plots)
    assert plots.paths[0] == runs[0].folder / "plots" / "return.png"
    assert "data:image/png;base64," in same(capsys, plots, "plot", runs[0].folder)
    both = drl.plot(runs, metric="return", out=tmp_path / "all.svg", labels=("a", "b", "c"))
    assert both.paths == (tmp_path / "all.svg",)
    assert "data:image/svg" in shown(both)
    with pytest.raises(BadInput, match="did you mean 'median'"):
        drl.plot(runs, statistic="medan")


def test_replay(run, capsys):
    result = drl.replay(run, episode=1, step_by_step=True)
    assert isinstance(result, Replay)
    assert len(result.steps) == result.length == result.episode_return
    same(capsys, result, "replay", run.folder, "--episode", "1", "--step-by-step")
    assert drl.replay(run).steps == ()
    with pytest.raises(BadInput, match="expected best, worst, last, crash or a number"):
        drl.replay(run, episode="bst")


def test_list(capsys):
    offers = drl.list()
    assert isinstance(offers, Offers)
    assert list(offers.algorithms) == list(ALGORITHMS)
    assert ("ppo", "CartPole-v1") in {(preset.algorithm, preset.env) for preset in offers.presets}
    assert offers.envs["CartPole-v1"] is None
    assert capsys.readouterr().out == ""
    assert main(["list"]) == 0
    assert capsys.readouterr().out == f"{offers}\n"
    assert drl.list("envs").algorithms == {}
    assert drl.list("envs", all=True).envs.keys() >= offers.envs.keys()
    with pytest.raises(BadInput, match="did you mean 'envs'"):
        drl.list("env")


def test_ablate(tmp_path, capsys, monkeypatch):
    switches = {"double": ALGORITHMS["dqn"].switches["double"]}
    monkeypatch.setitem(ALGORITHMS, "dqn", dataclasses.replace(ALGORITHMS["dqn"], switches=switches))
    tiny = {"total_timesteps": 120, "warmup": 20, "batch_size": 16, "num_envs": 1, "compile": "off"}
    tiny |= {"results_dir": str(tmp_path), "name": "parts", "updates_per_log": 50}
    result = drl.ablate("dqn", "drl/Match-v0", seeds=1, workers=1, episodes=2, **tiny)
    assert isinstance(result, Ablation)
    assert {row["variant"] for row in result.table} == {"plain", "plain + double", "full", "full - double"}
    assert capsys.readouterr().out == ""
    assert "data:image/png" in shown(result)
    flags = [word for name, value in tiny.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["ablate", "dqn", "--env", "drl/Match-v0", "--seeds", "1", "--episodes", "2", *flags]) == 0
    assert capsys.readouterr().out.endswith(f"\n{result}\n")
    with pytest.raises(BadInput, match="seeds is 0"):
        drl.ablate("dqn", "drl/Match-v0", seeds=0)


def test_reproduce(tmp_path, capsys, monkeypatch):
    (tmp_path / "presets" / "ppo").mkdir(parents=True)
    settings = "".join(f"{name}: {list(v) if isinstance(v, tuple) else v}\n" for name, v in TINY.items() if v)
    (tmp_path / "presets" / "ppo" / "CartPole-v1.yaml").write_text(settings)
    monkeypatch.setattr(presets, "PRESETS", tmp_path / "presets")
    monkeypatch.setattr(preset_records, "RECORDS", tmp_path / "records.yaml")
    result = drl.reproduce("ppo/CartPole-v1", seeds=1, results_dir=tmp_path / "here")
    assert isinstance(result, Reproduction)
    assert (result.verdict, result.verdicts) == ("UNDECIDED", {"ppo/CartPole-v1": "UNDECIDED"})
    assert capsys.readouterr().out == ""
    shown(result)
    assert main(["reproduce", "ppo/CartPole-v1", "--seeds", "1", "--results-dir", str(tmp_path / "there")]) == 7
    assert capsys.readouterr().out.endswith(f"\n{result}\n")
    with pytest.raises(BadInput, match="give one preset"):
        drl.reproduce()


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with StandIn() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server
    huggingface_hub.close_session()


def test_push_and_pull(hub, run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pushed = drl.push(run.agent, "me/agent")
    assert isinstance(pushed, Pushed)
    assert pushed.url == f"{hub.endpoint}/me/agent"
    same(capsys, pushed, "push", run.folder, "me/agent")
    pulled = drl.pull("me/agent", out="mine")
    assert isinstance(pulled, Pulled)
    assert drl.load_agent(pulled.folder).obs_spec == run.agent.obs_spec
    Path("mine").rename("before")
    same(capsys, pulled, "pull", "me/agent", "--out", "mine")
    with pytest.raises(BadInput, match="expected owner/name"):
        drl.pull("agent")
    with pytest.raises(BadInput, match="--which is 'worst'"):
        drl.push(run, "me/agent", which="worst")


def test_serve(run, capsys):
    with drl.serve(run, port=0, engine="numpy") as server:
        body = json.dumps({"obs": [0.0, 0.0, 0.0, 0.0]}).encode()
        request = urllib.request.Request(f"{server.url}/act", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["action"] in (0, 1)
        assert f'href="{server.url}"' in shown(server)
        assert str(server).startswith(f"serving {run.folder} at {server.url}\n")
    assert "closed" in repr(server)
    server.close()  # a second time does no harm
    assert capsys.readouterr() == ("", "")
    with pytest.raises(BadInput, match="port is 70000"):
        drl.serve(run, port=70_000)


def test_board(run, capsys):
    with drl.board(run.folder.parent, port=0) as server:
        with urllib.request.urlopen(f"{server.url}runs.json", timeout=10) as answer:
            assert len(json.load(answer)["runs"]) == 3
        assert server.url in shown(server)
        assert str(server) == f"board of {run.folder.parent}: {server.url} (Ctrl-C ends it)"
    assert not [thread for thread in threading.enumerate() if thread.name == "drl board"]
    assert capsys.readouterr().out == ""
    with pytest.raises(BadInput, match="expected a folder of runs"):
        drl.board("nowhere")
    with pytest.raises(BadInput, match="port is -1"):
        drl.board(run.folder, port=-1)


def test_results_with_arrays_are_short(run):
    evaluation = drl.evaluate(run, episodes=3)
    assert isinstance(evaluation, Evaluation)
    assert repr(evaluation) == f"Evaluation({evaluation.sentence()})"
    assert "<th>mean return</th>" in shown(evaluation)
    assert repr(run) == f"Finished(folder={str(run.folder)!r}, status='finished', mean_return={_mean(run)})"
    assert shown(run).startswith("<pre>finished: ")
    metrics = run.metrics
    assert re.fullmatch(r"RunMetrics\(\d+ rows, \d+ columns\)", repr(metrics))
    assert "<td>env_steps</td>" in shown(metrics)
    assert metrics == dict(metrics)


def _mean(run: Finished) -> str:
    return f"{run.evaluation['mean_return']:.2f}"


def test_console_prints_the_same(run, tmp_path, capsys):
    page = drl.report(run, out=tmp_path / "a.html", console=True)
    assert capsys.readouterr().out == f"{page}\n"
    offers = drl.list("algorithms", console=True)
    assert capsys.readouterr().out == f"{offers}\n"


def test_resume_takes_what_train_returned(run):
    with pytest.raises(DrlError):
        drl.fork(run, {"seed": 3}, console=False)
    with pytest.raises(BadInput, match="is not a run"):
        drl.resume(5, console=False)


def test_markup_in_names_is_escaped():
    page = Diagnosis("<b>x", {"<i>": 1.0}, (Finding("a", PROBLEM, "<script>", "<img>"),))._repr_html_()
    assert not re.search(r"<(i|script|img)>|<b>x", page)
