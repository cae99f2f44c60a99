"""`drl doctor` as people type it."""

import json
import re
from pathlib import Path

import pytest

from drl.cli.entry import main
from drl.cli.train import read_experiment
from tests.doctor.sabotaged_runs import HERE, PPO, train_tiny

BROKEN_ENVS = Path(__file__).parent / "broken_envs.py"
SUBTLE_ENVS = Path(__file__).parent / "subtle_envs.py"
DOCTOR = Path(__file__).parents[2] / "drl" / "doctor"


def told(capsys, *arguments, code):
    assert main(["doctor", *map(str, arguments)]) == code
    return capsys.readouterr()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """With a high epsilon, and an environment of our own module."""
    settings = PPO | {"total_timesteps": 2048, "env": f"{HERE}:MixedStrategy", "gamma": 0.1}
    return train_tiny(settings, tmp_path_factory.mktemp("command"))


def test_an_environment_of_a_file(capsys):
    said = told(capsys, f"{BROKEN_ENVS}:OldGym", code=1).out
    assert "1 problem\n" in said
    assert "problem: step-result" in said
    assert "step 1 returned 4 values" in said


def test_advice_is_no_problem(capsys):
    said = json.loads(told(capsys, f"{BROKEN_ENVS}:HugeReward", "--json", "--steps", "500", "--seed", "3", code=0).out)
    assert said["problems"] == 0
    assert [finding["name"] for finding in said["findings"]] == ["reward-scale"]
    assert "--normalize-reward" in said["findings"][0]["change"]
    assert said["numbers"]["steps"] == 500


def test_json_is_all_there_is_on_stdout(capfd):
    said = told(capfd, f"{SUBTLE_ENVS}:Prints", "--json", "--steps", "50", code=0)
    assert json.loads(said.out)["findings"] == []
    assert "a step" in said.err
    assert "another step" in said.err


def test_wrappers_and_arguments_are_examined_too(capsys):
    endless = told(capsys, f"{BROKEN_ENVS}:Endless", "--steps", "400", code=1).out
    assert "endless-episodes" in endless
    flag = re.search(r"--wrapper (\S+)", endless)[1]
    told(capsys, f"{BROKEN_ENVS}:Endless", "--wrapper", flag.replace("1000", "30"), "--steps", "400", code=0)
    said = json.loads(told(capsys, "FrozenLake-v1", "--env-kwargs", "is_slippery=false", "--json", code=0).out)
    assert said["findings"] == []
    assert said["numbers"]["mean length"] == pytest.approx(8, abs=4)


def test_a_run_of_another_account_with_modules_of_its_own_needs_trust(capsys, run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    said = told(capsys, run, "--no-picture", "--json", code=1).out
    assert "add --trust" in json.loads(said)["notes"][-1]
    assert not (run / "doctor").exists()
    said = told(capsys, run.parent, "--trust", code=1).out
    assert "problem: short-discount" in said
    assert "add --trust" not in said


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["CartPol-v1"], "did you mean 'CartPole-v1'"),
        (["CartPole-v1", "--steps", "3"], "steps is 3"),
        (["CartPole-v1", "--seed", "-1"], "seed"),
        (["CartPole-v1", "--trust"], "--trust and --no-picture are for a run"),
        (["CartPole-v1", "--no-picture"], "--trust and --no-picture are for a run"),
        (["CartPole-v1", "--wrapper", "Nothing"], "unknown wrapper 'Nothing'"),
        (["gymnax:Breakout-MinAtar"], "stepped by the JAX engine"),
        (["results/nothing"], "there is no folder results/nothing, and Gymnasium knows no environment"),
        (["."], "is not a run folder"),
        ([".", "--wrapper", "TimeLimit"], "are for an environment"),
        ([], "see `drl doctor --help`"),
    ],
)
def test_bad_input_is_one_line(capsys, tmp_path, monkeypatch, words, hint):
    monkeypatch.chdir(tmp_path)
    said = told(capsys, *words, code=2)
    assert hint in said.err
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_every_finding_is_in_the_readme():
    named = re.compile(r"""(?:Finding|ObsFault|_fatal|complaints\.add)\(\s*"([a-z-]+)\"""")
    names = {name for path in DOCTOR.glob("*.py") for name in named.findall(path.read_text())}
    assert len(names) > 50
    readme = (DOCTOR / "README.md").read_text()
    assert [name for name in sorted(names) if f"`{name}`" not in readme] == []


def flags_in(folder):
    """Every flag that the doctor's advice names."""
    text = " ".join(path.read_text() for path in folder.glob("*.py"))
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


@pytest.mark.full
def test_every_flag_of_the_advice_exists(capsys):
    """In `drl train` of some algorithm, or in `drl evaluate`, `drl replay` or `drl doctor`, which it also names."""
    known = set()
    for command in (["train", "ppo"], ["train", "dqn"], ["train", "sac"], ["evaluate"], ["replay"], ["doctor"]):
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        known |= set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    known |= {"--wrapper", "--normalize-obs", "--normalize-reward"}
    assert len(flags_in(DOCTOR)) > 20
    assert flags_in(DOCTOR) - known == set()
    read_experiment("ppo", ["--env", "CartPole-v1", "--normalize-reward", "--normalize-obs"])
