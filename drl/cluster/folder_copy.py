"""A folder on one machine, copied to another as it grows: only what is new is sent.

`Outgoing` lists the changes, `Incoming` makes them. Files arrive in a folder of their own and are moved into place when
all of a copy is there, checkpoints last. So the copy can be continued from, whenever the sender or the receiver dies.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from drl.core.errors import BadInput, UnusableFile, one_line
from drl.core.safe_files import ARRIVING

PIECE = 32 << 20  # bytes that are sent at once
LAST = ("card.json", "state.json")  # they name other files, which must be there before them


class Piece(NamedTuple):
    """The next bytes of a file."""

    path: str  # in the folder
    content: bytes
    old: int  # bytes that the receiver has, which are not sent


class Complete(NamedTuple):
    """The end of one copy: everything that the folder holds."""

    files: tuple[str, ...]
    folders: tuple[str, ...]


class UnsentPiece(NamedTuple):
    """A part of a file that is sent later, as it was when it was noted."""

    path: str
    source: Path  # a second name of the file, by which it is there even if it is replaced or deleted
    begin: int
    end: int
    old: int

    def read(self) -> Piece:
        """The bytes that are still to be sent."""
        with self.source.open("rb") as file:
            file.seek(self.begin)
            return Piece(self.path, file.read(self.end - self.begin), self.old)


class Sent(NamedTuple):
    """The state of a file at the receiver."""

    inode: int  # it is not given to another file, because `link` keeps it
    size: int
    time: int
    link: Path  # a second name of the file


class Outgoing:
    """The sender. Files are only replaced, appended to or deleted, never changed in between, as in the folder of a
    run. Names that begin with a dot are drafts and locks, and stay."""

    def __init__(self, folder: Path):
        self.folder: Path = folder
        self.links: Path = folder.with_name(f".{folder.name}.links")
        self.sent: dict[str, Sent] = {}  # by path
        self._links = 0  # so far

    def changes(self) -> list[UnsentPiece | Complete]:
        """The changes since the last call, all of which must have been sent. Nobody may write meanwhile."""
        waiting, listed, before = list[UnsentPiece | Complete](), _listed(self.folder), self.sent
        self.sent = {path: self._linked(path) for path in listed.files}
        for path, now in self.sent.items():
            then = before.get(path)
            if then is not None and then[:3] == now[:3]:
                continue
            old = then.size if then is not None and then.inode == now.inode and now.size > then.size else 0
            for begin in range(old, max(now.size, old + 1), PIECE):
                waiting.append(UnsentPiece(path, now.link, begin, min(begin + PIECE, now.size), old))
        for then in before.values():
            then.link.unlink()
        return [*waiting, listed]

    def _linked(self, path: str) -> Sent:
        self._links += 1
        link = self.links / str(self._links)
        link.parent.mkdir(parents=True, exist_ok=True)
        os.link(self.folder / path, link)
        stat = link.stat()
        return Sent(stat.st_ino, stat.st_size, stat.st_mtime_ns, link)

    def close(self) -> None:
        shutil.rmtree(self.links, ignore_errors=True)


class Incoming:
    """The receiver: `add` everything that the sender sends, in order."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._arriving = folder / ARRIVING
        self._old: dict[str, int] = {}  # path → bytes of the present file that stay
        shutil.rmtree(self._arriving, ignore_errors=True)  # of a copy that was broken off

    def add(self, part: Piece | Complete) -> list[str]:
        """The paths that are new or gone, at the end of a copy."""
        if isinstance(part, Complete):
            return self._move_into_place(part)
        target = self._arriving / _inside(part.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as file:
            file.write(part.content)
            file.flush()
            os.fsync(file.fileno())
        self._old[part.path] = part.old
        return []

    def _move_into_place(self, listed: Complete) -> list[str]:
        for folder in listed.folders:
            if not _is_new_checkpoint(folder, self.folder):
                (self.folder / _inside(folder)).mkdir(parents=True, exist_ok=True)
        arrived, before = list(self._old), _listed(self.folder)
        for path in sorted(arrived, key=lambda path: PurePosixPath(path).name in LAST):
            source, target = self._arriving / path, self.folder / path
            if self._old[path]:
                _continue(target, self._old[path], source.read_bytes())
            elif not _is_new_checkpoint(str(PurePosixPath(path).parent), self.folder):
                source.replace(target)
        for folder in listed.folders:  # whole, by their name
            if _is_new_checkpoint(folder, self.folder) and (self._arriving / folder).is_dir():
                (self.folder / folder).parent.mkdir(parents=True, exist_ok=True)
                (self._arriving / folder).replace(self.folder / folder)
        gone = [path for path in before.files if path not in listed.files]
        for folder in (each for each in before.folders if each not in listed.folders):
            _delete(self.folder / folder)
        for path in gone:
            (self.folder / path).unlink(missing_ok=True)
        shutil.rmtree(self._arriving, ignore_errors=True)
        self._old = {}
        return [*arrived, *gone]


def _listed(folder: Path) -> Complete:
    files, folders = [], []
    for parent, inside, names in os.walk(folder):
        inside[:] = sorted(name for name in inside if not name.startswith("."))
        at = Path(parent)
        folders += [(at / name).relative_to(folder).as_posix() for name in inside]
        plain = (at / name for name in sorted(names) if not name.startswith("."))
        files += [path.relative_to(folder).as_posix() for path in plain if path.is_file() and not path.is_symlink()]
    return Complete(tuple(files), tuple(folders))


def _inside(path: str) -> str:
    """A path that stays in its folder."""
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise UnusableFile(f"a node sent a file named {path!r:.80}, which leads out of the folder of its run")
    return path


def _is_new_checkpoint(path: str, folder: Path) -> bool:
    """Whether this is the folder of a checkpoint that must appear at once: its name says that it is whole."""
    return PurePosixPath(path).name.startswith("step_") and not (folder / path).is_dir()


def _continue(target: Path, size: int, content: bytes) -> None:
    with target.open("r+b") as file:
        file.truncate(size)
        file.seek(size)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _delete(folder: Path) -> None:
    """Rename first: half of a checkpoint must not look like one."""
    if folder.is_dir():
        aside = folder.with_name(f".deleted_{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.replace(aside)
        shutil.rmtree(aside, ignore_errors=True)


def parts_of(folder: Path) -> Iterator[Piece | Complete]:
    """A whole folder, for a receiver that has nothing."""
    listed = _listed(folder)
    for path in listed.files:
        size = (folder / path).stat().st_size
        for begin in range(0, max(size, 1), PIECE):
            yield UnsentPiece(path, folder / path, begin, min(begin + PIECE, size), 0).read()
    yield listed


class UrlCopy:
    """`URL/<experiment>/<run-id>`, updated file by file.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "experiment" / "run"
    >>> folder.mkdir(parents=True)
    >>> _ = (folder / "metrics.jsonl").write_text("{}")
    >>> copy = UrlCopy("memory://runs", folder)
    >>> copy.update(["metrics.jsonl"])
    []
    >>> copy.files.cat("/runs/experiment/run/metrics.jsonl")
    b'{}'
    """

    files: Any

    def __init__(self, url: str, folder: Path):
        self.folder = folder
        self.files, root = _open(url)
        self.root: str = f"{root.rstrip('/')}/{folder.parent.name}/{folder.name}"
        self.error: str = ""  # of the last attempt
        self._missing: list[str] = []

    def update(self, paths: Iterable[str]) -> list[str]:
        """Copy the files at these paths, and those that could not be copied before; delete those that are gone. Return
        the paths that could not be copied: training goes on without them."""
        wanted, self._missing = dict.fromkeys([*self._missing, *paths]), []
        for path in wanted:
            target = f"{self.root}/{path}"
            try:
                if (self.folder / path).is_file():
                    self.files.makedirs(target.rpartition("/")[0], exist_ok=True)
                    self.files.put_file(str(self.folder / path), target)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        self.files.rm_file(target)
            except Exception as error:  # every file system has its own
                self._missing.append(path)
                self.error = one_line(error)
        return self._missing


def check_url(url: str) -> None:
    """Raise if nothing can be written there, before anything is trained."""
    _open(url)


def _open(url: str):  # type: ignore[no-untyped-def]  # fsspec has no types
    import fsspec  # type: ignore[import-untyped]

    try:
        return fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise BadInput(f"results_url is {url!r}, which cannot be opened: {one_line(error)}") from None
