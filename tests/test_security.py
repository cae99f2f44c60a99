"""What SECURITY.md promises, tried as somebody would who sends you a folder."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import drl
from drl.agents.load_agent import load_q_agent
from drl.algorithms import ALGORITHMS
from drl.cli.studies import run_search
from drl.cli.train import read_experiment
from drl.core.agent_files import read_agent
from drl.core.errors import BadInput, UnusableFile
from drl.core.safe_files import draft_of, read_inside, stay_inside, write_atomically
from drl.core.state_files import SEAL, _checksum, write_arrays
from drl.envs.env_config import check_trusted
from drl.report.report_page import write_report
from drl.runs import launch
from drl.settings.experiment import REACHES_OUT, Experiment, RunConfig
from drl.settings.scaling import ScalingConfig
from drl.tracking.plots import plot_run
from drl.tracking.video import write_video

EVIL = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"


ROOT = Path(__file__).parents[1]
# What the console script does: unlike `python -m`, it does not put the current folder on the path.
SCRIPT = f"import sys; sys.path[0] = {str(ROOT)!r}; from drl.cli.entry import main; sys.exit(main())"


def drl_command(*arguments, cwd):
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, env=env)
    assert "Traceback" not in result.stderr
    return result


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    settings = {"env": "CartPole-v1", "total_timesteps": 64, "num_envs": 2, "rollout_length": 16, "hidden_sizes": [8]}
    quiet = {"quiet": True, "video": False, "evaluation_episodes": 1, "results_dir": str(folder), "normalize_obs": True}
    return launch.train(Experiment.from_flat(settings | quiet, "test")).folder


@pytest.fixture
def downloaded(made, tmp_path):
    """A copy of that run, in a folder where somebody put files of their own as well."""
    shutil.copytree(made, tmp_path / "run")
    (tmp_path / "evil_module.py").write_text(EVIL)
    (tmp_path / "miniworld.py").write_text(EVIL)
    (tmp_path / "precious.txt").write_text("mine")
    return tmp_path / "run"


def change_card(run, **changes):
    """A card with other words, and the checksum that belongs to them."""
    path = run / "agent" / "card.json"
    card = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(card | {SEAL: _checksum(card)}, indent=2) + "\n")


@pytest.mark.default("evil_module")
@pytest.mark.parametrize("module", ["evil_module", "miniworld"])  # the second has the name of a well-known package
def test_an_agents_card_does_not_import_a_module(downloaded, module):
    notes = json.loads((downloaded / "agent" / "card.json").read_text())["notes"]
    change_card(downloaded, notes=notes | {"env": f"{module}:CartPole-v1"})
    folder = downloaded.parent
    result = drl_command("evaluate", downloaded, "--episodes", 1, cwd=folder)
    assert result.returncode == 2
    assert not (folder / "ran").exists()
    if module == "evil_module":
        assert f"--env {module}:CartPole-v1 (or add --trust)" in result.stderr
        assert drl_command("evaluate", downloaded, "--episodes", 1, "--trust", cwd=folder).returncode == 0
        assert (folder / "ran").exists()


@pytest.mark.full
def test_what_a_known_package_lacks_is_not_taken_from_the_folder(downloaded):
    """`gymnasium:` ids import mujoco where they need it; a mujoco.py beside the agent is not it."""
    (downloaded.parent / "mujoco.py").write_text(EVIL)
    notes = json.loads((downloaded / "agent" / "card.json").read_text())["notes"]
    change_card(downloaded, notes=notes | {"env": "gymnasium:HalfCheetah-v5"})
    assert drl_command("evaluate", downloaded, "--episodes", 1, cwd=downloaded.parent).returncode == 2
    assert not (downloaded.parent / "ran").exists()


@pytest.mark.full
def test_a_config_does_not_import_a_module(downloaded):
    folder = downloaded.parent
    settings = yaml.safe_load((downloaded / "config.yaml").read_text()) | {"env": "evil_module:CartPole-v1"}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    result = drl_command("train", "ppo", "--config", "config.yaml", cwd=folder)
    assert result.returncode == 2
    assert "drl train ppo --config config.yaml --env evil_module:CartPole-v1 (or add --trust)" in result.stderr
    assert not (folder / "ran").exists()
    named = ("--env", "evil_module:CartPole-v1", "--results-dir", "results", "--quiet", "--no-video", "--no-plots")
    assert drl_command("train", "ppo", "--config", "config.yaml", *named, cwd=folder).returncode == 0
    assert (folder / "ran").exists()


def test_environments_of_known_packages_need_no_word():
    check_trusted("CartPole-v1", (), "card.json", "drl evaluate x")
    check_trusted("gymnasium:CartPole-v1", (), "card.json", "drl evaluate x")
    check_trusted("drl.envs:MovieRec-v1", (), "card.json", "drl evaluate x")
    check_trusted("gymnasium.envs.classic_control:CartPoleEnv", ("TimeLimit:max_episode_steps=9",), "card.json")
    check_trusted("drl.games.ipd.ipd_env:IteratedPrisonersDilemmaEnv", ("gymnasium.wrappers:ClipReward",), "card.json")
    for unknown in ("os:CartPole-v1", "gymnasium_evil:X-v0", "antigravity:X-v0"):
        with pytest.raises(BadInput, match="runs its code"):
            check_trusted(unknown, (), "card.json", "drl evaluate x")


@pytest.mark.full
@pytest.mark.parametrize("name", ["brax:ant", "gymnax:CartPole-v1"])
def test_environments_of_the_extras_need_no_word(name):
    check_trusted(name, (), "card.json", "drl evaluate x")


@pytest.mark.parametrize(
    ("env", "wrappers"),
    [
        ("drl.cli.entry:main", ()),
        ("drl.core.network_parts:import_plugins", ()),
        ("gymnasium:make", ()),
        ("drl.envs.rendered_env:RenderedEnv", ()),
        ("gymnasium.wrappers:RecordVideo", ()),
        ("GymV26Environment-v0", ()),
        ("gymnasium:GymV26Environment-v0", ()),
        ("CartPole-v1", ("RecordVideo:video_folder=elsewhere",)),
        ("CartPole-v1", ("gymnasium.wrappers:RecordVideo:video_folder=elsewhere",)),
        ("CartPole-v1", ("drl.core.network_parts:import_plugins",)),
        ("CartPole-v1", ("gymnasium.wrappers:Mapping",)),
    ],
)
def test_what_a_known_package_holds_is_not_called_unless_it_is_an_environment(env, wrappers):
    with pytest.raises(BadInput, match="add --trust"):
        check_trusted(env, wrappers, "card.json")


@pytest.mark.full
def test_a_card_cannot_run_our_own_commands(downloaded):
    folder = downloaded.parent
    notes = json.loads((downloaded / "agent" / "card.json").read_text())["notes"]
    arguments = {"argv": ["train", "ppo", "--env", "evil_module:CartPole-v1", "--results-dir", "elsewhere"]}
    change_card(downloaded, notes=notes | {"env": "drl.cli.entry:main", "env_kwargs": arguments})
    for command in (("evaluate", downloaded, "--episodes", 1), ("doctor", downloaded)):
        drl_command(*command, cwd=folder)
        assert not (folder / "ran").exists()
        assert not (folder / "elsewhere").exists()


def test_links_under_the_names_of_drafts_are_not_followed(downloaded):
    """The names that earlier versions used, and the files themselves, as links to something precious."""
    precious = downloaded.parent / "precious.txt"
    names = [".report.html.draft", "plots/.return.png.draft", "plots/return.png", "plots/loss.png"]
    names += ["videos/.evaluation_1.draft.mp4", "videos/evaluation_1.mp4", ".run.json.1.part"]
    for name in names:
        (downloaded / name).unlink(missing_ok=True)
        (downloaded / name).symlink_to(precious)
    plot_run(downloaded)
    write_report([downloaded], video=False)
    write_video(downloaded / "videos" / "evaluation_1.mp4", [np.zeros((16, 16, 3), np.uint8)] * 2)
    assert precious.read_text() == "mine"
    for name in ("plots/return.png", "videos/evaluation_1.mp4"):
        assert not (downloaded / name).is_symlink()
    (downloaded / "report.html").unlink()
    (downloaded / "report.html").symlink_to(precious)
    with pytest.raises(BadInput, match="not a report that drl wrote"):
        write_report([downloaded])
    assert precious.read_text() == "mine"


@pytest.mark.default("plots")
@pytest.mark.parametrize("room", ["plots", "videos"])
def test_a_room_that_leads_out_of_the_folder_is_refused(downloaded, room):
    outside = downloaded.parent / "outside"
    outside.mkdir()
    shutil.rmtree(downloaded / room)
    (downloaded / room).symlink_to(outside)
    command = ("plot", downloaded) if room == "plots" else ("evaluate", downloaded, "--episodes", 1, "--video")
    result = drl_command(*command, cwd=downloaded.parent)
    assert result.returncode == 3
    assert "leads out of" in result.stderr
    assert list(outside.iterdir()) == []


def test_a_run_behind_a_link_is_not_one_of_the_folder(downloaded):
    """Somebody's experiment folder whose run is a link to yours."""
    shelf = downloaded.parent / "shelf"
    shelf.mkdir()
    (shelf / "20260101-000000-s0").symlink_to(downloaded)
    for command in (("plot", shelf), ("evaluate", shelf), ("convert", shelf, "--engine", "jax")):
        result = drl_command(*command, cwd=downloaded.parent)
        assert result.returncode == 2
        assert "is not a run folder" in result.stderr
    (shelf / "20260101-000000-s0").unlink()
    (shelf / "agent").symlink_to(downloaded / "agent")
    with pytest.raises(UnusableFile, match="leads out of"):
        drl.load_agent(shelf)


