"""The fourth document: its commands, one after the other in one folder, as a person would type them."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
import torch

from drl.algorithms import ALGORITHMS
from drl.cli.flat import Flags, experiment_of, main, make_parser
from drl.runs import session

ROOT = Path(__file__).parents[2]
TRAINING = """
--env_name CartPole-v1
--env_name CartPole-v1 --use_double
--env_name CartPole-v1 --use_dueling
--env_name CartPole-v1 --use_per
--env_name CartPole-v1 --use_noisy
--env_name CartPole-v1 --use_distributional
--env_name CartPole-v1 --n_steps 3
--env_name CartPole-v1 --use_double --use_dueling
--env_name CartPole-v1 --use_per --n_steps 3
--env_name CartPole-v1 --use_double --use_dueling --use_per --use_distributional --n_steps 3
--env_name CartPole-v1 --use_double --use_dueling --use_per --use_noisy --use_distributional --n_steps 3
--env_name CartPole-v1 --lr 1e-5 --batch_size 256
--env_name CartPole-v1 --gamma 0.995 --tau 0.01
--env_name CartPole-v1 --eps_start 1.0 --eps_end 0.01 --eps_decay 2000
--env_name MovieRec-v1 --num_episodes 5000 --use_double --use_dueling
--env_name "ALE/Pong-v5" --num_episodes 20000 --use_per --n_steps 3
--env_name CartPole-v1 --seed 123
--env_name CartPole-v1 --wandb_disable
--env_name MovieRec-v1 --num_episodes 1000
"""
EVALUATION = """
--evaluate --env_name CartPole-v1 --load_model_path {plain}
--evaluate --env_name CartPole-v1 --load_model_path {dueling} --use_dueling
--evaluate --env_name CartPole-v1 --load_model_path {distributional} --use_distributional
--evaluate --env_name CartPole-v1 --load_model_path {plain} --eval_episodes 50
--evaluate --load_model_path {movies} --env_name MovieRec-v1
"""
SEARCH = """
--search --env_name CartPole-v1 --n_trials 100
--search --env_name CartPole-v1 --n_trials 200 --search_mode all
--search --env_name CartPole-v1 --n_trials 100 --num_episodes_per_trial 500
--search --env_name CartPole-v1 --n_trials 50
"""
TINY = "--num_episodes 3 --batch_size 8 --best_after 0 --quiet"
PONG = "--num_episodes 1 --batch_size 2 --best_after 0 --noop_max 1 --screen_size 36 --cnn_features 16 --quiet"


def commands(text):
    return [shlex.split(line) for line in text.strip().splitlines()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")  # W&B itself is tried in tests/tracking
    return tmp_path


@pytest.mark.full
def test_all_commands_one_after_the_other(folder, capsys, monkeypatch):
    assert len(commands(TRAINING) + commands(EVALUATION) + commands(SEARCH)) == 28
    best, evaluate = {}, session.evaluate
    monkeypatch.setattr(session, "evaluate", lambda agent, env, _, seed, **how: evaluate(agent, env, 1, seed, **how))
    for words in commands(TRAINING):
        assert main([*words, *shlex.split(PONG if "ALE/Pong-v5" in words else TINY)]) == 0
        said = capsys.readouterr().out
        monkeypatch.setattr(session, "film", lambda *_, **__: None)  # once is enough
        monkeypatch.setattr(session, "plot_run", lambda *_: [])
        path = Path(re.search(r"best model: (\S+)", said).group(1))
        assert path.parent == Path("results/models")
        assert path.is_file()
        best[" ".join(words)] = path
    files = {
        "plain": best["--env_name CartPole-v1"],
        "dueling": best["--env_name CartPole-v1 --use_dueling"],
        "distributional": best["--env_name CartPole-v1 --use_distributional"],
        "movies": best["--env_name MovieRec-v1 --num_episodes 1000"],
    }
    for words in commands(EVALUATION.format(**files)):
        assert main([*words, "--eval_episodes", "2"]) == 0
        said = capsys.readouterr().out
        assert said.count("── episode") == 2
        assert "mean return" in said
    studies = set()
    for words in commands(SEARCH):
        budget = ["--num_episodes_per_trial", "2" if "500" not in words else "3"]
        assert main([*words, "--n_trials", "1", "--batch_size", "8", "--quiet", *budget]) == 0
        capsys.readouterr()
        studies = {path.parent.name for path in folder.rglob("best.yaml")}
    # Another mode or budget is a study of its own; the last command continued the first one's.
    assert len(studies) == 3
    assert all(name.startswith("CartPole-v1_flat_search") for name in studies)


def test_the_best_model_is_there_before_the_run_ends(folder, monkeypatch):
    """A run that is killed leaves the best it had in `results/models/`."""
    seen = []
    finish = session.Session.finish
    monkeypatch.setattr(
        session.Session,
        "finish",
        lambda *a, **o: (seen.append(list(Path("results/models").iterdir())), finish(*a, **o))[1],
    )
    assert main([*shlex.split(TINY), "--wandb_disable"]) == 0
    assert len(seen[0]) == 1
    assert torch.load(seen[0][0], weights_only=True)


@pytest.mark.full
def test_budgets_end_at_the_episode(folder, capsys):
    assert main(shlex.split("--num_episodes 7 --batch_size 8 --wandb_disable --quiet")) == 0
    assert " · 7 episodes" in capsys.readouterr().out
    rows = [json.loads(line) for path in folder.rglob("metrics.jsonl") for line in path.read_text().splitlines()]
    assert sum(len(row["finished"]) for row in rows) == rows[-1]["episodes"] == 7


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ("--eval_episodes 0 --evaluate --load_model_path x.pth", 2, "--eval_episodes is 0; expected"),
        ("--eps_decay -1", 2, "epsilon_decay is -1.0; expected a number above 0"),
        ("--eps_decay 0 --num_episodes 1 --wandb_disable --quiet", 0, ""),
    ],
)
def test_zeros_are_honored_or_refused(folder, capsys, flags, code, said):
    assert main(shlex.split(flags)) == code
    assert said in capsys.readouterr().err


def test_no_decay_means_the_end_from_the_start():
    exploration = experiment_of(Flags(eps_decay=0.0, eps_end=0.2)).exploration
    assert (exploration.epsilon_start, exploration.epsilon_end) == (0.2, 0.2)


def test_a_c51_file_is_evaluated_with_its_own_support(folder, capsys):
    train = "--use_distributional --v_min 0 --v_max 50 --num_atoms 21 --wandb_disable"
    assert main(shlex.split(f"{train} {TINY}")) == 0
    path = re.search(r"best model: (\S+)", capsys.readouterr().out).group(1)
    support = torch.load(path, weights_only=True)["head.support"]
    assert (float(support[0]), float(support[-1]), len(support)) == (0.0, 50.0, 21)
    assert main(["--evaluate", "--load_model_path", path, "--use_distributional", "--eval_episodes", "1"]) == 0
    q_values = [float(x) for x in re.findall(r"q \[ ?(\d+\.?\d*)", capsys.readouterr().out)]
    assert min(q_values) > 10  # a fresh network spreads over its support, whose middle is 25; not over −10 … 10
    assert main(["--evaluate", "--load_model_path", path, "--use_distributional", "--v_max", "10"]) == 2
    assert "was trained with --v_max 50; leave out --v_max" in capsys.readouterr().err


def test_all_searches_what_the_flags_can_say():
    searched = {**ALGORITHMS["dqn"].search_base, **ALGORITHMS["dqn"].search_all}
    said = {
        "learning_rate": "--lr", "gamma": "--gamma", "tau": "--tau", "double": "--use_double",
        "dueling": "--use_dueling", "prioritized": "--use_per", "noisy": "--use_noisy",
        "distributional": "--use_distributional",
        "n_step": "--n_steps", "batch_size": "--batch_size", "width": "--hidden",
    }  # fmt: skip
    assert searched.keys() == said.keys()
    assert set(said.values()) <= set(make_parser().flags)


def test_help_shows_every_default():
    parser = make_parser()
    text = parser.format_help()
    for action in parser._actions:
        assert action.help, action.dest
    for default in ("(default: 2000)", "(default: 0.0001)", "(default: drl-pbl-lecture)", "(default: 51)"):
        assert default in re.sub(r"\s+", " ", text)


def test_movie_rec_is_registered_by_importing_drl():
    """In a new process, and without torch."""
    code = "import sys, drl, gymnasium; env = gymnasium.make('MovieRec-v1'); env.reset(); print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.strip() == "False"
    code = "import gymnasium; print(gymnasium.make('drl.envs:MovieRec-v1').spec.id)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.strip().endswith("MovieRec-v1")
    assert "MovieRec-v1" in gym.registry


def test_requirements_install_what_main_can_do():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert "-c constraints.txt" in lines
    extras = set(re.search(r"^-e \.\[(.*)\]$", "\n".join(lines), re.MULTILINE).group(1).split(","))
    assert {"atari", "search", "wandb"} <= extras
    assert "requirements.txt" in (ROOT / "docs" / "flat_command_line.md").read_text()
