"""Every command has a function of its name: silent, typed, shown well, and what the command calls."""

import dataclasses
import importlib
import inspect
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import drl
from drl.algorithms import ALGORITHMS
from drl.cli.entry import COMMANDS, main
from drl.doctor.findings import PROBLEM
from drl.settings import preset_records, presets

TINY = {"num_envs": 2, "rollout_length": 32, "minibatches": 2, "epochs": 1, "hidden_sizes": (8,), "video": False}
TINY |= {"total_timesteps": 256, "plots": False, "tensorboard": False, "evaluation_episodes": 2, "compile": "off"}
DQN = {"total_timesteps": 120, "warmup": 20, "batch_size": 16, "num_envs": 1, "compile": "off", "updates_per_log": 50}
DQN_FLAGS = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in DQN.items())
FEW = {"n_trials": 1, "n_jobs": 0, "reports": 1, "rerun_best": 0, "num_timesteps_per_trial": 120, "plots": False}


def stop(logs):
    """A stage that interrupts a run after its first log."""
    yield next(logs)
    raise KeyboardInterrupt


def stopped() -> drl.Finished:
    return drl.train("ppo", "CartPole-v1", stages=[stop], console=False, **TINY)


class Twin(NamedTuple):
    """A function and its command. RUN in a command is the folder of the run that the functions take."""

    result: type
    call: Callable[[drl.Finished], object]
    command: str  # that prints the result; "": its text has other paths, or it serves until Ctrl-C
    wrong: Callable[[drl.Finished], object]
    wrong_command: str


