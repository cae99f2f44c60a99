"""A run folder that somebody forged: refused with exit 3 and one line; nothing outside is read or written.

tests/test_security.py has the cards; these are the other files, and every command that reads them.
"""

import io
import json
import os
import shutil
import socket
import zipfile
import zlib

import numpy as np
import pytest
import torch
from fault_cases import some
from safetensors import numpy as safetensors_numpy
from tiny_runs import call, copy_of, files_of, forge, forge_file, forget_older, newest, refused, train_tiny, tree

from drl.core.state_files import seal_pth

KIND = "hostile files"
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return train_tiny(tmp_path_factory.mktemp("made"))


@pytest.fixture
def place(made, tmp_path):
    """A fresh copy of the run each time it is called. `outside` must not change."""
    outside = tmp_path / "outside"
    shutil.copytree(made, outside)
    (outside / "precious.txt").write_text("mine")
    (outside / "videos" / "final_agent.mp4").write_bytes(b"private")
    before = tree(outside)

    def fresh():
        assert tree(outside) == before
        run = copy_of(made, tmp_path / "copy")
        forget_older(run)
        return run

    yield fresh
    assert tree(outside) == before


# What stands where a file should be.
def link_out(path, outside):
    path.symlink_to(outside)


def link_to_device(path, outside):
    path.symlink_to("/dev/zero")


def link_to_password(path, outside):
    path.symlink_to("/etc/passwd")


def link_to_nothing(path, outside):
    path.symlink_to(outside.parent / "new")


def link_to_itself(path, outside):
    path.symlink_to(path)


def pipe(path, outside):
    os.mkfifo(path)


def unix_socket(path, outside):
    os.chdir(path.parent)  # its address must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def directory(path, outside):
    path.mkdir()


def sparse(path, outside):
    with path.open("wb") as file:
        file.truncate(1 << 40)


PLACED = [link_out, link_to_device, link_to_password, link_to_nothing, link_to_itself]
PLACED += [pipe, unix_socket, directory, sparse]
READ = {
    "evaluate": ["card", "weights"],
    "convert": ["card", "weights"],
    "export": ["card", "weights"],
    "serve": ["card", "weights"],
    "resume": ["record", "config", "state", "arrays", "rows", "metrics", "table", "lock"],
    "fork": ["record", "config", "state", "arrays", "rows"],
    "doctor": ["record", "config", "metrics", "card", "weights"],
    "plot": ["metrics"],
    "report": ["metrics", "record", "config", "video"],
    "main.py": ["pth"],
}


def harmless(command, role, kind):
    """You name a .pth file yourself, also by a link; a lock has no content."""
    links = kind in (link_out, link_to_nothing, link_to_itself)
    return (role == "pth" and links) or (role == "lock" and kind is sparse)


@pytest.mark.parametrize("command", READ)
def test_a_file_is_a_plain_file_of_the_folder(command, place, made, tmp_path, capsys, tally, monkeypatch):
    cases = [(role, kind) for role in READ[command] for kind in PLACED if not harmless(command, role, kind)]
    cases = some(cases, 5)
    monkeypatch.chdir(tmp_path)
    for role, kind in cases:
        run = place()
        path = run / "videos" / "final_agent.mp4" if role == "video" else files_of(run)[role]
        path.unlink(missing_ok=True)
        kind(path, tmp_path / "outside" / path.relative_to(run))
        refused(command, run, capsys)
        os.chdir(tmp_path)
    tally(KIND, len(cases))


ROOMS = {
    "resume": ["agent", "models", "plots", "videos", "checkpoints", "checkpoints/rows", "checkpoints/STEP", "wandb"],
    "fork": ["checkpoints", "checkpoints/rows", "checkpoints/STEP"],
    "evaluate": ["agent"],
    "convert": ["agent"],
    "export": ["agent"],
    "serve": ["agent"],
    "film": ["videos"],
    "doctor": ["agent", "doctor"],
    "plot": ["plots"],
    "report": ["videos"],
}


@pytest.mark.parametrize("command", ROOMS)
def test_a_folder_is_a_folder_of_the_run(command, place, tmp_path, capsys, tally):
    for room in some(ROOMS[command], 2):
        run = place()
        inner = room.replace("STEP", newest(run).name)
        shutil.rmtree(run / inner, ignore_errors=True)
        (run / inner).symlink_to(tmp_path / "outside" / inner)
        assert "leads out of" in refused(command, run, capsys)
    tally(KIND, len(some(ROOMS[command], 2)))


def header(text, body=b""):
    """A safetensors file with any header."""
    return len(text).to_bytes(8, "little") + text.encode() + body


TENSORS = [
    b"",
    (1 << 60).to_bytes(8, "little") + b"{}",
    header(DEEP),
    header('{"x":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}', b"1234"),
    header('{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4000000000]}}', b"1234"),
    header('{"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'),
    header('{"x":{"dtype":"X99","shape":[1],"data_offsets":[0,4]}}', b"1234"),
    header('{"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', b"1234"),
    header("[]"),
]


