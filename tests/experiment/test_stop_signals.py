from dataclasses import replace
from pathlib import Path

import pytest

import drl
from drl.cli.entry import main
from drl.runs import stop_signals
from drl.runs.folder.finished import resume_line
from drl.runs.launch import train
from drl.settings.experiment import Experiment

LEAN = {"quiet": True, "plots": False, "video": False, "tensorboard": False, "compile": "off", "evaluate_every": 0}
SMALL = {
    "num_envs": 1,
    "vectorization": "sync",
    "rollout_length": 16,
    "minibatches": 1,
    "hidden_sizes": [8],
    "total_timesteps": 3200,
}


@pytest.mark.parametrize("signals", [1, 2])
def test_one_signal_ends_a_run_after_the_step_and_a_second_one_at_once(signals, tmp_path, monkeypatch):
    monkeypatch.setattr(stop_signals, "PATIENCE", 60.0)
    env = {"env": "tests.experiment.signalling_env:Signalling-v0", "env_kwargs": [f"signals={signals}"]}
    settings = {"algorithm": "ppo", "results_dir": str(tmp_path)} | LEAN | SMALL | env
    finished = train(Experiment.from_flat(settings, "test"), console=False)
    assert finished.status == "interrupted"
    assert finished.log.env_steps == 32  # the third rollout was not finished


FLAGS = [f"--{name.replace('_', '-')}={str(value).strip('[]')}" for name, value in SMALL.items()]
ENV = "tests.experiment.signalling_env:Signalling-v0"


def test_a_stopped_run_prints_the_command_that_resumes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    monkeypatch.chdir(tmp_path)
    quiet = ["--quiet", "--no-plots", "--no-video", "--no-tensorboard", "--evaluate-every", "0", "--name", "my run"]
    assert main(["train", "ppo", "--no-preset", "--env", ENV, *FLAGS, *quiet]) == 130
    (run,) = Path("results/my run").iterdir()
    assert capsys.readouterr().out.splitlines()[-1] == f"resume: drl resume '{run}'"
    assert main(["resume", str(run)]) == 130  # as typed
    assert capsys.readouterr().out.splitlines()[-1] == f"resume: drl resume '{run}'"
    assert main(["fork", str(run), "--set", "name=forked"]) == 130
    (fork,) = Path("results/forked").iterdir()
    assert capsys.readouterr().out.splitlines()[-1] == f"resume: drl resume {fork}"


def test_a_stopped_call_prints_the_call_that_resumes_it(tmp_path, capsys):
    settings = LEAN | SMALL | {"env": ENV, "results_dir": str(tmp_path), "preset": False}
    for console in (False, True):
        run = drl.train("ppo", console=console, **settings)
        expected = f'resume: drl.resume("{run.folder}")' if console else ""
        assert capsys.readouterr().out.rpartition("\n")[0].rpartition("\n")[2] == expected
    drl.resume(run.folder)
    assert capsys.readouterr().out.splitlines()[-1] == expected


def test_the_word_is_part_of_the_command_where_it_is_needed(tmp_path, monkeypatch):
    settings = LEAN | SMALL | {"env": ENV, "results_dir": str(tmp_path)}
    run = train(Experiment.from_flat(settings, "test"), console=False)
    assert resume_line([run], trust=True) == f"resume: drl resume {run.folder}"
    assert resume_line([replace(run, status="finished")]) == ""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert resume_line([run], trust=True) == f"resume: drl resume {run.folder} --trust"
    assert resume_line([run], trust=True, python=True) == f'resume: drl.resume("{run.folder}", trust=True)'