@pytest.mark.default("x: !!int y", "env: &a*")
@pytest.mark.parametrize("text", ["a: &a [1]\nenv: *a", "env: &a {x: *a}", "[" * 5000, "day: 2001-99-99", "x: !!int y"])
def test_settings_are_plain_values(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    result = drl_command("train", "ppo", "--config", "config.yaml", cwd=tmp_path)
    assert result.returncode == 2
    assert "not valid YAML" in result.stderr


def test_settings_are_a_plain_file(tmp_path):
    os.mkfifo(tmp_path / "config.yaml")
    assert drl_command("train", "ppo", "--config", "config.yaml", cwd=tmp_path).returncode == 2
    with open(tmp_path / "large.yaml", "wb") as file:
        file.truncate(1 << 31)
    assert "more than" in drl_command("train", "ppo", "--config", "large.yaml", cwd=tmp_path).stderr


@pytest.mark.default('"env_steps": "x"', '"finished": 5')
@pytest.mark.parametrize(
    "row", ['"finished": 5', '"env_steps": "x"', '"learn/x": [1]', '"finished": [[1, 2]]', '"env_steps": 1e999']
)
def test_records_that_make_no_sense_are_said_to(downloaded, row):
    with open(downloaded / "metrics.jsonl", "a") as file:
        file.write("{" + row + "}\n")
    result = drl_command("plot", downloaded, cwd=downloaded.parent)
    assert result.returncode in (0, 3)
    assert result.stderr.count("\n") <= 1


def test_a_report_shows_nothing_from_outside(downloaded):
    (downloaded.parent / "precious.txt").write_text("mine")
    (downloaded / "videos" / "final_agent.mp4").symlink_to(downloaded.parent / "precious.txt")
    with pytest.raises(UnusableFile, match="leads out of"):
        write_report([downloaded])
    other = downloaded.parent / "other"
    shutil.copytree(downloaded, other, symlinks=True)
    (other / "videos" / "final_agent.mp4").unlink()
    page = write_report([downloaded, other]).read_text()  # it does not take the other one along
    assert "leads out of" in page
    assert "video/mp4" not in page


def absolute(run):
    return {"weights": str(next((run / "agent").glob("weights-*")).resolve())}


def outside(run):
    next((run / "agent").glob("weights-*")).rename(run / "w.safetensors")
    return {"weights": "../w.safetensors"}


def linked(run):
    weights = next((run / "agent").glob("weights-*"))
    weights.rename(run / "w.safetensors")
    weights.symlink_to(run / "w.safetensors")
    return {}


def device(run):
    return {"weights": "/dev/zero"}


def linked_device(run):
    weights = next((run / "agent").glob("weights-*"))
    weights.unlink()
    weights.symlink_to("/dev/zero")
    return {}


def pipe(run):
    weights = next((run / "agent").glob("weights-*"))
    weights.unlink()
    os.mkfifo(weights)
    return {}


def not_finite(run):
    _, arrays = read_agent(run)
    name = next(name for name in arrays if name.endswith("weight"))
    arrays[name] = np.full_like(arrays[name], np.nan)
    return {"weights": "w.safetensors", "checksum": write_arrays(run / "agent" / "w.safetensors", arrays)}


def sparse(run):
    with open(run / "agent" / "w.safetensors", "wb") as file:
        file.truncate(1 << 40)
    return {"weights": "w.safetensors"}


def absurd_model(run):
    card = json.loads((run / "agent" / "card.json").read_text())
    return {"architecture": card["architecture"] | {"hidden_sizes": [10**7, 10**7]}}


def absurd_spaces(run):
    card = json.loads((run / "agent" / "card.json").read_text())
    return {"obs_spec": card["obs_spec"] | {"box_shape": [10**12]}}


def architecture(run, **changes):
    card = json.loads((run / "agent" / "card.json").read_text())
    return {"architecture": card["architecture"] | changes}


def spaces(run, which, **changes):
    card = json.loads((run / "agent" / "card.json").read_text())
    return {which: card[which] | changes}


WRONG = [
    lambda run: spaces(run, "action_spec", sizes=[10**9]),
    lambda run: spaces(run, "action_spec", sizes=[-2]),
    lambda run: spaces(run, "action_spec", kind=3),
    lambda run: spaces(run, "obs_spec", box_shape=[10**5, 10**5]),
    lambda run: spaces(run, "obs_spec", box_shape=[-4]),
    lambda run: spaces(run, "obs_spec", box_shape=["a"]),
    lambda run: spaces(run, "obs_spec", channels_last=True),
    lambda run: architecture(run, hidden_sizes=[1] * 100_000),
    lambda run: architecture(run, hidden_sizes=[2.5]),
    lambda run: architecture(run, activation=None),
    lambda run: architecture(run, backbone="cnn", cnn_features=10**10),
    lambda run: {"engine": []},
    lambda run: {"variant": {}},
    lambda run: {"notes": None},
    lambda run: {"weights": "a\0b"},
    lambda run: {"checksum": 5},
    lambda run: {"normalizer": {"count": -5, "clip": 10.0}},
    lambda run: {"normalizer": {"count": 5, "clip": float("inf")}},
    lambda run: {"normalizer": {"count": 10**400, "clip": 10.0}},
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_card_of_wrong_words_is_refused(downloaded, number):
    change_card(downloaded, **WRONG[number](downloaded))
    for engine in ("torch", "jax", "numpy"):
        with pytest.raises(UnusableFile):
            drl.load_agent(downloaded, engine=engine)


@pytest.mark.default("notes0")
@pytest.mark.parametrize("notes", [{"env": 5}, {"env_kwargs": [1]}, {"frame_stack": 10**10}, {"frame_stack": "x"}])
def test_a_card_describes_its_environment_rightly(downloaded, notes):
    known = json.loads((downloaded / "agent" / "card.json").read_text())["notes"]
    change_card(downloaded, notes=known | notes)
    assert drl_command("evaluate", downloaded, "--episodes", 1, cwd=downloaded.parent).returncode == 3


@pytest.mark.parametrize("value", [np.complex64(np.nan), np.float64(1e300), np.float32(np.inf)])
def test_weights_are_finite_float32(downloaded, value):
    _, arrays = read_agent(downloaded)
    name = next(name for name in arrays if name.endswith("weight"))
    arrays[name] = np.full(arrays[name].shape, value)
    change_card(
        downloaded, weights="w.safetensors", checksum=write_arrays(downloaded / "agent" / "w.safetensors", arrays)
    )
    with pytest.raises(UnusableFile, match="not finite numbers"):
        drl.load_agent(downloaded)


def test_a_pth_that_claims_more_than_it_has_is_refused(tmp_path):
    state = {"head.advantage.weight": torch.zeros(1).expand(30_000_000_000)}
    torch.save(state, tmp_path / "m.pth")
    with pytest.raises(UnusableFile, match="not a plain tensor"):
        load_q_agent(tmp_path / "m.pth", Experiment(algorithm="dqn"))


def deep_card(run):
    (run / "agent" / "card.json").write_text('{"format": ' + "[" * 100_000 + "]" * 100_000 + "}")
    return None


ATTACKS = (
    absolute, outside, linked, device, linked_device, pipe, not_finite, sparse, absurd_model, absurd_spaces, deep_card,
)  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_card_that_lies_is_refused(downloaded, attack):
    changes = attack(downloaded)
    if changes is not None:
        change_card(downloaded, **changes)
    with pytest.raises(UnusableFile):
        drl.load_agent(downloaded)


def test_the_exit_code_of_an_unusable_agent_is_three(downloaded):
    change_card(downloaded, weights="/dev/zero")
    result = drl_command("evaluate", downloaded, "--episodes", 1, cwd=downloaded.parent)
    assert result.returncode == 3
    assert result.stderr.count("\n") == 1


def test_a_draft_is_new_unguessable_and_gone_if_writing_fails(tmp_path):
    names = set()
    for _ in range(3):
        with draft_of(tmp_path / "file") as draft:
            names.add(draft.name)
    assert len(names) == 3
    with pytest.raises(OSError, match="full"), draft_of(tmp_path / "file") as draft:
        raise OSError("full")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert oct((tmp_path / "file").stat().st_mode & 0o777) == oct(0o666 & ~_umask())


def _umask():
    current = os.umask(0)
    os.umask(current)
    return current


def test_what_is_inside_is_written_and_read(tmp_path):
    (tmp_path / "run" / "plots").mkdir(parents=True)
    inside = tmp_path / "run" / "plots" / "x"
    inside.write_bytes(b"1")
    assert stay_inside(tmp_path / "run", inside) == inside
    assert read_inside(tmp_path / "run", inside) == b"1"
    with pytest.raises(UnusableFile, match="leads out of"):
        read_inside(tmp_path / "other", inside)
    with pytest.raises(UnusableFile, match="more than the 0 that are read"):
        read_inside(tmp_path / "run", inside, most=0)


REACHING = {
    "cluster": "127.0.0.1:9", "fallback_dir": "elsewhere", "results_dir": "elsewhere", "from_agent": "elsewhere",
    "wandb_project": "theirs", "mlflow_experiment": "theirs",
}  # fmt: skip
WITHIN = """
    activation actor_q backbone backbone_kwargs baseline clip_range_schedule compile device distribution distributional
    engine entropy_coef_schedule env env_kwargs epsilon_schedule freeze group head her info_keys init
    learning_rate_schedule license loss name noise noise_sigma_schedule optimizer optimizer_kwargs plugins recurrent
    target_q vectorization wrappers
"""


def test_every_setting_with_text_is_classified():
    """A new one either reaches out of the run's folder, and goes into `REACHES_OUT`, or it does not, and goes here."""
    kinds = {RunConfig, ScalingConfig}.union(*(record.parts.values() for record in ALGORITHMS.values()))
    texts = {name for kind in kinds for name, hint in typing.get_type_hints(kind).items() if "str" in str(hint)}
    assert texts - {"RULES"} == {*WITHIN.split()} | REACHES_OUT.keys()
    assert REACHING.keys() | {"results_url"} == REACHES_OUT.keys()


@pytest.mark.parametrize("name", REACHING)
def test_a_file_cannot_make_a_run_reach_out(downloaded, name, monkeypatch):
    monkeypatch.chdir(downloaded.parent)
    value = REACHING[name]
    Path("theirs.yaml").write_text(yaml.safe_dump({name: value}))
    flag = f"--{name.replace('_', '-')}"
    command = ["ppo", "--config", "theirs.yaml"]
    with pytest.raises(BadInput, match=f"sets {name} to .* type: drl train ppo --config theirs.yaml {flag}"):
        read_experiment(command[0], command[1:])
    with pytest.raises(BadInput, match=f"theirs.yaml sets {name} to .* add --trust"):
        run_search(command)
    for typed in ([flag, value], ["--trust"]):
        read_experiment("ppo", [*command[1:], *typed])
    with pytest.raises(BadInput, match=f"sets {name}"):
        drl.train("ppo", config="theirs.yaml", console=False)
    settings = yaml.safe_load((downloaded / "config.yaml").read_text()) | {"results_dir": "results", name: value}
    content = yaml.safe_dump(settings).encode()
    (downloaded / "config.yaml").write_bytes(content)
    record = json.loads((downloaded / "run.json").read_text())
    record |= {"config_checksum": hashlib.sha256(content).hexdigest(), "status": "interrupted"}
    (downloaded / "run.json").write_text(json.dumps(record | {SEAL: _checksum(record)}, indent=2) + "\n")
    if name == "results_dir":  # it stays in its own folder
        assert launch.experiment_of(downloaded, trust=False).run.results_dir == "results"
        return
    for call in (drl.resume, lambda run: drl.fork(run, {"total_timesteps": 128})):
        with pytest.raises(BadInput, match=f"config.yaml sets {name} to .*add --trust"):
            call(downloaded)
    launch.experiment_of(downloaded, trust=False, given=[name])
    launch.experiment_of(downloaded, trust=True)
    assert not Path("elsewhere").exists()