@pytest.mark.parametrize(
    ("role", "command"),
    [("weights", "evaluate"), ("weights", "convert"), ("arrays", "resume"), ("arrays", "fork"), ("rows", "resume")],
)
def test_arrays_that_lie_are_refused(role, command, place, capsys, tally):
    for content in some(TENSORS, 2):
        run = place()
        forge_file(run, role, b"-" + content if role == "rows" else content)
        refused(command, run, capsys)
    tally(KIND, len(some(TENSORS, 2)))


def zipped(content, claimed):
    return b"z" + claimed.to_bytes(8, "little") + zlib.compress(content, 9)


ROWS = [
    zipped(bytes(50 << 20), 1 << 62),
    zipped(bytes(50 << 20), 100),
    zipped(bytes(50 << 20), 50 << 20),
    b"z" + (10).to_bytes(8, "little") + b"garbage",
    b"-" + safetensors_numpy.save({"rows": np.zeros((3, 2), np.float32)}),
    b"-" + safetensors_numpy.save({"rows": np.zeros((10, 1000), np.int64)}),
    b"-" + safetensors_numpy.save({"a": np.zeros(10), "b": np.zeros(4)}),
    b"-" + safetensors_numpy.save({}),
    b"-" + safetensors_numpy.save({"rows": np.array(1.0)}),
]


@pytest.mark.parametrize("command", ["resume", "fork"])
def test_rows_that_lie_are_refused(command, place, capsys, tally):
    for content in some(ROWS, 2):
        run = place()
        forge_file(run, "rows", content)
        refused(command, run, capsys)
    tally(KIND, len(some(ROWS, 2)))


def changed(*path, to):
    """A change of `state.json` at a place inside it."""

    def change(state):
        inner = state
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = to

    return change


CHUNK = "0-10-0000000000000000.rows"
RING = ("trainer", "buffer", "rows", "rows", 0)
STATES = [
    changed("trainer", to=None),
    changed("trainer", to=[]),
    changed("trainer", to={"$array": "nothing"}),
    changed("trainer", "obs", to={"$array": ["x"]}),
    changed("trainer", "obs", to={"$fields": [["a", 1]], "$shape": [10**12]}),
    changed("trainer", "obs", to={"$fields": 7, "$shape": [1]}),
    changed("trainer", "stats", "counters", to=["a", "b", "c", "d"]),
    changed("trainer", "stats", "counters", to=[1]),
    changed("trainer", "stats", "recent", to=[[1] * 50]),
    changed("trainer", "agent", to={}),
    changed("trainer", "algorithm", "target", to="x"),
    changed("trainer", "buffer", "counters", to=[10**400] * 5),
    changed("trainer", "buffer", "capacity", to=10**12),
    changed("trainer", "envs", to={}),
    changed("trainer", "envs", "seed", to="x"),
    changed("best", to=7),
    changed(*RING, "first", to=-(10**30)),
    changed(*RING, "chunks", to=[["/etc/passwd", 0, 10, ""]]),
    changed(*RING, "chunks", to=[["../../../../outside/precious.txt", 0, 10, ""]]),
    changed(*RING, "chunks", to=[[f"../../../../outside/checkpoints/rows/{CHUNK}", 0, 10, ""]]),
    changed(*RING, "chunks", to=[["a\0b", 0, 10, ""]]),
    changed(*RING, "chunks", to=[["x"]]),
    changed(*RING, "chunks", to="x"),
]


@pytest.mark.parametrize("command", ["resume", "fork"])
def test_a_state_that_lies_is_refused(command, place, capsys, tally):
    for change in some(STATES, 4):
        run = place()
        path = files_of(run)["state"]
        state = json.loads(path.read_text())["state"]
        change(state)
        forge(path, state=state)
        before = tree(run)
        refused(command, run, capsys)
        assert tree(run) == before
        assert list(run.parent.iterdir()) == [run]  # no new run
    tally(KIND, len(some(STATES, 4)))


