"""A run that this account started needs no --trust; whatever somebody else made or changed does."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

import drl
from drl.agents.agent_env import is_env_of
from drl.core.errors import BadInput
from drl.core.state_files import SEAL, _checksum
from drl.runs.folder.run_folder import (
    KEY_BYTES,
    SIGNATURE,
    NoKey,
    account_key,
    adopt_run,
    key_file,
    own_settings,
    read_record,
)
from drl.runs.launch import experiment_of

ENV = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


class Pole(CartPoleEnv):
    pass


class Odd(gym.RewardWrapper):
    def reward(self, reward):
        return reward
"""
EVIL = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n" + ENV
TRAIN = ["train", "ppo", "--env", "poles.py:Pole", "--wrapper", "poles.py:Odd", "--wrapper",
         "TimeLimit:max_episode_steps=20", "--total-timesteps", "128", "--num-envs", "2", "--rollout-length", "16",
         "--no-video", "--no-plots", "--no-tensorboard", "--quiet", "--evaluation-episodes", "1", "--name", "own",
         "--no-preset"]  # fmt: skip


def command(folder, *arguments, **environ):
    call = [sys.executable, "-m", "drl.cli.entry", *map(str, arguments)]
    result = subprocess.run(call, cwd=folder, capture_output=True, text=True, env=os.environ | environ)
    assert "Traceback" not in result.stderr
    return result


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "poles.py").write_text(ENV)
    result = command(folder, *TRAIN)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def place(trained, monkeypatch):
    monkeypatch.chdir(trained)
    return trained


@pytest.fixture
def run(place):
    return next(Path("results/own").iterdir())


@pytest.fixture
def copy(run, tmp_path):
    """The same run in another folder."""
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


def reseal(path, **changes):
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(content | {SEAL: _checksum(content)}, indent=2) + "\n")


def refused(folder):
    with pytest.raises(BadInput, match="add --trust"):
        experiment_of(folder, trust=False)
    return True


@pytest.mark.full
def test_every_command_takes_a_run_of_this_account(place, run):
    assert command(place, "evaluate", run, "--episodes", "1").returncode == 0
    assert command(place, "replay", run, "--episode", "last").returncode == 0
    assert "poles.py" not in command(place, "doctor", run, "--steps", "100").stdout
    forked = command(place, "fork", run, "--set", "total_timesteps=160", "name=forked")
    assert forked.returncode == 0, forked.stderr
    (fork,) = Path("results/forked").iterdir()
    experiment_of(fork, trust=False)  # a fork is signed as well
    again = command(place, "train", "ppo", "--config", run / "config.yaml", "--name", "again", "--total-timesteps", 32)
    assert again.returncode == 0, again.stderr
    assert drl.evaluate(run, episodes=1).episodes
    assert drl.evaluate(run / "models" / "best_agent", episodes=1).episodes


def test_the_user_may_edit_the_file(place, run):
    before = (place / "poles.py").read_text()
    try:
        (place / "poles.py").write_text(before + "\n# another line\n")
        experiment_of(run, trust=False)
    finally:
        (place / "poles.py").write_text(before)


def test_status_and_further_notes_are_not_signed(run):
    record = read_record(run)
    reseal(run / "run.json", status="interrupted", resumed=[])
    experiment_of(run, trust=False)
    reseal(run / "run.json", status=record["status"])


def test_a_copy_is_the_same_run(copy):
    experiment_of(copy, trust=False)


@pytest.mark.parametrize("change", [{"env": "evil.py:Pole"}, {"wrappers": ["evil.py:Odd"]}, {"plugins": ["evil"]},
                                    {"env_kwargs": ["render_mode=human"]}, {"activation": "evil:Odd"}])  # fmt: skip
def test_changed_settings_need_the_word(copy, change):
    """Also with the checksum that belongs to them."""
    import hashlib

    content = yaml.safe_dump(yaml.safe_load((copy / "config.yaml").read_text()) | change).encode()
    (copy / "config.yaml").write_bytes(content)
    reseal(copy / "run.json", config_checksum=hashlib.sha256(content).hexdigest())
    assert refused(copy)
    assert own_settings(copy / "agent") is None


@pytest.mark.parametrize("signature", [None, {}, "x", {"config": None, "code": 1}, {"config": "ä", "code": "ä"}])
def test_a_run_without_a_signature_needs_the_word(copy, signature):
    reseal(copy / "run.json", **{SIGNATURE: signature})
    assert refused(copy)


@pytest.mark.full
def test_the_signature_of_another_run_does_not_fit(copy, place):
    other = command(place, *TRAIN[:-1], "--seed", "7")
    assert other.returncode == 0
    newest = max(Path("results/own").iterdir(), key=lambda each: each.name[-1])
    assert newest.name.endswith("-s7")
    reseal(copy / "run.json", **{SIGNATURE: read_record(newest)[SIGNATURE]})
    assert refused(copy)


