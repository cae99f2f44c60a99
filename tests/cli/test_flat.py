"""`main.py`: the flat command line as documented."""

import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

from drl.agents.load_agent import read_pth
from drl.cli.flat import Flags, experiment_of, main, make_parser, train_command
from drl.core.log import Log
from drl.core.state_files import write_pth
from drl.envs.atari import AtariOptions
from drl.runs.folder.run_folder import Run
from drl.runs.folder.run_writer import BestModelCopy
from drl.runs.launch import resume
from tests.commands import run_here, run_process

ROOT = Path(__file__).parents[2]
SMALL = ["--num_episodes", "12", "--batch_size", "16", "--best_after", "5", "--wandb_disable", "--quiet"]


flat = partial(run_here, main)


def flat_process(*arguments, cwd, code=0):
    return run_process([sys.executable, str(ROOT / "main.py"), *arguments], cwd, code)


def settings(*arguments):
    return experiment_of(Flags(**make_parser().parse(arguments)))


def test_defaults_are_the_documented_ones():
    experiment = settings()
    run, model, learner = experiment.run, experiment.model, experiment.learner
    replay, exploration = experiment.buffer, experiment.exploration
    assert (run.env, run.num_episodes, run.seed, run.quiet, run.window, run.best_after) == (
        "CartPole-v1", 2000, 42, False, 100, 100,
    )  # fmt: skip
    assert (learner.learning_rate, learner.gamma, replay.batch_size, learner.tau) == (1e-4, 0.99, 128, 0.005)
    assert (exploration.epsilon_start, exploration.epsilon_end, exploration.epsilon_decay) == (0.9, 0.05, 1000)
    assert (replay.n_step, replay.capacity, learner.max_grad_value, learner.max_grad_norm) == (1, 100_000, 100, None)
    per = (replay.priority_alpha, replay.priority_beta, replay.priority_beta_step, replay.priority_eps)
    assert per == (0.6, 0.4, 0.001, 0.01)
    assert (learner.optimizer, learner.amsgrad, exploration.epsilon_schedule) == ("adamw", True, "exponential")
    assert (model.hidden_sizes, model.cnn_features, model.num_atoms, model.v_min, model.v_max) == (
        (128, 128),
        512,
        51,
        -10,
        10,
    )
    assert not any((model.dueling, model.noisy, learner.double, replay.prioritized, model.distributional != "none"))
    assert run.wandb_project == "drl-pbl-lecture"


def test_atari_has_its_own_decay_and_screen():
    experiment = settings("--env_name", "ALE/Pong-v5")
    assert experiment.exploration.epsilon_decay == 1_000_000
    assert experiment.run.frame_stack == 4
    assert experiment.run.env_config.env_kwargs == {"screen_size": 84, "noop_max": 30, "frame_skip": 1}
    assert settings("--env_name", "ALE/Pong-v5", "--eps_decay", "5").exploration.epsilon_decay == 5


@pytest.mark.parametrize(
    ("flags", "clipped"), [((), True), (("--clip_rewards",), True), (("--no_clip_rewards",), False)]
)
def test_atari_rewards_are_sign_clipped_unless_a_flag_says_otherwise(flags, clipped):
    env_kwargs = settings("--env_name", "ALE/Pong-v5", *flags).run.env_config.env_kwargs
    assert AtariOptions(**env_kwargs).clip_reward == clipped


def test_every_documented_command_parses():
    """The commands of the README's section on main.py, as they stand."""
    text = (ROOT / "docs" / "flat_command_line.md").read_text()
    commands = re.findall(r"^python main\.py(.*)$", text, re.MULTILINE)
    assert len(commands) >= 22
    for command in commands:
        words = [word.strip('"') for word in command.split()]
        settings(*words)


def test_best_models_are_files_and_follow_the_run(tmp_path):
    """A copy of `results/models/` alone can be evaluated; a better model replaces the file, also in a resumed run."""
    log = Log(8, 1, 1)
    run = Run.create("Env_dqn", {}, tmp_path / "results")
    copy = BestModelCopy(run)
    copy.write(log)
    assert not copy.path.exists()
    for weight in (1.0, 2.0):
        write_pth(run.models / "best_return_pi_ckpt.pth", {"weight": np.full(3, weight, np.float32)})
        copy.write(log)
        assert copy.path == tmp_path / "results" / "models" / f"best_model_Env_dqn_{run.folder.name}.pth"
        assert not copy.path.is_symlink()
        assert read_pth(copy.path)["weight"][0] == weight  # after checking its checksum
    inode = copy.path.stat().st_ino
    copy.write(log)
    assert copy.path.stat().st_ino == inode  # not written again