@pytest.mark.parametrize("command", ["resume", "fork"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_checkpoints_of_weights_that_are_not_numbers_are_refused(command, value, place, capsys, tally):
    run = place()
    arrays = safetensors_numpy.load_file(files_of(run)["arrays"])
    name = next(name for name in arrays if name.startswith("/trainer/agent/model/"))
    arrays[name] = np.full_like(arrays[name], value)
    forge_file(run, "arrays", safetensors_numpy.save(arrays))
    assert "not finite numbers" in refused(command, run, capsys)
    tally(KIND)


SETTINGS = [
    b"a: &a [1]\nenv: *a",
    b"x: !!python/object/apply:os.system ['true']",
    b"[" * 5000,
    b"- 1\n- 2",
    b"5: 6",
    b"learning_rate: 1e999",
    b"seed: 1" + b"0" * 6000,
    b"num_envs: -3",
    b"plugins: 5",
    b"plugins: [[1]]",
    b"env: [1]",
    b"env_kwargs: 5",
    b"hidden_sizes: {a: 1}",
    b"unheard_of: 1",
    b"\xff\xfe\x00",
]


@pytest.mark.parametrize("command", ["resume", "fork"])
def test_settings_that_make_no_sense_are_refused(command, place, capsys, tally):
    for content in some(SETTINGS, 3):
        run = place()
        known = files_of(run)["config"].read_bytes()
        kept = b"".join(line + b"\n" for line in known.splitlines() if line.split(b":")[0] != content.split(b":")[0])
        forge_file(run, "config", content if content[:1] in b"[-5\xff" else kept + content)
        refused(command, run, capsys)
    tally(KIND, len(some(SETTINGS, 3)))


RECORDS = [
    {"seed": "x"}, {"seed": 1.5}, {"status": 5}, {"resumed": 7}, {"seed_batch": 5}, {"seed_batch": ["../outside"]},
    {"seed_batch": ["/etc"]}, {"seed_batch": [[]]}, {"format": 99}, {"format": []}, {"config_checksum": 5},
    {"started": float("nan")},
]  # fmt: skip


def test_records_that_make_no_sense_are_refused(place, capsys, tally):
    for changes in some(RECORDS, 4):
        run = place()
        forge(files_of(run)["record"], **changes)
        refused("resume", run, capsys)
    for text in (DEEP, "[]", "5", '{"format": 2}', '{"a": ' + DEEP + "}"):
        run = place()
        files_of(run)["record"].write_text(text)
        refused("resume", run, capsys)
    tally(KIND, len(some(RECORDS, 4)) + 5)


@pytest.mark.parametrize("command", ["doctor", "plot", "report", "resume"])
def test_metrics_that_make_no_sense_are_refused(command, place, capsys, tally):
    rows = [DEEP, "[1]", "5", "1" * 6000, '{"a": ' + DEEP + "}", "\0", '{"a": 1} {"b": 2}']
    for row in some(rows, 2):
        run = place()
        path = files_of(run)["metrics"]
        path.write_text(row + "\n" + path.read_text())
        refused(command, run, capsys)
    tally(KIND, len(some(rows, 2)))


def pth(entries, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return buffer.getvalue()


def saved(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def overlapping(content):
    """A zip whose directory lists one large entry a hundred times."""
    packed = pth([("archive/data/0", content)])
    start, end = packed.index(b"PK\1\2"), packed.index(b"PK\5\6")
    listed = packed[start:end] * 100
    numbers = (100).to_bytes(2, "little") * 2 + len(listed).to_bytes(4, "little")
    return packed[:start] + listed + packed[end : end + 8] + numbers + packed[end + 16 :]


class Evil:
    def __reduce__(self):
        return (os.system, ("touch ran",))


PTHS = {
    "text": lambda: b"not a model",
    "bomb": lambda: pth([("archive/data.pkl", bytes(50 << 20))], zipfile.ZIP_DEFLATED),
    "overlapping": lambda: overlapping(bytes(1 << 20)),
    "nested": lambda: pth([("archive/data.pkl", pth([("a", b"b")]))]),
    "empty": lambda: pth([]),
    "code": lambda: saved(Evil()),
    "code in a dict": lambda: saved({"a": Evil()}),
    "claims": lambda: saved({"head.advantage.weight": torch.zeros(1).expand(10**10)}),
    "sparse": lambda: saved({"a": torch.zeros(10**6, 10**6, layout=torch.sparse_coo)}),
    "nan": lambda: saved({"head.advantage.weight": torch.full((2, 8), torch.nan)}),
    "huge": lambda: saved({"head.advantage.weight": torch.full((2, 8), 1e300, dtype=torch.float64)}),
    "complex": lambda: saved({"head.advantage.weight": torch.zeros((2, 8), dtype=torch.complex64)}),
    "numbers": lambda: saved({1: torch.zeros(3)}),
    "list": lambda: saved([torch.zeros(3)]),
    "after the end": lambda: saved({"a": torch.zeros(3)}) + b"more",
}


@pytest.mark.parametrize("sealed", [False, True])
def test_pth_files_that_lie_are_refused(sealed, place, tmp_path, capsys, tally, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, cases = place(), some([name for name in PTHS if not (sealed and name == "after the end")], 4)
    for name in cases:
        content = PTHS[name]()
        files_of(run)["pth"].write_bytes(seal_pth(content) if sealed else content)
        refused("main.py", run, capsys)
        assert not (tmp_path / "ran").exists()
    tally(KIND, len(cases))


def test_the_run_itself_is_fine(place):
    for command in ("evaluate", "plot", "main.py", "resume"):
        assert call(command, place()) == 0
