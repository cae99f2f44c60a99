"""The description of the settings that editors and type checkers read: it is complete, and what it promises works."""

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import drl
from drl.algorithms import ALGORITHMS
from drl.algorithms.ppo import PPOConfig
from drl.cli.flags import comments_of
from drl.cli.settings_text import CHOICES, FILES, MODELS, NOT_HERE, OF_SEEDS, PROPOSED
from drl.core import settings
from drl.core.configs import ModelConfig, NoSettings, ReplayConfig
from drl.core.errors import BadInput
from drl.runs.one_call import make_experiment, make_trainer, train, train_seeds
from drl.search.run_search import search
from drl.search.search_plan import SearchConfig
from drl.settings.experiment import OF_A_RUN, Experiment, RunConfig

RUN = {"num_envs": 1, "total_timesteps": 32, "rollout_length": 16, "minibatches": 1, "epochs": 1}
RUN |= {"video": False, "plots": False, "tensorboard": False, "evaluation_episodes": 1}


@pytest.mark.full
def test_the_file_is_what_the_configs_say():
    """In a process of its own: other tests register parts."""
    command = [sys.executable, "-c", "from drl.cli.settings_text import text; print(text(), end='')"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert Path(settings.__file__).read_text() == made, "write it again: make settings"


def test_every_setting_is_described():
    stated = {name for algorithm in ALGORITHMS for name in Experiment(algorithm=algorithm).to_flat()}
    described = set(settings.Settings.__annotations__)
    assert described == stated - {"algorithm", *NOT_HERE, *OF_SEEDS}
    assert set(settings.SeedsSettings.__annotations__) == described | set(OF_SEEDS)
    assert set(settings.TrainerSettings.__annotations__) == described - set(OF_A_RUN.split())
    for name, (kind, _) in (MODELS | {"ReplaySettings": (ReplayConfig, "")}).items():
        assert set(getattr(settings, name).__annotations__) == {field.name for field in dataclasses.fields(kind)}
    own = {field.name for field in dataclasses.fields(SearchConfig)} - {"env"}
    assert set(settings.SearchSettings.__annotations__) == described | own


@pytest.mark.parametrize("call", [train, train_seeds, make_trainer, search])
def test_no_setting_is_also_an_argument(call):
    arguments = set(inspect.signature(call).parameters) - {"settings"}
    assert not arguments & set(settings.SearchSettings.__annotations__ | settings.SeedsSettings.__annotations__)


def kinds() -> list[type]:
    parts = [part for record in ALGORITHMS.values() for part in record.parts.values()]
    return list(dict.fromkeys([RunConfig, SearchConfig, *parts]))


@pytest.mark.parametrize("name", CHOICES)
def test_the_choices_are_those_of_the_configs(name):
    accepted = set()
    for kind in (kind for kind in kinds() if name in inspect.signature(kind).parameters):
        for choice in (*CHOICES[name], "something else"):
            try:
                kind(**{name: choice}, **({"noise_sigma": 0.1} if name == "noise" else {}))
                accepted.add(choice)
            except BadInput:
                pass
    if name == "vectorization":  # which is refused where the environments are made
        with pytest.raises(BadInput, match="unknown vectorization"):
            drl.make_vec_env("CartPole-v1", vectorization="something else")
        accepted.discard("something else")
    assert accepted == set(CHOICES[name])


def test_every_text_has_its_choices_or_is_known_to_be_free():
    free = {"env", "name", "license", "wandb_project", "mlflow_experiment", "group", "results_url", "head", *FILES}
    fields = [(kind, field) for kind in kinds() for field in dataclasses.fields(kind)]
    texts = {field.name for kind, field in fields if field.type in (str, str | None)}
    assert {name for name in texts if not name.endswith("_schedule")} <= {*CHOICES, *PROPOSED, *free}


def test_a_comment_may_stand_above_its_setting():
    assert comments_of(ReplayConfig)["her"].startswith("Hindsight experience replay: replace")
    assert [
        field.name for kind in kinds() for field in dataclasses.fields(kind) if not comments_of(kind)[field.name]
    ] == []
    assert NoSettings in kinds()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"results_dir": Path("some") / "where"}, "some/where"),
        ({"from_agent": Path("an_agent")}, "an_agent"),
        ({"device": torch.device("cpu")}, "cpu"),
        ({"device": torch.device("cuda", 1)}, "cuda:1"),
        ({"learning_rate": np.float32(0.5)}, 0.5),
        ({"gamma": np.int64(1)}, 1.0),
        ({"num_envs": np.int64(4)}, 4),
        ({"num_envs": np.float64(4)}, 4),
        ({"video": np.False_}, False),
        ({"seeds": range(3)}, (0, 1, 2)),
        ({"seeds": [np.int64(5), 7]}, (5, 7)),
        ({"hidden_sizes": [np.int32(8), 9]}, (8, 9)),
        ({"plugins": []}, ()),
        ({"compile": np.True_}, "on"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else str(each),
)
@pytest.mark.parametrize("as_config", [False, True])
def test_values_of_other_libraries_are_converted(given, expected, as_config):
    experiment = make_experiment("ppo", config=given) if as_config else make_experiment("ppo", **given)
    (name,) = given
    parts = (experiment.run, experiment.learner, experiment.model)
    value = next(getattr(part, name) for part in parts if hasattr(part, name))
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("config", "name", "expected"),
    [
        (lambda: PPOConfig(learning_rate=np.float32(0.5)), "learning_rate", 0.5),
        (lambda: PPOConfig(epochs=np.int64(3)), "epochs", 3),
        (lambda: PPOConfig(normalize_advantage=np.False_), "normalize_advantage", False),
        (lambda: ModelConfig(hidden_sizes=[np.int64(8), 8]), "hidden_sizes", (8, 8)),
        (lambda: RunConfig(results_dir=Path("here")), "results_dir", "here"),
        (lambda: RunConfig(device=torch.device("cpu")), "device", "cpu"),
        (lambda: RunConfig(seeds=[1, 2]), "seeds", (1, 2)),
        (lambda: SearchConfig(storage=Path("study.db"), n_trials=np.int64(2)), "storage", "study.db"),
    ],
)
def test_configs_made_by_hand_convert_them_too(config, name, expected):
    value = getattr(config(), name)
    assert (value, type(value)) == (expected, type(expected))


