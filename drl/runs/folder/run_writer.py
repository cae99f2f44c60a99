"""Writing into a run's folder, even if the disk is full or the folder was moved or deleted.

Training never stops for it. If the folder cannot be written, the run is saved into another one, `fallback_dir` or one
in memory, and moved back as soon as its own folder can be written again.
"""

import contextlib
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from drl.core.errors import SaveFailed
from drl.core.log import Log
from drl.core.safe_files import write_atomically
from drl.runs.folder.checkpoints import Checkpoints
from drl.runs.folder.run_folder import Run
from drl.tracking.files import FileTracker

RETRY = 30.0  # seconds between two attempts to go back
LAST_TRIES = (0.0, 1.0, 2.0)  # seconds before each of the attempts at the end of a run
MEMORY = Path("/dev/shm")  # a folder in memory, where the system has one
TAKEN_ALONG = ("models", "agent", "tensorboard", "plots", "videos")


class SavingFailed(UserWarning):
    """A run's folder cannot be written; training goes on."""


class RunWriter:
    """Calls functions that write into `run.folder`. If one raises `OSError`, the run moves to another folder."""

    def __init__(
        self,
        run: Run,
        trackers: Iterable[object],
        fallback_dir: str | None = None,
        held: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ):
        self.run: Run = run
        self.home: Path = run.folder
        self.fallback_dir = fallback_dir
        self.held = held  # around every attempt: signals wait
        self.files: list[FileTracker] = [
            each for each in trackers if isinstance(each, FileTracker) and each.path.parent == run.folder
        ]
        self.error: OSError | None = None  # of the last attempt, if it failed
        self._tried = 0.0  # when going back was last tried
        self._warned = False
        self._made: Path | None = None  # the folder in memory

    @property
    def away(self) -> bool:
        """Whether the run is being written elsewhere than at home."""
        return self.run.folder != self.home

    def __call__(self, write: Callable[[], object], again: Callable[[], object] | None = None) -> bool:
        """Whether `write` succeeded: here, or elsewhere in a second attempt (`again`, if that differs)."""
        with self.held():
            try:
                self._stay_with_folder()
                write()
            except OSError as error:
                self.error = error
                if not self._leave(error):
                    return False
                try:
                    (again or write)()
                except OSError as later:
                    self.error = later
                    return False
            self.error = None
            return True

    def finish(self) -> None:
        """End a run. Raise if it is not completely on disk."""
        for pause in LAST_TRIES:
            if self.error is None and not self.away:
                return
            time.sleep(pause)
            self._go_back()
        if self.error is not None:
            raise SaveFailed(f"training ended, but saving into {self.run.folder} failed: {self.error}")
        if self.fallback_dir is None:
            raise SaveFailed(
                f"training ended, but {self.home} cannot be written; everything is in {self.run.folder}, which is in "
                "memory: copy it before the machine restarts, and use --fallback-dir next time"
            )

    def _stay_with_folder(self) -> None:
        """Follow a folder that was moved; write one again that was deleted."""
        if self.away and time.monotonic() - self._tried > RETRY:
            self._go_back()
        if self.run.is_there():
            return
        if (moved := self.run.moved_to()) is None:
            self._warn(f"{self.run.folder} was deleted; it is written again")
            self._move(self.run.folder)
            return
        self._warn(f"{self.run.folder} was moved to {moved}; the run goes on there")
        if not self.away:
            self.home = moved
        self._follow(moved)

    def _leave(self, error: OSError) -> bool:
        """Move to the fallback folder; False if that fails, too."""
        if self.away:
            return False
        what = f"saving into {self.home} failed ({error.strerror or error}); training goes on"
        try:
            if self.fallback_dir is None:
                self._made = Path(tempfile.mkdtemp(prefix="drl-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
                refuge = self._made
            else:
                refuge = Path(self.fallback_dir)
            self._move(refuge / self.home.parent.name / self.home.name)
        except OSError as other:
            self._warn(f"{what}, and saving is tried again. The fallback failed, too: {other}")
            return False
        self._warn(f"{what}. The run is in {self.run.folder} until there is room")
        self._tried = time.monotonic()
        return True

    def _go_back(self) -> None:
        self._tried = time.monotonic()
        if not self.away:
            return
        refuge = self.run.folder
        with contextlib.suppress(OSError):
            self._move(self.home)
            self.error = None
            self.run.checkpoints.take_over(Checkpoints(refuge / "checkpoints"))
            _copy_missing(refuge, self.home)
            shutil.rmtree(self._made or refuge)

    def _move(self, folder: Path) -> None:
        """Continue in another folder with all files that can be copied. Nothing changes if that fails."""
        self.run.write_into(folder)
        for part in TAKEN_ALONG:
            (folder / part).mkdir(exist_ok=True)
            if folder != self.run.folder:
                _copy(self.run.folder / part, folder / part)
        for file in self.files:
            write_atomically(folder / file.path.name, file.content())
        self._follow(folder)

    def _follow(self, folder: Path) -> None:
        for file in self.files:
            file.move(folder)
        self.run.move(folder)

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(text, SavingFailed, stacklevel=3)


class KeptTracker:
    """A file tracker whose rows are never lost: they wait in memory, or move with the run."""

    def __init__(self, tracker: FileTracker, writer: RunWriter):
        self.tracker: FileTracker = tracker
        self.writer: RunWriter = writer

    def write(self, log: Log) -> None:
        self.writer(lambda: self.tracker.write(log), again=self.tracker.flush)

    def flush(self) -> None:
        """Write what the tracker holds back."""
        self.writer(self.tracker.flush)

    def close(self) -> None:
        self.writer(self.tracker.close)


class BestModelCopy:
    """Copies a run's best policy to `<results>/models/best_model_<experiment>_<run>.pth`, again whenever a better one
    is saved. The copy includes the checksum of the original."""

    def __init__(self, run: Run):
        self.run = run
        name = f"best_model_{run.folder.parent.name}_{run.folder.name}.pth"
        self.path: Path = run.folder.parents[1] / "models" / name
        self._copied: tuple[int, int] | None = None  # time and inode of the file that was copied last

    def write(self, log: Log) -> None:
        source = self.run.models / "best_return_pi_ckpt.pth"
        try:
            stat = source.stat()
        except FileNotFoundError:  # there is no best model yet
            return
        if (stat.st_mtime_ns, stat.st_ino) != self._copied:
            write_atomically(self.path, source.read_bytes())
            self._copied = stat.st_mtime_ns, stat.st_ino

    def close(self) -> None:
        """Nothing is open."""


def _copy_missing(source: Path, target: Path) -> None:
    """Copy all other files of a folder, such as those of the user's trackers, without its checkpoints."""
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        if path.is_file() and relative.parts[0] != "checkpoints" and not (target / relative).exists():
            write_atomically(target / relative, path.read_bytes())


def _copy(source: Path, target: Path) -> None:
    """Copy the files that can be read; cards of agents last, after the weights that they name."""
    files = [path for path in sorted(source.rglob("*")) if path.is_file() and not path.is_symlink()]
    for path in sorted(files, key=lambda path: path.name == "card.json"):
        try:
            content = path.read_bytes()
        except OSError:
            continue
        write_atomically(target / path.relative_to(source), content)
        if path.name == "card.json":
            for old in (target / path.relative_to(source)).parent.glob("weights-*"):  # which no card names any more
                if not (path.parent / old.name).exists():
                    old.unlink()