@pytest.mark.parametrize("made", [True, False])
def test_a_resumed_run_updates_the_file_that_main_made(tmp_path, made):
    flags = ("--num_episodes", "3", "--batch_size", "8", "--best_after", "0", "--wandb_disable", "--quiet")
    run = Run.create("Env_dqn", settings(*flags).to_flat() | {"video": False, "plots": False}, tmp_path)
    best = BestModelCopy(run).path
    best.parent.mkdir()
    if made:
        best.write_bytes(b"old")
    run.close()
    resume(run.folder, console=False)
    assert best.exists() == made
    if made:
        assert best.read_bytes() == (run.models / "best_return_pi_ckpt.pth").read_bytes()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flat")
    result = flat_process("--use_dueling", "--use_distributional", "--use_noisy", *SMALL, cwd=folder)
    return folder, re.search(r"best model: (\S+)", result.stdout).group(1)


@pytest.mark.full
def test_training_says_where_the_best_model_is_and_it_can_be_watched(trained):
    folder, best = trained
    assert not (folder / best).is_symlink()
    switches = ("--use_dueling", "--use_distributional", "--use_noisy")
    shown = flat("--evaluate", "--load_model_path", best, *switches, "--eval_episodes", "2", cwd=folder).stdout
    for word in ("episode 2 of 2", "q [", "action", "reward 1", "mean return"):
        assert word in shown


def test_the_wrong_switches_are_named(trained):
    folder, best = trained
    message = flat("--evaluate", "--load_model_path", best, "--use_dueling", cwd=folder, code=2).stderr
    assert "trained with --use_dueling --use_noisy --use_distributional" in message
    switches = ("--use_dueling", "--use_distributional", "--use_noisy")
    message = flat("--evaluate", "--load_model_path", best, *switches, "--num_atoms", "11", cwd=folder, code=2).stderr
    assert "was trained with --num_atoms 51; leave out --num_atoms" in message
    message = flat(
        "--evaluate", "--load_model_path", best, *switches, "--env_name", "Acrobot-v1", cwd=folder, code=2
    ).stderr
    assert "actions" in message


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--use_doubel",), "--use_doubel"),
        (("--lr", "fast"), "--lr"),
        (("--lr", "-1"), "learning_rate is -1.0"),
        (("--evaluate",), "--load_model_path"),
        (("--evaluate", "--load_model_path", "nowhere.pth"), "does not exist"),
        (("--load_model_path", "x.pth"), "--evaluate"),
        (("--evaluate", "--search"), "both given"),
        (("--env_name", "CartPol-v1"), "did you mean 'CartPole-v1'"),
        (("--env_name", "Pendulum-v1"), "takes discrete actions"),
        (("--clip_rewards",), "--clip_rewards is for Atari (ALE/…) and --env_name is CartPole-v1"),
        (("--no_clip_rewards",), "--no_clip_rewards is for Atari"),
    ],
)
def test_wrong_input_is_one_message_and_exit_2(tmp_path, arguments, hint):
    assert hint in flat(*arguments, cwd=tmp_path, code=2).stderr
    assert list(tmp_path.iterdir()) == []


def test_movie_rec_is_watched_in_its_own_words(tmp_path):
    result = flat("--env_name", "MovieRec-v1", "--use_double", *SMALL, cwd=tmp_path)
    best = re.search(r"best model: (\S+)", result.stdout).group(1)
    flags = ("--evaluate", "--load_model_path", best, "--env_name", "MovieRec-v1", "--eval_episodes", "1")
    shown = flat(*flags, cwd=tmp_path).stdout
    lines = [line for line in shown.splitlines() if line.startswith("step")]
    assert len(lines) == int(re.search(r"after (\d+) steps", shown).group(1))  # one line a step
    for word in ("movie", "click", "fatigue", "reward", "q "):
        assert all(word in line for line in lines if "churned" not in line or word != "click")


@pytest.mark.full
def test_search_writes_a_preset(tmp_path):
    arguments = ("--search", "--n_trials", "2", "--num_episodes_per_trial", "4", "--batch_size", "16", "--quiet")
    flat(*arguments, cwd=tmp_path)
    text = next(tmp_path.rglob("best.yaml")).read_text()
    assert text.startswith(f"# Found by python main.py {' '.join(arguments)}: trial ")
    train = re.search(r"^# Train with: python main\.py (.*)$", text, re.MULTILINE).group(1)
    again, best = settings(*train.split()).to_flat(), yaml.safe_load(text)
    assert best.keys() >= {"learning_rate", "gamma", "tau", "batch_size"}
    assert {name: again[name] for name in best} == best


def test_the_command_that_trains_with_what_all_flags_found():
    words = ["--search", "--search_mode", "all", "--use_noisy", "--env_name", "ALE/Pong-v5", "--no_clip_rewards"]
    found = {"noisy": False, "double": True, "distributional": "c51", "hidden_sizes": [64, 64], "n_step": 3}
    assert train_command(Flags(**make_parser().parse(words)), found | {"cnn_features": 256}) == (
        "python main.py --env_name ALE/Pong-v5 --n_steps 3 --hidden 64 --cnn_features 256 --use_double "
        "--use_distributional --no_clip_rewards"
    )