def test_a_file_of_the_same_name_elsewhere_is_not_run(copy, tmp_path, monkeypatch):
    """Somebody sends back a run that you have published, with an environment of their own beside it."""
    (tmp_path / "poles.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="not where they were when it was started"):
        experiment_of(copy, trust=False)
    with pytest.raises(BadInput, match="runs its code"):
        drl.evaluate(copy, episodes=1)
    assert not (tmp_path / "ran").exists()


@pytest.mark.full
def test_a_module_of_the_same_name_elsewhere_is_not_run(place, tmp_path):
    shutil.copy("poles.py", "poles_module.py")
    flags = [flag.replace("poles.py:", "poles_module:") for flag in TRAIN]
    flags[flags.index("own")] = "module"
    assert command(place, *flags).returncode == 0
    (made,) = Path("results/module").iterdir()
    shutil.copytree(made, tmp_path / "run")
    assert command(place, "evaluate", tmp_path / "run", "--episodes", "1").returncode == 0
    (tmp_path / "poles_module.py").write_text(EVIL)
    for name in ("evaluate", "replay", "resume"):
        arguments = ["--episodes", "1"] if name == "evaluate" else []
        reseal(tmp_path / "run" / "run.json", status="interrupted")
        result = command(tmp_path, name, "run", *arguments)
        assert result.returncode == 2
        assert "--trust" in result.stderr
    assert not (tmp_path / "ran").exists()


def test_a_card_that_names_another_environment_needs_the_word(copy):
    card = json.loads((copy / "agent" / "card.json").read_text())
    for change in ({"env": "evil.py:Pole"}, {"env_kwargs": {"render_mode": "human"}}, {"wrappers": ["evil.py:Odd"]}):
        reseal(copy / "agent" / "card.json", notes=card["notes"] | change)
        with pytest.raises(BadInput, match="add --trust"):
            drl.evaluate(copy, episodes=1)


@pytest.mark.full
def test_a_file_in_the_experiment_folder_needs_the_word(place):
    """Folders of results are synchronized with others, who could change the file or what it imports from its folder."""
    experiment = place / "results" / "inside"
    experiment.mkdir()
    (experiment / "poles.py").write_text(ENV)
    flags = [flag.replace("poles.py:", "results/inside/poles.py:") for flag in TRAIN]
    flags[flags.index("own")] = "inside"
    assert command(place, *flags).returncode == 0
    (made,) = (file.parent for file in experiment.glob("*/run.json"))
    (experiment / "pygame.py").write_text(EVIL)
    assert refused(made)
    (experiment / "poles.py").write_text(EVIL)
    assert refused(made)
    assert not (experiment / "ran").exists()
    assert not Path("ran").exists()


def test_another_account_needs_the_word(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert refused(run)
    assert not key_file().exists()  # looking does not make a key
    account_key(create=True)
    assert refused(run)


def test_a_resume_with_trust_does_not_sign(copy, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    account_key(create=True)
    reseal(copy / "run.json", status="interrupted")
    drl.resume(copy, trust=True, console=False)
    assert refused(copy)


def test_a_node_makes_runs_for_this_account(copy):
    sent = yaml.safe_load((copy / "config.yaml").read_text())
    for changed in ({}, {"env": "evil.py:Pole"}):
        reseal(copy / "run.json", **{SIGNATURE: None})
        adopt_run(copy, sent | changed)
        assert (own_settings(copy / "agent") is None) == bool(changed)


def test_only_the_environment_of_the_run_counts(run):
    agent = drl.load_agent(run)
    settings = own_settings(run / "agent")
    assert is_env_of(agent, settings)
    assert not is_env_of(agent, None)
    assert not is_env_of(agent, settings | {"frame_stack": 2})


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def test_the_key_is_private_and_made_once(home):
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: account_key(create=True), range(32)))
    assert len(keys) == 1
    assert len(keys.pop()) == KEY_BYTES
    assert key_file() == home / "drl" / "run_key"
    assert key_file().stat().st_mode & 0o777 == 0o600
    assert key_file().parent.stat().st_mode & 0o077 == 0
    assert [file.name for file in key_file().parent.iterdir()] == ["run_key"]


def test_a_key_that_others_can_read_is_refused(home):
    account_key(create=True)
    key_file().chmod(0o640)
    with pytest.raises(NoKey, match="can be read by others; remove it"):
        account_key(create=True)


def test_a_key_that_is_no_plain_file_of_this_account_is_refused(home, tmp_path, monkeypatch):
    account_key(create=True)
    kept = tmp_path / "kept"
    key_file().rename(kept)
    key_file().symlink_to(kept)
    with pytest.raises(NoKey, match="cannot be read"):
        account_key(create=True)
    key_file().unlink()
    os.mkfifo(key_file(), 0o600)
    with pytest.raises(NoKey, match="not a plain file"):
        account_key(create=True)
    key_file().unlink()
    kept.rename(key_file())
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(NoKey, match="of your account"):
        account_key()
    monkeypatch.undo()


def test_a_short_key_is_refused(home):
    account_key(create=True)
    key_file().write_bytes(b"")
    with pytest.raises(NoKey, match="not a key of 32 bytes"):
        account_key(create=True)


def test_relative_state_homes_are_ignored(monkeypatch, tmp_path):
    """As XDG demands: a file in the working folder must not be a key."""
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert key_file() == tmp_path / ".local" / "state" / "drl" / "run_key"


@pytest.mark.full
def test_a_home_that_cannot_be_written_is_no_error(place, tmp_path):
    (tmp_path / "file").write_text("")
    flags = [*TRAIN[:-1], "--results-dir", tmp_path]
    assert command(place, *flags, XDG_STATE_HOME=str(tmp_path / "file")).returncode == 0
    (made,) = (tmp_path / "own").iterdir()
    assert read_record(made)[SIGNATURE] is None
    assert refused(made)


@pytest.mark.full
def test_seeds_in_processes_are_signed(place):
    flags = [*TRAIN, "--num-seeds", "2", "--seed", "20"]
    flags[flags.index("own")] = "seeds"
    assert command(place, *flags).returncode == 0
    for made in Path("results/seeds").glob("*/run.json"):
        experiment_of(made.parent, trust=False)
