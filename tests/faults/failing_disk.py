"""A file system that fails at the k-th operation that changes it: the process is killed, or the disk is full."""

import builtins
import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHANGES = ("open", "replace", "rename", "fsync", "unlink", "remove", "rmdir", "mkdir", "truncate")
NEED_ROOM = ("open", "replace", "rename", "fsync", "mkdir", "write")


class Killed(BaseException):
    """What follows never happens."""


class Disk:
    """Counts the operations below `folder`. From number `fails_at` on, `fault` happens:

    killed: nothing is changed any more, not by `finally` either. A write leaves half of its bytes.
    full: whatever needs room raises ENOSPC, and half of a write arrives; deleting works.
    broken: this one operation raises EIO.
    """

    def __init__(self, folder: Path, fault: str = "killed", fails_at: int | None = None):
        self.folder, self.fault, self.fails_at = str(folder), fault, fails_at
        self.operations: list[str] = []

    def fails(self, name: str) -> bool:
        """Counts an operation; raises if nothing of it happens. True: half of it happens, then it raises."""
        self.operations.append(name)
        number = len(self.operations) - 1
        if self.fails_at is None or number < self.fails_at:
            return False
        if self.fault == "full" and name not in NEED_ROOM:
            return False
        if self.fault == "broken" and number > self.fails_at:
            return False
        if name == "write" and (self.fault != "killed" or number == self.fails_at):
            return True
        raise self.error()

    def error(self) -> BaseException:
        if self.fault == "killed":
            return Killed()
        code = errno.ENOSPC if self.fault == "full" else errno.EIO
        return OSError(code, os.strerror(code))

    def concerns(self, path: int | str | os.PathLike[str]) -> bool:
        name = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(os.fspath(path))
        return name.startswith(self.folder)


class CountedFile:
    """A file without a buffer, so that every write is an operation."""

    def __init__(self, disk: Disk, path: Path, mode: str):
        self.disk, self.raw = disk, io.FileIO(path, mode.replace("b", "").replace("t", ""))

    def write(self, content: bytes | str) -> int:
        data = content.encode() if isinstance(content, str) else content
        half = self.disk.fails("write")
        self.raw.write(data[: len(data) // 2] if half else data)
        if half:
            raise self.disk.error()
        return len(content)

    def truncate(self, size: int) -> int:
        self.disk.fails("truncate")
        return self.raw.truncate(size)

    def flush(self) -> None:
        """Nothing is held back."""

    def __getattr__(self, name: str) -> object:
        return getattr(self.raw, name)

    def __enter__(self) -> "CountedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()


@contextmanager
def failing(disk: Disk) -> Iterator[Disk]:
    """Python's own functions for files, replaced."""
    kept = {name: getattr(os, name) for name in CHANGES}
    real_open = builtins.open

    def counted(name: str):
        def operation(path, *arguments, **options):
            reads = name == "open" and not (arguments and arguments[0] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            if not reads and ("dir_fd" in options or disk.concerns(path)):
                disk.fails(name)
            return kept[name](path, *arguments, **options)

        return operation

    def counted_open(file, mode="r", *arguments, **options):
        if mode.strip("bt") == "r" or not disk.concerns(file):
            return real_open(file, mode, *arguments, **options)
        disk.fails("open")
        return CountedFile(disk, file, mode)

    try:
        for name in CHANGES:
            setattr(os, name, counted(name))
        builtins.open = io.open = counted_open
        yield disk
    finally:
        for name, function in kept.items():
            setattr(os, name, function)
        builtins.open = io.open = real_open