TWINS = {
    "train": Twin(
        drl.Finished,
        lambda run: drl.train("ppo", "CartPole-v1", console=False, **TINY),
        "",
        lambda run: drl.train("pppo"),
        "train pppo",
    ),
    "resume": Twin(
        drl.Finished,
        lambda run: drl.resume(stopped(), console=False),
        "",
        lambda run: drl.resume(run.folder / "agent"),
        "resume RUN/agent",
    ),
    "fork": Twin(
        drl.Finished,
        lambda run: drl.fork(stopped(), {"total_timesteps": 320}, console=False),
        "",
        lambda run: drl.fork(run, {"seed": 3}),
        "fork RUN --set seed=3",
    ),
    "replay": Twin(
        drl.Replay,
        lambda run: drl.replay(run, episode=1, step_by_step=True),
        "replay RUN --episode 1 --step-by-step",
        lambda run: drl.replay(run, episode="bst"),
        "replay RUN --episode bst",
    ),
    "evaluate": Twin(
        drl.Evaluation,
        lambda run: drl.evaluate(run, episodes=3, seed=1),
        "evaluate RUN --episodes 3",
        lambda run: drl.evaluate(run, episodes=0),
        "evaluate RUN --episodes 0",
    ),
    "ablate": Twin(
        drl.Ablation,
        lambda run: drl.ablate("dqn", "drl/Match-v0", seeds=1, workers=2, episodes=2, **DQN),
        f"ablate dqn --env drl/Match-v0 --seeds 1 --workers 2 --episodes 2 {DQN_FLAGS}",
        lambda run: drl.ablate("dqn", seeds=0),
        "ablate dqn --seeds 0",
    ),
    "search": Twin(
        drl.SearchResult,
        lambda run: drl.search("dqn", "CartPole-v1", console=False, **FEW),
        "",
        lambda run: drl.search("dqn", n_trials=0),
        "search dqn --n-trials 0",
    ),
    "compare": Twin(
        drl.Comparison,
        lambda run: drl.compare([run], out="x.json"),
        "compare RUN --out x.json",
        lambda run: drl.compare([run], normalize="best"),
        "compare RUN --normalize best",
    ),
    "reproduce": Twin(
        drl.Reproduction,
        lambda run: drl.reproduce("ppo/CartPole-v1", seeds=1),
        "reproduce ppo/CartPole-v1 --seeds 1",
        lambda run: drl.reproduce(),
        "reproduce",
    ),
    "doctor": Twin(
        drl.Diagnosis,
        lambda run: drl.doctor(run, steps=200, picture=False),
        "doctor RUN --steps 200 --no-picture",
        lambda run: drl.doctor(run, steps=3),
        "doctor RUN --steps 3",
    ),
    "plot": Twin(
        drl.Plots,
        lambda run: drl.plot(run),
        "plot RUN",
        lambda run: drl.plot(run, statistic="medan"),
        "plot RUN --statistic medan",
    ),
    "report": Twin(
        drl.ReportPage,
        lambda run: drl.report(run, out="page.html"),
        "report RUN --out page.html",
        lambda run: drl.report(run, out="page.txt"),
        "report RUN --out page.txt",
    ),
    "board": Twin(
        drl.RunningServer,
        lambda run: drl.board(run.folder.parent, port=0),
        "",
        lambda run: drl.board("nowhere"),
        "board nowhere",
    ),
    "convert": Twin(
        drl.Converted,
        lambda run: drl.convert(run, "torch", out="there"),
        "convert RUN --engine torch --out there",
        lambda run: drl.convert(run, "tf"),
        "convert RUN --engine tf",
    ),
    "export": Twin(
        drl.Exported,
        lambda run: drl.export(run, "c", out="a.c"),
        "export RUN --to c --out a.c",
        lambda run: drl.export(run, "c", action_mask="yes"),
        "export RUN --to c --action-mask yes",
    ),
    "serve": Twin(
        drl.RunningServer,
        lambda run: drl.serve(run, port=0, engine="numpy"),
        "",
        lambda run: drl.serve(run, port=70_000),
        "serve RUN --port 70000",
    ),
    "push": Twin(
        drl.Pushed,
        lambda run: drl.push(run, "me/agent"),
        "push RUN me/agent",
        lambda run: drl.push(run, "me/agent", which="worst"),
        "push RUN me/agent --which worst",
    ),
    "pull": Twin(
        drl.Pulled,
        lambda run: drl.pull("me/shared", out="mine"),
        "pull me/shared --out mine",
        lambda run: drl.pull("agent"),
        "pull agent",
    ),
    "list": Twin(
        drl.Offers,
        lambda run: drl.list(),
        "list",
        lambda run: drl.list("env"),
        "list env",
    ),
    "completion": Twin(
        drl.CompletionScript,
        lambda run: drl.completion("fish"),
        "completion fish",
        lambda run: drl.completion("csh"),
        "completion csh",
    ),
}  # fmt: skip
# Commands that call what the function calls, since flags become an experiment or a plan in another way than arguments.
BOTH_CALL = {"train": "drl.runs.launch", "search": "drl.search.run_search"}
EXIT_CODES = {"doctor": {0, 1}, "reproduce": {7}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[drl.Finished]:
    """Three seeds of one experiment."""
    place = {"results_dir": str(tmp_path_factory.mktemp("results")), "name": "first", "console": False}
    return [drl.train("ppo", "CartPole-v1", seed=seed, **TINY, **place) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def run(runs) -> drl.Finished:
    return runs[0]


@pytest.fixture
def small_world(tmp_path, monkeypatch):
    """An algorithm with one switch, a preset that trains in no time, and a folder to work in."""
    switches = {"double": ALGORITHMS["dqn"].switches["double"]}
    monkeypatch.setitem(ALGORITHMS, "dqn", dataclasses.replace(ALGORITHMS["dqn"], switches=switches))
    preset = tmp_path / "presets" / "ppo" / "CartPole-v1.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("".join(f"{name}: {list(v) if isinstance(v, tuple) else v}\n" for name, v in TINY.items() if v))
    monkeypatch.setattr(presets, "PRESETS", tmp_path / "presets")
    monkeypatch.setattr(preset_records, "RECORDS", tmp_path / "records.yaml")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def words(command: str, run: drl.Finished) -> list[str]:
    return [word.replace("RUN", str(run.folder)) for word in command.split()]


def shown(result) -> str:
    """As a notebook shows it: small, escaped, without scripts, and nothing from the network."""
    page = result._repr_html_()
    assert "<script" not in page
    assert not re.search(r"src=\"(?!data:)", page)
    assert len(re.sub(r"base64,[^\"]+", "", page)) < 40_000
    assert repr(result).startswith(f"{type(result).__name__}(")
    assert len(repr(result)) < 800
    assert "\n" not in repr(result)
    return page


def test_every_command_has_a_function_of_its_name():
    assert TWINS.keys() == COMMANDS.keys() <= drl._MODULE_OF.keys()


def test_all_of_drl_does_not_hide_a_builtin():
    assert not set(drl.__all__) & set(dir(__builtins__) if inspect.ismodule(__builtins__) else __builtins__)
    assert set(drl._MODULE_OF) - set(drl.__all__) == {"list"}
    assert {"list", "train"} <= set(dir(drl))


@pytest.mark.default("[!a]*")  # not ablate, which trains seven runs
@pytest.mark.parametrize("name", TWINS)
def test_a_function_is_silent_typed_and_shows_what_the_command_prints(name, run, hub, small_world, capfd, monkeypatch):
    twin = TWINS[name]
    if name == "pull":
        drl.push(run, "me/shared")
    capfd.readouterr()
    result = twin.call(run)
    assert capfd.readouterr() == ("", "")
    assert type(result) is twin.result
    returns = inspect.get_annotations(getattr(importlib.import_module(drl._MODULE_OF[name]), name), eval_str=True)
    assert returns["return"] is twin.result
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.other = None
    shown(result)
    if isinstance(result, drl.RunningServer):
        result.close()
    if not twin.command:
        return
    if name != "ablate":  # which has nothing left to train
        Path("again").mkdir()
        monkeypatch.chdir("again")
    assert main(words(twin.command, run)) in EXIT_CODES.get(name, {0})
    printed, expected = (re.sub(r" \(\S+ a second\)", "", text) for text in (capfd.readouterr().out, f"{result}\n"))
    assert printed.endswith(expected)
    if name not in ("ablate", "reproduce", "evaluate"):  # which print progress, or the environment's name, before
        assert printed == expected


@pytest.mark.parametrize("name", TWINS)
def test_bad_input_is_refused_in_the_words_of_the_command(name, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(drl.BadInput) as refused:
        TWINS[name].wrong(run)
    assert capsys.readouterr().out == ""
    assert main(words(TWINS[name].wrong_command, run)) == 2
    assert " ".join(str(refused.value).split()) in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", TWINS)
def test_the_command_calls_the_function(name, run, tmp_path, monkeypatch, capsys):
    """Or both call the same one."""
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(BOTH_CALL.get(name, drl._MODULE_OF[name]))

    def called(*arguments, **settings):
        raise drl.BadInput(f"{name} was called")

    monkeypatch.setattr(module, "run_search" if name == "search" else name, called)
    commands = {"train": "train ppo", "search": "search ppo", "resume": "resume RUN"}
    command = commands.get(name) or TWINS[name].command or TWINS[name].wrong_command
    given = stopped() if name == "resume" else run  # the command leaves out what is finished
    if name in BOTH_CALL:
        with pytest.raises(drl.BadInput, match="was called"):
            getattr(drl, name)("ppo")
    assert main(words(command, given)) == 2
    assert f"{name} was called" in capsys.readouterr().err


@pytest.mark.full
def test_packages_of_the_same_name_are_called_as_the_function():
    """Python puts `drl.doctor`, the package, where the function was."""
    code = (
        "import inspect, drl, drl.doctor.findings, drl.report.report_page, drl.search.search_plan\n"
        "from drl.doctor.diagnose import doctor\n"
        "assert inspect.signature(drl.doctor) == inspect.signature(doctor)\n"
        "assert drl.doctor('CartPole-v1', steps=50).subject == 'CartPole-v1'\n"
        "assert 'video' in inspect.signature(drl.report).parameters\n"
        "assert 'search_space' in inspect.signature(drl.search).parameters"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_console_prints_the_result(run, tmp_path, capsys):
    page = drl.report(run, out=tmp_path / "a.html", console=True)
    assert capsys.readouterr().out == f"{page}\n"
    replayed = drl.replay(run, step_by_step=True, console=True)
    assert capsys.readouterr().out == f"{replayed}\n"


def test_evaluations_runs_and_metrics_are_short(run):
    evaluation = drl.evaluate(run.agent, episodes=3)
    assert repr(evaluation) == f"Evaluation({evaluation.sentence()})"
    assert re.findall("<th>(.*?)</th>", shown(evaluation))[0] == "mean return"
    mean = f"{run.evaluation['mean_return']:.2f}"
    assert repr(run) == f"Finished(folder={str(run.folder)!r}, status='finished', mean_return={mean})"
    assert shown(run).startswith("<pre>finished: ")
    assert re.fullmatch(r"RunMetrics\(\d+ rows, \d+ columns\)", repr(run.metrics))
    assert "<td>env_steps</td>" in shown(run.metrics)
    assert re.search(r"<td>finished</td><td>\d+ entries</td>", shown(run.metrics))  # not each episode
    assert run.metrics == dict(run.metrics)


def test_compare_takes_lists_of_runs(runs, tmp_path):
    result = drl.compare({"a": runs[:2], "b": runs[2]}, out=[tmp_path / "x.json", tmp_path / "x.png"])
    assert [(label, each.scores.shape) for label, each in result.contestants.items()] == [("a", (2, 1)), ("b", (1, 1))]
    assert result.written == (tmp_path / "x.json", tmp_path / "x.png")
    assert json.loads((tmp_path / "x.json").read_text())["envs"] == result.envs == ["CartPole-v1"]
    assert "<th>IQM</th>" in shown(result)
    assert "data:image/png" in shown(result)
    assert repr(result) == f"Comparison(algorithms=['a', 'b'], envs=['CartPole-v1'], winners={result.winners})"
    assert list(drl.compare([runs[:2], runs[2]], labels=("x", "y")).contestants) == ["x", "y"]
    assert list(drl.compare([runs]).contestants) == ["first"]
    with pytest.raises(drl.BadInput, match="need different names"):
        drl.compare([runs[:2], runs[1:]])
    with pytest.raises(drl.BadInput, match="labels has 1 names for 2 entries"):
        drl.compare([runs[:2], runs[2]], labels=("x",))


def test_plot_and_report_take_several_runs(runs, tmp_path):
    plots = drl.plot(runs, metric="return", out=tmp_path / "all.svg", labels=("a", "b", "c"))
    assert plots.paths == (tmp_path / "all.svg",)
    assert "data:image/svg" in shown(plots)
    pages = [drl.report(given, out=tmp_path / "a.html") for given in (runs, runs[0].folder.parent)]
    assert set(pages[0].runs) == set(pages[1].runs) == {run.folder for run in runs}


def test_doctor_takes_objects():
    import gymnasium as gym

    class Still(gym.Wrapper):
        def step(self, action):
            return *self.env.step(action)[:1], float("nan"), False, False, {}

    assert "nan-reward" in drl.doctor(lambda: Still(gym.make("CartPole-v1")), steps=100).names()
    assert drl.doctor("FrozenLake-v1", env_kwargs={"is_slippery": False}, steps=300).problems == 0
    with pytest.raises(drl.BadInput, match="there is no folder nowhere"):
        drl.doctor(Path("nowhere"))


def test_an_agent_in_memory_is_exported_converted_and_pushed(hub, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert drl.export(run.agent, "c", out="a.c").path.read_text().startswith("/*")
    converted = drl.convert(run.agent, "torch", out="there")
    assert (converted.engine, converted.written_by, converted.rows) == ("torch", "torch", 1000)
    assert drl.push(run.agent, "me/agent").url == f"{hub.endpoint}/me/agent"
    for folder in (run, converted.path, drl.pull("me/agent").folder):
        assert drl.load_agent(folder).obs_spec == run.agent.obs_spec
    with pytest.raises(drl.BadInput, match="out="):
        drl.export(run.agent, "c")
    with pytest.raises(drl.BadInput, match="expected an agent"):
        drl.export(5, "c", out="x.c")


def test_a_server_runs_until_it_is_closed(run, capsys):
    with drl.serve(run, port=0, engine="numpy") as server:
        body = json.dumps({"obs": [0.0, 0.0, 0.0, 0.0]}).encode()
        request = urllib.request.Request(f"{server.url}/act", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["action"] in (0, 1)
        assert f'href="{server.url}"' in shown(server)
        assert str(server).startswith(f"serving {run.folder} at {server.url}\n")
    with drl.board(run.folder.parent, port=0) as board:
        with urllib.request.urlopen(f"{board.url}runs.json", timeout=10) as answer:
            assert len(json.load(answer)["runs"]) == 3
        assert str(board) == f"board of {run.folder.parent}: {board.url} (Ctrl-C ends it)"
    assert "closed" in repr(server)
    server.close()  # a second time does no harm
    assert not [thread for thread in threading.enumerate() if thread.name in ("drl serve", "drl board")]
    assert capsys.readouterr() == ("", "")


def test_list_is_data():
    offers = drl.list()
    assert list(offers.algorithms) == list(ALGORITHMS)
    assert ("ppo", "CartPole-v1") in {(preset.algorithm, preset.env) for preset in offers.presets}
    assert offers.envs["CartPole-v1"] is None
    assert drl.list("envs").algorithms == {}
    assert drl.list("envs", all=True).envs.keys() >= offers.envs.keys()


@pytest.mark.parametrize(
    "call",
    [
        lambda run: drl.serve(run, port="8000"),
        lambda run: drl.serve(run, batch_window="1"),
        lambda run: drl.board(run.folder, port=True),
        lambda run: drl.doctor(run, steps="many"),
        lambda run: drl.evaluate(run, episodes=2.5),
        lambda run: drl.ablate("dqn", workers="2"),
        lambda run: drl.reproduce("ppo/CartPole-v1", seeds=1.5),
        lambda run: drl.resume(5),
        lambda run: drl.report([5]),
        lambda run: drl.report(""),
    ],
)
def test_a_value_of_another_type_is_bad_input(run, call):
    with pytest.raises(drl.BadInput, match="expected"):
        call(run)


def test_markup_in_names_is_escaped():
    page = drl.Diagnosis("<b>x", {"<i>": 1.0}, (drl.Finding("a", PROBLEM, "<script>", "<img>"),))._repr_html_()
    assert not re.search(r"<(i|script|img)>|<b>x", page)
