"""`drl completion`: what a shell offers after the words that were typed."""

import re
import shutil
import subprocess
import sys

import pytest

from drl.algorithms import ALGORITHMS
from drl.cli import completion
from drl.cli.entry import COMMANDS, main
from drl.core.errors import BadInput
from drl.settings.experiment import Experiment


@pytest.fixture(scope="module")
def scripts():
    """Shell → script, printed by processes that must not load a framework."""
    code = "import sys; from drl.cli.entry import main; main(['completion', sys.argv[1]]); "
    code += "assert not {'torch', 'jax'} & set(sys.modules)"
    command = [sys.executable, "-c", code]
    return {
        shell: subprocess.run([*command, shell], check=True, capture_output=True, text=True).stdout
        for shell in completion.SHELLS
    }


def offered(script, *words):
    """What bash offers for the last of the words."""
    ask = 'COMP_WORDS=(drl "$@"); COMP_CWORD=$#; _drl; printf "%s\\n" "${COMPREPLY[@]}"'
    said = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}", "bash", *words], check=True, capture_output=True, text=True
    )
    return said.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("tr",), ["train"]),
        (("train", "cross"), ["crossq"]),
        (("train", "ppo", "--clip"), ["--clip-range", "--clip-range-end", "--clip-range-schedule"]),
        (("train", "dqn", "--clip"), []),
        (("train", "ppo", "--no-tens"), ["--no-tensorboard"]),
        (("train", "ppo", "--seed", "3", "--mlf"), ["--mlflow-experiment"]),
        (("train", "ppo", "--env", "CartPole-"), ["CartPole-v0", "CartPole-v1"]),
        (("train", "ppo", "--env", "drl/Bit"), ["drl/BitFlip-v0"]),
        (("train", "ppo", "--engine", ""), ["torch", "jax"]),
        (("ablate", "p"), []),
        (("ablate", "dqn", "--work"), ["--worker-timeout", "--workers"]),
        (("search", "ppo", "--n-"), ["--n-jobs", "--n-trials"]),
        (("evaluate", "--epi"), ["--episodes"]),
        (("evaluate", "results/run", "--temp"), ["--temperature"]),
        (("evaluate", "results/run", "--which", "best"), ["best", "best-evaluated"]),
        (("export", "results/run", "--to", "o"), ["onnx"]),
        (("resume", "res"), []),  # bash goes on with files
        (("list", "presets", "al"), ["algorithms"]),
        (("completion", "b"), ["bash"]),
        (("reproduce", "ppo/Cart"), ["ppo/CartPole-v1"]),
        (("compare", "results/a", "--mixed"), ["--mixed-budgets"]),
    ],
)
def test_bash_offers_what_fits(scripts, words, expected):
    assert sorted(offered(scripts["bash"], *words)) == sorted(expected)


def test_every_kind_of_export_is_offered():
    from drl.deploy.export_agent import TARGETS

    assert completion.VALUES["--to"] == tuple(TARGETS)


def test_every_command_and_algorithm_is_offered(scripts):
    assert set(offered(scripts["bash"], "")) >= set(COMMANDS)
    assert offered(scripts["bash"], "train", "") == list(ALGORITHMS)


def test_the_flags_are_those_of_the_help(capsys):
    flags = completion._flags()
    for words in ("train ppo", "train dqn", "search ppo", "ablate dqn", "evaluate", "fork", "list"):
        with pytest.raises(SystemExit):
            main([*words.split(), "--help"])
        assert set(flags[words]) == set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", capsys.readouterr().out))


def test_the_values_are_accepted():
    for flag, values in completion.SETTINGS.items():
        for value in values:
            Experiment.from_flat({flag.removeprefix("--"): value}, "test")


def test_the_other_shells_get_the_same_words(scripts):
    assert scripts["zsh"].endswith(scripts["bash"])
    lines = scripts["fish"].splitlines()
    assert [line for line in lines if "train" in line and "ppo" in line and " -l clip-range" in line]
    assert [line for line in lines if " -l env -x -a '" in line and "CartPole-v1" in line]
    assert all(line.count("'") % 2 == 0 for line in lines)


# zsh asks a function written for bash after this `emulate` and `setopt`, and keeps what begins with the last word.
ZSH = (
    "source ./script; ask() { emulate -L sh; setopt kshglob noshglob braceexpand; "
    'COMP_WORDS=(drl "$@"); COMP_CWORD=$#; _drl; printf "%s\\n" "${COMPREPLY[@]}"; }; ask '
)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tr"], ["train"]),
        (["train", "cross"], ["crossq"]),
        (["train", "ppo", "--clip"], ["--clip-range", "--clip-range-end", "--clip-range-schedule"]),
        (["train", "ppo", "--env", "CartPole-"], ["CartPole-v0", "CartPole-v1"]),
        (["list", "presets", "al"], ["algorithms"]),
    ],
)
@pytest.mark.parametrize("shell", [name for name in ("zsh", "fish") if shutil.which(name)])
def test_the_other_shells_offer_what_fits(scripts, shell, words, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "script").write_text(scripts[shell])
    typed = " ".join(words)
    asked = ["-f", "-c", ZSH + typed] if shell == "zsh" else ["-c", f"source ./script; complete -C 'drl {typed}'"]
    said = subprocess.run([shell, *asked], check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    offers = [line.partition("\t")[0] for line in said.splitlines()]  # fish adds what it is about
    assert sorted(offer for offer in offers if offer.startswith(words[-1])) == expected


@pytest.mark.parametrize("words", [["bahs"], ["bash", "zsh"]])
def test_other_words_are_refused(words, capsys):
    with pytest.raises(BadInput, match="bash"):
        completion.run_completion(words)
    assert main(["completion", *words]) == 2


def test_the_help_says_how_to_install_it(capsys):
    assert main(["completion", "--help"]) == 0
    assert "drl completion bash > ~/.local/share/bash-completion/completions/drl" in capsys.readouterr().out