def test_a_number_of_numpy_is_checked_as_one_of_python_is():
    with pytest.raises(BadInput, match="num_envs is 1,000,000; expected at most"):
        make_experiment("ppo", num_envs=np.int64(1_000_000))
    with pytest.raises(BadInput, match="gamma is nan"):
        PPOConfig(gamma=np.float32("nan"))
    with pytest.raises(BadInput, match=r"hidden_sizes is \[8, 'wide'\]; expected a value of type list"):
        make_experiment("ppo", hidden_sizes=[8, "wide"])


def test_a_run_with_all_of_them(tmp_path):
    numbers = {name: np.int64(value) for name, value in RUN.items() if type(value) is int}
    run = train(
        "ppo", "CartPole-v1", **(RUN | numbers), results_dir=tmp_path, device=torch.device("cpu"), hidden_sizes=[8],
        learning_rate=np.float32(1e-3), activation=torch.nn.GELU, console=False,
    )  # fmt: skip
    written = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert (written["device"], written["hidden_sizes"], written["num_envs"]) == ("cpu", [8], 1)
    assert run.folder.is_relative_to(tmp_path)


def test_a_search_with_all_of_them(tmp_path):
    given = {name: value for name, value in RUN.items() if name not in ("plots", "total_timesteps")}
    found = search(
        "ppo", "CartPole-v1", **given, n_trials=np.int64(1), n_jobs=np.int64(0), storage=tmp_path / "study.db",
        results_dir=tmp_path, total_timesteps=np.int64(32), rerun_seeds=np.int64(0), reports=1, quiet=True, plots=False,
    )  # fmt: skip
    assert (tmp_path / "study.db").exists()
    assert found.status == "finished"


def test_make_vec_env_takes_numbers_of_numpy():
    with drl.make_vec_env("CartPole-v1", num_envs=np.int64(2), seed=np.int64(1), frame_stack=np.int64(2)) as envs:
        assert envs.reset().shape[0] == envs.num_envs == 2


def test_load_agent_takes_a_device_of_torch(tmp_path):
    run = train("ppo", "CartPole-v1", **RUN, results_dir=tmp_path, console=False)
    agent = drl.load_agent(run.folder, device=torch.device("cpu"))
    assert agent.act(np.zeros((1, 4), np.float32)).shape == (1,)


def test_parts_built_by_hand_take_numbers_of_numpy():
    from drl.torch import QModel

    with drl.make_vec_env("CartPole-v1", num_envs=2) as envs:
        model = QModel.build(envs, hidden_sizes=[np.int64(8)], dueling=np.True_, activation="tanh")
        buffer = drl.ReplayBuffer(envs, capacity=np.int64(500), priority_alpha=np.float32(0.5))
    assert model(torch.zeros(3, 4)).shape == (3, 2)
    assert (buffer.config.capacity, type(buffer.config.capacity)) == (500, int)
