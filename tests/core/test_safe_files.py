"""New files: whole or not at all, and never in the place of another one."""

import errno
import os

import pytest

from drl.core.safe_files import draft_of, write_new


@pytest.fixture(params=["hard links", "no hard links"])
def folder(request, tmp_path, monkeypatch):
    if request.param == "no hard links":

        def refuse(*_):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", refuse)
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_is_written(folder):
    write_new(folder / "file", b"new")
    assert (folder / "file").read_bytes() == b"new"
    assert names(folder) == ["file"]


@pytest.mark.parametrize("kind", ["file", "link", "link to nothing", "folder"])
def test_what_appears_while_it_is_written_stays(folder, kind):
    """Another process takes the name after every check and before the end."""
    path, target = folder / "file", folder / "target"
    take = {
        "file": lambda: path.write_bytes(b"theirs"),
        "link": lambda: (target.write_bytes(b"theirs"), path.symlink_to(target)),
        "link to nothing": lambda: path.symlink_to(target),
        "folder": path.mkdir,
    }
    with pytest.raises(FileExistsError), draft_of(path, overwrite=False):
        take[kind]()
    assert names(folder) == (["file", "target"] if kind == "link" else ["file"])
    if kind in ("file", "link"):
        assert path.read_bytes() == b"theirs"


def test_a_copy_that_fails_is_removed(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "link", fails)
    with pytest.raises(OSError, match="broken"), draft_of(tmp_path / "file", overwrite=False):
        monkeypatch.setattr(os, "fsync", fails)
    assert names(tmp_path) == []
