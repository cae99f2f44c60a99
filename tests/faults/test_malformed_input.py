"""Malformed command lines, settings and YAML: exit 2, one line that names the setting, nothing written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fault_cases import LONG, some

from drl.algorithms import ALGORITHMS
from drl.cli import flat
from drl.cli.entry import main
from drl.search import run_search

KIND = "malformed input"
ROOT = Path(__file__).parents[2]
HUGE = "100000000000"
ENVS = {"ddpg", "td3", "sac", "tqc", "crossq", "normalized_sac"}  # with continuous actions only

# The flags of every algorithm's run, by the kind of value they take.
COUNTS = ["num-envs", "window", "evaluation-episodes", "threads", "num-seeds"]
COUNTS += ["total-timesteps", "num-episodes"]
NOT_NEGATIVE = [
    "frame-stack",
    "seed",
    "best-after",
    "keep-checkpoints",
    "num-checkpoints",
    "evaluate-every",
    "checkpoint-every",
]
RATES = ["gamma", "learning-rate", "max-minutes", "stop-at-return", "checkpoint-minutes"]
WORDS = ["engine", "vectorization", "compile", "device", "backbone", "activation", "env", "name", "results-dir"]
SIZES = [*COUNTS[:5], "frame-stack", "keep-checkpoints", "num-checkpoints"]
CONTROL = ["a\nb", "\x1b[2J", "\x00", "\udc80", "x" * 5000]


def lines_of_train():
    yield from (["train", "ppo", f"--{name}", bad] for name in COUNTS for bad in ("0", "-1", "2.5", "many", "", "nan"))
    yield from (["train", "ppo", f"--{name}", bad] for name in NOT_NEGATIVE for bad in ("-1", "1.5", "x", "inf"))
    yield from (["train", "ppo", f"--{name}", bad] for name in RATES for bad in ("nan", "inf", "-inf", "fast", ""))
    yield from (["train", "ppo", f"--{name}", ""] for name in WORDS)
    yield from (["train", "ppo", f"--{name}", bad] for name in ("env", "name", "results-dir") for bad in CONTROL)
    yield from (["train", "ppo", f"--{name}"] for name in (*COUNTS, *RATES, "env", "config"))  # the value is missing
    yield from (["train", "ppo", f"--{name}", "9" * 400] for name in (*COUNTS, *NOT_NEGATIVE))
    yield ["train", "ppo", "--seed", "9" * 5000]
    yield ["train", "ppo", "--num-envs", "²"]
    yield ["train", "ppo", "--nüm-envs", "2"]
    yield ["train", "ppo", "--num-envz", "2"]
    yield ["train", "ppo", "stray"]
    yield from (["train", "ppo", "--env", bad] for bad in ("x" * 300, "**", "[a", "../x", "CartPole-v1:"))
    yield ["train", "ppo", "--plugins", "no_such_module"]
    yield ["train", "ppo", "--plugins", ""]
    yield ["train", "ppo", "--env-kwargs", "gravity"]
    yield ["train", "ppo", "--env-kwargs", "gravity=["]
    yield ["train", "ppo", "--config", ""]
    yield ["train", "ppo", "--config", "/dev/zero"]
    yield ["train", "ppo", "--results-dir", "/dev/null/x"]
    yield ["train", ""]
    yield ["train", "\x1b"]


def sizes():
    """What cannot fit, in every algorithm. None of these may be allocated."""
    yield from (["train", "ppo", f"--{name}", HUGE] for name in SIZES)
    yield ["train", "ppo", "--num-envs", "1e11"]
    yield ["train", "ppo", "--vectorization", "async", "--num-envs", "2000"]
    yield ["train", "ppo", "--rollout-length", "10000000", "--num-envs", "10000"]
    yield ["train", "ppo", "--recurrent", "gru", "--recurrent-size", "60000"]
    yield ["train", "dqn", "--capacity", HUGE]
    yield ["train", "dqn", "--capacity", "1e14"]
    yield ["train", "dqn", "--batch-size", HUGE, "--capacity", HUGE]
    yield ["train", "dqn", "--n-step", HUGE]
    yield ["train", "dqn", "--distributional", "c51", "--num-atoms", HUGE]
    yield ["train", "ppo", "--engine", "jax", "--rollout-length", "1000000", "--num-envs", "100000"]
    yield ["train", "dqn", "--engine", "jax", "--capacity", HUGE]
    for name in ALGORITHMS:
        env = ["--env", "Pendulum-v1"] if name in ENVS else []
        yield ["train", name, *env, "--hidden-sizes", HUGE]
        yield ["train", name, *env, "--hidden-sizes", "65536", "65536", "65536"]
        if name in ENVS:
            yield ["train", name, *env, "--capacity", HUGE]
            yield ["train", name, *env, "--num-critics", HUGE]
            yield ["train", name, *env, "--critic-hidden-sizes", HUGE]
    yield ["search", "ppo", "--n-jobs", HUGE]
    yield ["evaluate", "run", "--episodes", HUGE]
    yield ["ablate", "dqn", "--workers", HUGE]


def lines_of_other_commands():
    yield from ([word] for word in ("", "trian", "--bad", "\x1b[2J", "é", "x" * 5000))
    for command in ("resume", "fork", "evaluate", "plot", "report", "board", "compare", "doctor"):
        yield from ([command, run] for run in ("", "nowhere", "/dev/null", "a\x00b", "\udc80"))
        yield [command, "nowhere", "--bad"]
    yield from (["evaluate", "nowhere", "--trust", "--trust"], ["resume", "nowhere", "--trust", "--trust"])
    yield from (["resume"], ["fork"], ["evaluate"], ["plot"], ["convert"], ["convert", "nowhere"])
    yield from (["export"], ["serve"], ["serve", "nowhere"], ["export", "nowhere", "--to", "onnx"])
    yield from (["fork", "nowhere", "--at", bad] for bad in ("x", "1.5", "", "9" * 5000))
    yield from (["fork", "nowhere", "--set", bad] for bad in ("x", "=1", "x=[", ""))
    yield ["fork", "nowhere", "--set", "a=1", "--set", "b=2"]
    yield from (["evaluate", "nowhere", "--episodes", bad] for bad in ("0", "-1", "x", "1.5", "9" * 400))
    yield from (["evaluate", "nowhere", "--temperature", bad] for bad in ("nan", "inf", "0", "-1", "hot", "2"))
    yield from (["evaluate", "nowhere", "--seed", bad] for bad in ("-1", "x", "9" * 400))
    yield from (["convert", "nowhere", "--engine", bad] for bad in ("", "tf", "jax", "\x1b"))
    yield from (["plot", "nowhere", "--out"], ["plot", "--out", "x.png"])
    yield from (["report"], ["report", "nowhere", "--out"], ["report", ".", "--out", "x.png"])
    yield from (["board", ".", "--port", bad] for bad in ("-1", "x", "65536"))
    yield ["board", ".", "--host", "no such host"]
    yield from (["list", bad] for bad in ("", "preset", "--bad", "\x1b"))
    yield from (["reproduce", bad] for bad in ("", "ppo", "ppo/", "\x1b[2J", "ppo/ALE/*", "--all"))
    yield from (["reproduce", "ppo/CartPole-v1", "--seeds", bad] for bad in ("0", "-1", "x", "1.5", HUGE))
    yield from (["reproduce", "--all", "--minutes", bad] for bad in ("0", "-1", "nan", "inf", "x"))
    yield from (["ablate", *words] for words in ([""], ["ppo"], ["zz"], ["dqn", "--env", ""]))
    for flag in ("--seeds", "--workers", "--episodes"):
        yield from (["ablate", "dqn", flag, bad] for bad in ("0", "-1", "²", "1.5", "", "9" * 5000, HUGE))
    yield from (["search", *words] for words in ([""], ["zz"], ["ppo", "--env", ""], ["ppo", "--config", ""]))
    for flag in ("--n-trials", "--n-jobs", "--reports", "--evaluation-episodes", "--rerun-seeds", "--seed"):
        yield from (["search", "ppo", flag, bad] for bad in ("-1", "1.5", "x", "9" * 400))
    yield from (["search", "ppo", "--trial-timeout", bad] for bad in ("nan", "0", "-1", "long"))
    yield from (["search", "ppo", "--storage", bad] for bad in ("", "x.txt", "what://me", "/dev/null/x.db"))
    yield from (["search", "ppo", "--name", bad] for bad in ("", "a/b", "..", "a\x00b", "x" * 300))
    yield from (["search", "ppo", flag, ""] for flag in ("--mode", "--pruner", "--results-dir"))


def lines_of_main_py():
    whole = [
        "num_episodes",
        "batch_size",
        "n_steps",
        "capacity",
        "hidden",
        "reward_window",
        "num_atoms",
        "eval_episodes",
    ]
    for name in whole:
        yield from ([f"--{name}", bad] for bad in ("0", "-1", "1.5", "x", "", "9" * 400))
    yield from ([f"--{name}", bad] for name in ("lr", "gamma", "tau", "eps_start") for bad in ("nan", "inf", "-1", "x"))
    yield from ([f"--{name}", HUGE] for name in ("hidden", "reward_window", "capacity", "n_steps", "eval_episodes"))
    yield from (["--bad"], ["stray"], ["--env_name", ""], ["--results_dir", ""], ["--seed"])
    yield from (["--evaluate"], ["--evaluate", "--search"], ["--evaluate", "--load_model_path", "a\x00b"])
    yield from (["--search", "--n_trials", bad] for bad in ("0", "-3", "x", HUGE))


YAML = {
    "not a mapping": "[1, 2]",
    "a text": "hello",
    "a number as a name": "1: 2",
    "twice": "seed: 1\nnum_envs: 2\nseed: 3",
    "twice, nested": "env_kwargs: [{a: 1, a: 2}]",
    "unfinished": "seed: [1",
    "tabs": "seed:\t\t- 1\n\t- 2",
    "an object": "seed: !!python/object/apply:os.system ['true']",
    "an alias": "seed: &a [*a]",
    "binary": "\x00\x01\x02",
    "deep": "seed: " + "[" * 5000,
    "unknown": "sede: 1",
    "a mapping for a number": "seed: {a: 1}",
    "a list for a number": "num_envs: [1]",
    "a number for a list": "hidden_sizes: 64",
    "texts in a list": "hidden_sizes: [a, b]",
    "a list in a list": "hidden_sizes: [[64]]",
    "a switch for a number": "num_envs: true",
    "a number for a switch": "quiet: 3",
    "a text for a switch": "quiet: maybe",
    "nothing for a number": "num_envs:",
    "not a whole number": "num_envs: 1.5",
    "not a number": "gamma: .nan",
    "infinite": "learning_rate: .inf",
    "negative": "num_envs: -1",
    "too large": f"num_envs: {HUGE}",
    "huge": "num_envs: " + "9" * 400,
    "huge, in base 16": "seed: 0x" + "f" * 5000,
    "huge, as a text": "name: 0x" + "f" * 5000,
    "a number as an environment": "env: 3",
    "an empty environment": "env: ''",
    "a zero byte": 'name: "a\\0b"',
    "an escape": 'results_dir: "a\\e[2J"',
    "another algorithm": "algorithm: dqn",
    "a list as an algorithm": "algorithm: [ppo]",
    "plugins": "plugins: [os]",
    "plugins of another type": "plugins: 3",
    "plugins that are no names": "plugins: [[1]]",
    "both budgets": "total_timesteps: 5\nnum_episodes: 5",
    "two documents": "seed: 1\n---\nseed: 2",
    "a date": "seed: 2001-01-01",
}


FITTING = {("another algorithm", "ablate")}


def names_a_setting(line, words):
    """The message repeats what was typed: the flag, its setting or its value."""
    flags = [word.lstrip("-").partition("=")[0] for word in words if word.startswith("--")]
    parts = [part.rstrip("s") for flag in flags for part in re.split("[-_]", flag)]
    values = [repr(word)[1:-1][:20] for word in words]
    nameless = "" in words and not flags  # nothing was typed that could be repeated
    return nameless or any(name in line for name in [*parts, *values] if len(name) > 1)


def assert_refused(run, words, folder, capsys, named=()):
    code = run(words)
    shown = capsys.readouterr()
    assert code == 2, f"{words}: exit {code}: {shown.out[-300:]}{shown.err}"
    lines = shown.err.splitlines()
    usage = len(words) == 1 and not lines  # a command without anything explains itself
    assert usage or len(lines) == 1, f"{words}: {shown.err}"
    assert usage or lines[0].isprintable(), words
    assert usage or names_a_setting(lines[0], [*words, *named]) or len(words) == 1, f"{words}: {lines[0]}"
    assert usage or len(lines[0]) <= 1100, words
    assert list(folder.iterdir()) == [], f"{words} wrote {list(folder.iterdir())}"


@pytest.fixture
def nothing_runs(monkeypatch):
    """A malformed command that is accepted must not train for hours here."""

    def accepted(*_):
        raise AssertionError("the command was accepted")

    monkeypatch.setattr("drl.runs.launch.drive", accepted)
    monkeypatch.setattr(run_search._Work, "run_trials", accepted)


@pytest.mark.parametrize(
    ("lines", "few"),
    [(lines_of_train, 12), (sizes, 8), (lines_of_other_commands, 16)],
    ids=["train", "sizes", "others"],
)
def test_a_malformed_command_is_refused_in_one_line(lines, few, nothing_runs, tmp_path, monkeypatch, capsys, tally):
    monkeypatch.chdir(tmp_path)
    chosen = some(list(lines()), few)
    for words in chosen:
        assert_refused(main, words, tmp_path, capsys)
    tally(KIND, len(chosen))


def test_a_malformed_flat_command_is_refused_in_one_line(nothing_runs, tmp_path, monkeypatch, capsys, tally):
    monkeypatch.chdir(tmp_path)
    chosen = some(list(lines_of_main_py()), 10)
    for words in chosen:
        assert_refused(flat.main, ["--wandb_disable", *words], tmp_path, capsys)
    tally(KIND, len(chosen))


def test_malformed_yaml_is_refused_in_one_line(nothing_runs, tmp_path, monkeypatch, capsys, tally):
    empty, file = tmp_path / "empty", tmp_path / "settings.yaml"
    empty.mkdir()
    monkeypatch.chdir(empty)
    chosen = some(list(YAML), 12)
    for name in chosen:
        file.write_text(YAML[name])
        for command in (["train", "ppo"], ["search", "ppo"], ["ablate", "dqn"])[: 3 if LONG else 1]:
            if (name, command[0]) in FITTING:
                continue
            words = [*command, "--config", str(file)]
            assert_refused(main, words, empty, capsys, re.findall(r"^(\w+):", YAML[name], re.M))
            tally(KIND)


ASCII = {"PYTHONIOENCODING": "ascii"}
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
TINY = ["--total-timesteps", "64", "--num-envs", "2", "--rollout-length", "16", "--no-video"]
SEARCH = ["--env", "drl/Match-v0", "--n-trials", "1", "--num-timesteps-per-trial", "2000", "--reports", "1"]


@pytest.mark.full
@pytest.mark.parametrize("environment", some([C_LOCALE, ASCII], 1), ids=lambda x: next(iter(x)))
def test_a_terminal_without_unicode_is_served(environment, tmp_path, tally):
    """Every command prints, with question marks where a character is not in the terminal's alphabet."""
    code = "import sys; from drl.cli.entry import main; sys.exit(main(sys.argv[1:]))"
    panel = "import sys; sys.stdout.isatty = lambda: True; " + code  # the live panel
    commands = [
        (panel, ["train", "ppo", *TINY, "--name", "run"]),
        (code, ["train", "ppo", "--env", "Cärt"]),
        (code, ["train", "ppo", "--help"]),
        (code, ["evaluate", "results/run", "--episodes", "2"]),
        (code, ["evaluate", "results/run", "--episodes", "1", "--step-by-step"]),
        (code, ["plot", "results/run"]),
        (code, ["resume", "results/run"]),
        (code, ["fork", "results/run", "--set", "total_timesteps=96"]),
        (code, ["convert", "results/run", "--engine", "jax"]),
        (code, ["search", "ppo", *SEARCH]),
        (code, ["list"]),
        (code, ["--help"]),
    ]
    for program, words in commands if LONG else [commands[0], commands[1]]:
        words = [word.encode("utf-8", "surrogateescape") for word in words]
        ended = subprocess.run(
            [sys.executable.encode(), b"-c", program.encode(), *words],
            cwd=tmp_path,
            capture_output=True,
            env=os.environ | environment | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"},
            timeout=120,
        )
        wrong = "Cärt".encode() in words
        assert ended.returncode == (2 if wrong else 0), (words, ended.stdout[-500:], ended.stderr[-2000:])
        assert b"Traceback" not in ended.stderr, words
        assert (ended.stdout + ended.stderr).isascii(), words
        tally(KIND)
