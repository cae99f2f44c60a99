"""What changes in a folder arrives in its copy, and nothing else is sent."""

import random

import pytest

from drl.cluster import folder_copy
from drl.cluster.folder_copy import Complete, Incoming, Outgoing, Piece, UnsentPiece, parts_of
from drl.core.errors import UnusableFile
from drl.core.safe_files import write_atomically


def tree(folder):
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {
        name: path.is_file() and path.read_bytes()
        for name, path in paths.items()
        if not any(part.startswith(".") for part in name.split("/"))
    }


def sent(outgoing, incoming):
    """Bring the copy up to date; the bytes of every file that were sent."""
    sizes = {}
    for part in outgoing.changes():
        part = part.read() if isinstance(part, UnsentPiece) else part
        if isinstance(part, Piece):
            sizes[part.path] = sizes.get(part.path, 0) + len(part.content)
        incoming.add(part)
    return sizes


@pytest.fixture
def pair(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_copy, "PIECE", 10)
    (tmp_path / "run" / "plots").mkdir(parents=True)
    (tmp_path / "copy").mkdir()
    return Outgoing(tmp_path / "run"), Incoming(tmp_path / "copy")


def save(folder, step, rows):
    """A checkpoint, as the package writes it."""
    for name in rows:
        write_atomically(folder / "checkpoints" / "rows" / name, name.encode() * 7)
    write_atomically(folder / "checkpoints" / f"step_{step}" / "state.json", str(rows).encode())


def test_only_what_is_new_is_sent(pair):
    outgoing, incoming = pair
    run, copy = outgoing.folder, incoming.folder
    (run / "metrics.jsonl").write_bytes(b"a" * 25)
    write_atomically(run / "run.json", b"first")
    (run / "empty").touch()
    (run / ".lock").touch()
    save(run, 1, ["one"])
    assert sent(outgoing, incoming).keys() >= {"metrics.jsonl", "empty", "run.json", "checkpoints/rows/one"}
    assert tree(copy) == tree(run)
    assert not (copy / ".lock").exists()
    assert sent(outgoing, incoming) == {}
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b"b" * 12)
    write_atomically(run / "run.json", b"the second one is longer")
    save(run, 2, ["two"])
    assert set(sent(outgoing, incoming).items()) >= {("metrics.jsonl", 12), ("checkpoints/rows/two", 21)}
    assert tree(copy) == tree(run)
    (run / "checkpoints" / "step_1" / "state.json").unlink()
    (run / "checkpoints" / "step_1").rmdir()
    (run / "checkpoints" / "rows" / "one").unlink()
    assert sent(outgoing, incoming) == {}
    assert tree(copy) == tree(run)


def test_a_file_that_was_replaced_is_not_taken_for_one_that_grew(pair):
    """The system may give the inode of a file that was replaced to a new one."""
    outgoing, incoming = pair
    for size in range(1, 40):
        write_atomically(outgoing.folder / "run.json", bytes([size]) * size)
        sent(outgoing, incoming)
        assert tree(incoming.folder) == tree(outgoing.folder)


def test_what_changes_after_it_was_noted_is_sent_as_it_was(pair):
    outgoing, incoming = pair
    (outgoing.folder / "metrics.jsonl").write_bytes(b"a" * 25)
    write_atomically(outgoing.folder / "card.json", b"old")
    noted = outgoing.changes()
    with (outgoing.folder / "metrics.jsonl").open("ab") as file:
        file.write(b"b")
    write_atomically(outgoing.folder / "card.json", b"new")
    for part in noted:
        incoming.add(part.read() if isinstance(part, UnsentPiece) else part)
    assert tree(incoming.folder) == {"plots": False, "metrics.jsonl": b"a" * 25, "card.json": b"old"}
    assert sent(outgoing, incoming) == {"metrics.jsonl": 1, "card.json": 3}
    assert tree(incoming.folder) == tree(outgoing.folder)


def test_a_copy_that_is_broken_off_changes_nothing(pair):
    outgoing, incoming = pair
    rng = random.Random(0)
    save(outgoing.folder, 1, ["one"])
    sent(outgoing, incoming)
    before = tree(incoming.folder)
    (outgoing.folder / "metrics.jsonl").write_bytes(b"a" * 25)
    save(outgoing.folder, 2, ["two"])
    parts = outgoing.changes()
    for part in parts[: rng.randrange(1, len(parts) - 1)]:
        assert isinstance(part, UnsentPiece)
        incoming.add(part.read())
    assert tree(incoming.folder) == before
    again = Incoming(incoming.folder)
    assert not (incoming.folder / folder_copy.ARRIVING).exists()
    for part in parts_of(outgoing.folder):
        again.add(part)
    assert tree(incoming.folder) == tree(outgoing.folder)


def test_a_checkpoint_appears_after_all_that_it_needs(pair, monkeypatch):
    """Whenever the driver is killed, what looks like a checkpoint is one."""
    outgoing, incoming = pair
    seen = []
    replace = folder_copy.Path.replace

    def watched(source, target):
        seen.append(target.relative_to(incoming.folder).as_posix())
        return replace(source, target)

    (outgoing.folder / "metrics.jsonl").write_bytes(b"rows")
    save(outgoing.folder, 1, ["one"])
    monkeypatch.setattr(folder_copy.Path, "replace", watched)
    sent(outgoing, incoming)
    assert seen[-1] == "checkpoints/step_1"
    assert set(seen) == {"metrics.jsonl", "checkpoints/rows/one", "checkpoints/step_1"}


@pytest.mark.parametrize("path", ["/etc/passwd", "../other/run.json", "a/../../b", ""])
def test_a_node_cannot_write_elsewhere(pair, path):
    with pytest.raises(UnusableFile, match="leads out"):
        pair[1].add(Piece(path, b"", 0))
    with pytest.raises(UnusableFile, match="leads out"):
        pair[1].add(Complete((), (path,)))
