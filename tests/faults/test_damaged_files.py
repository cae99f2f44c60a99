"""A file of a run that was damaged on disk is noticed: exit 3 and one line."""

import random
import shutil

import pytest
import torch
from fault_cases import some
from tiny_runs import call, copy_of, files_of, forget_older, newest, refused, train_tiny

from drl.agents.load_agent import load_q_agent
from drl.core.state_files import check_pth, write_pth
from drl.settings.experiment import Experiment

KIND = "damaged files"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs that differ in the seed."""
    folder = tmp_path_factory.mktemp("made")
    return train_tiny(folder / "one"), train_tiny(folder / "two", seed=1)


def flipped(content, rng):
    damaged = bytearray(content)
    damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def cut(content, rng):
    return content[: rng.randrange(1, len(content))]


def swapped(content, rng):
    """Two blocks of the same length have changed places."""
    size = rng.randrange(1, max(2, len(content) // 4))
    first = rng.randrange(len(content) - 2 * size + 1)
    second = rng.randrange(first + size, len(content) - size + 1)
    one, two = content[first : first + size], content[second : second + size]
    return content[:first] + two + content[first + size : second] + one + content[second + size :]


def zeroed(content, rng):
    first = rng.randrange(len(content))
    size = len(content[first : first + 64])
    return content[:first] + bytes(size) + content[first + size :]


def grown(content, rng):
    return content + rng.randbytes(rng.randrange(1, 9))


def empty(content, rng):
    return b""


DAMAGES = [flipped] * 34 + [cut] * 12 + [swapped] * 8 + [zeroed] * 6 + [grown] * 3 + [empty]
TARGETS = [
    ("card", "evaluate"),
    ("weights", "evaluate"),
    ("card", "convert"),
    ("weights", "convert"),
    ("card", "export"),
    ("weights", "export"),
    ("state", "resume"),
    ("arrays", "resume"),
    ("rows", "resume"),
    ("record", "resume"),
    ("config", "resume"),
    ("state", "fork"),
    ("record", "fork"),
    ("config", "fork"),
    ("pth", "main.py"),
]


def damaged_forms(content, count):
    """As many different ones, by numbers that do not change."""
    for number, damage in some(list(enumerate(DAMAGES)), count):
        rng, damaged = random.Random(number), content
        while damaged == content:
            damaged = damage(content, rng)
        yield damage.__name__, number, damaged


@pytest.mark.parametrize(("role", "command"), TARGETS)
def test_a_damaged_file_is_noticed(role, command, made, tmp_path, capsys, tally):
    run, tried = copy_of(made[0], tmp_path / "copy"), 0
    forget_older(run)
    target = files_of(run)[role]
    whole = target.read_bytes()
    for name, number, damaged in damaged_forms(whole, 5):
        target.write_bytes(damaged)
        said = refused(command, run, capsys)
        assert target.name in said or target.parent.name in said, (name, number, said)
        tried += 1
    target.write_bytes(whole)
    if command != "convert":
        assert call(command, run) == (2 if command == "fork" else 0)  # a fork has nothing to train
    tally(KIND, tried)


@pytest.mark.parametrize(
    ("role", "command"), [case for case in TARGETS if case[0] != "pth"]
)  # a whole .pth of another run is a whole .pth
def test_a_file_of_another_run_is_noticed(role, command, made, tmp_path, capsys, tally):
    run, other = copy_of(made[0], tmp_path / "copy"), files_of(made[1])
    forget_older(run)
    target = files_of(run)[role]
    shutil.copy(other[role], target)
    refused(command, run, capsys)
    tally(KIND)


def test_pth_files_without_pytorch_are_checked_as_well(tmp_path, capsys, tally, made):
    run = copy_of(made[0], tmp_path / "copy")
    target = files_of(run)["pth"]
    write_pth(target, {name: tensor.numpy() for name, tensor in torch.load(target, weights_only=True).items()})
    assert call("main.py", run) == 0
    capsys.readouterr()
    whole, tried = target.read_bytes(), 0
    for _, _, damaged in damaged_forms(whole, 6):
        target.write_bytes(damaged)
        refused("main.py", run, capsys)
        tried += 1
    tally(KIND, tried)


def test_pth_files_of_others_are_checked_by_entry(tmp_path, capsys, tally, made):
    """`torch.save` writes no checksum of the whole file. What is accepted acts as before."""
    run = copy_of(made[0], tmp_path / "copy")
    target, settings = files_of(run)["pth"], Experiment.from_flat({"algorithm": "dqn", "hidden_sizes": [8, 8]}, "test")
    known = torch.load(target, weights_only=True)
    torch.save(known, target)
    check_pth(target.read_bytes(), target)
    whole, noticed, forms = target.read_bytes(), 0, list(damaged_forms(target.read_bytes(), 8))
    for _, _, damaged in forms:
        target.write_bytes(damaged)
        try:
            refused("main.py", run, capsys)
            noticed += 1
        except AssertionError:
            loaded = load_q_agent(target, settings).model.state_dict()
            assert all(torch.equal(loaded[name], tensor) for name, tensor in known.items())
    assert noticed >= len(forms) // 4
    target.write_bytes(whole)
    assert call("main.py", run) == 0
    tally(KIND, len(forms))


@pytest.mark.filterwarnings("ignore::drl.runs.folder.checkpoints.DamagedCheckpoint")
@pytest.mark.parametrize("role", ["state", "arrays"])
def test_an_older_checkpoint_is_used_if_there_is_one(role, made, tmp_path, tally):
    run, tried = copy_of(made[0], tmp_path / "copy"), 0
    for number, damage in some(list(enumerate([flipped, cut, swapped, empty] * 3)), 2):
        run = copy_of(made[0], tmp_path / "copy")
        latest, target = newest(run), files_of(run)[role]
        content = target.read_bytes()
        target.write_bytes(damage(content, random.Random(number)))
        assert call("resume", run) == 0
        assert (latest.parent / f"damaged_{latest.name}").is_dir()
        assert newest(run).name == latest.name  # written again
        tried += 1
    tally(KIND, tried)


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_anew(made, tmp_path, capsys, tally):
    run = copy_of(made[0], tmp_path / "copy")
    for folder in (run / "checkpoints").glob("step_*"):
        (folder / "state.json").write_bytes(b"")
    for _ in range(2):  # the second time too
        assert "no checkpoint can be read" in refused("resume", run, capsys)
    tally(KIND, 2)
