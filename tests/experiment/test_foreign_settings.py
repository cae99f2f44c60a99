"""Names of Stable-Baselines3, CleanRL and RL Zoo are answered with ours, as the migration pages have them."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

import drl
from drl.algorithms import ALGORITHMS
from drl.cli.entry import main
from drl.core.errors import BadInput
from drl.search.search_plan import SearchConfig
from drl.settings.experiment import RunConfig
from drl.settings.foreign_settings import FOREIGN, explain_unknown, settings_of
from drl.settings.scaling import ScalingConfig

DOCS = Path(__file__).parents[2] / "docs"
OF_RUNS = {field.name for kind in (RunConfig, ScalingConfig) for field in fields(kind)}
ALL = OF_RUNS.union(*map(settings_of, ALGORITHMS))
NO_SETTINGS = {"check_env", "env"}  # in the tables
PAGES = {"from_stable_baselines3.md": r"([a-z]\w*)(?:=\w+|=dict\(net_arch=…\))?", "from_cleanrl.md": r"--([a-z-]+)"}


def rows_of(page):
    """Their settings and the row's text about ours, of every row of a page's last table."""
    table = (DOCS / page).read_text().rpartition("|---|---|")[2]
    for line in table.splitlines()[1:]:
        cells = line.split("|")
        if len(cells) > 2:
            words = [word for text in re.findall(r"`([^`]+)`", cells[1]) for word in text.split()]
            found = [match[1] for word in words if (match := re.fullmatch(PAGES[page], word))]
            yield [name.replace("-", "_") for name in found], " ".join(cells[2:]).replace("-", "_")


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_the_migration_pages_are_what_the_messages_say(page):
    names = 0
    for theirs, text in rows_of(page):
        for name in theirs:
            if name in NO_SETTINGS or (name in ALL and name in text):  # the same name
                continue
            assert name in FOREIGN, f"{page} has {name}, which no message answers"
            answers = [ours.setting or "always on" for ours in FOREIGN[name]]
            said = any(answer in text for answer in answers)
            assert said, f"{page} has {name} beside {text.strip()}; the message says {' or '.join(answers)}"
            names += 1
    assert names >= 20


def test_every_answer_is_a_setting():
    known = ALL | {field.name for field in fields(SearchConfig)}
    for name, answers in FOREIGN.items():
        assert {ours.setting for ours in answers} - known <= {""}, name
        assert all(ours.setting or ours.note for ours in answers)


@pytest.mark.parametrize("kind", ["PPO", "A2C", "DQN", "DDPG", "TD3", "SAC"])
def test_every_argument_of_stable_baselines3_is_answered(kind):
    library = pytest.importorskip("stable_baselines3")
    algorithm = kind.lower()
    arguments = inspect.signature(getattr(library, kind)).parameters.keys()
    arguments |= inspect.signature(getattr(library, kind).learn).parameters.keys() - {"self", "tb_log_name"}
    names = settings_of(algorithm) | OF_RUNS
    for name in arguments:
        assert name.startswith("_") or name in names or explain_unknown(name, 1, algorithm, names, typed=False), name


@pytest.mark.parametrize(
    ("flags", "answer"),
    [
        ("ppo --lr 1e-3", "lr is learning_rate here: --learning-rate 1e-3"),
        ("ppo --n-steps=5", "n_steps is rollout_length here: --rollout-length 5"),
        ("dqn --n_steps 5", "n_steps is n_step here: --n-step 5"),
        ("sac --ent-coef 0.2", "ent_coef is temperature here: --temperature 0.2 (learn_temperature is"),
        ("ppo --batch-size 64", "batch_size is minibatches here (which is num_envs × rollout_length / batch_size)"),
        ("ppo --learning-starts 9", "learning_starts is warmup here, a setting of dqn, ddpg, td3"),
        ("ppo --anneal-lr", "anneal_lr is learning_rate_schedule here: --learning-rate-schedule linear;"),
        ("ppo --no-anneal-lr", "anneal_lr is learning_rate_schedule here;"),
        ("ppo --no-cuda", "cuda is device here (auto, cpu, cuda or mps)"),
        ("ppo --use-sde", "there is no use_sde here: "),
        ("sac --recurrent lstm", "recurrent is a setting of ppo, a2c and reinforce, not of sac"),
    ],
)
def test_flags_of_others_are_answered_with_ours(capsys, flags, answer):
    assert main(["train", *flags.split()]) == 2
    assert capsys.readouterr().err.startswith(f"drl: {answer}")


def test_flags_of_the_search(capsys):
    answers = {
        "--n-timesteps": "n_timesteps is num_timesteps_per_trial here: --num-timesteps-per-trial 9",
        "--total-timesteps": "total_timesteps is num_timesteps_per_trial here: --num-timesteps-per-trial 9",
        "--lr": "lr is learning_rate here, a setting of its runs: write it into a file, and add --config FILE.yaml",
        "--gamma": "gamma is a setting of its runs: write it into a file, and add --config FILE.yaml",
    }
    for flag, answer in answers.items():
        assert main(["search", "dqn", flag, "9"]) == 2
        assert capsys.readouterr().err.startswith(f"drl: {answer};")


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({"n_envs": 4}, "n_envs is num_envs here: num_envs=4"),
        ({"learning_starts": 100}, "learning_starts is warmup here: warmup=100"),
        ({"vf_coef": 0.5}, "vf_coef is value_coef here, a setting of ppo, a2c and reinforce, not of dqn"),
        ({"policy_kwargs": {}}, "policy_kwargs is hidden_sizes here (and activation, each a setting of its own)"),
        ({"recurrent": "gru"}, "recurrent is a setting of ppo, a2c and reinforce, not of dqn"),
        ({"config": {"buffer_size": 5}}, "buffer_size is capacity here: capacity=5"),
    ],
)
def test_keywords_of_others_are_answered_with_ours(given, answer):
    for call in (drl.train, drl.make_trainer, *(() if "config" in given else (drl.search,))):
        with pytest.raises(BadInput, match=re.escape(answer) + "$"):
            call("dqn", env="CartPole-v1", **given)


def test_a_search_space_of_others_is_answered_with_ours():
    with pytest.raises(BadInput, match=r"search_space has 'lr': lr is learning_rate here$"):
        drl.search("dqn", search_space={"lr": [1e-3]})
