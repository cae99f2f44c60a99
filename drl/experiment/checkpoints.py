"""The checkpoints of a run: everything needed to continue it exactly.

```text
checkpoints/step_000000010000/    state.json, arrays.safetensors
checkpoints/rows/                 the rows of a replay, which checkpoints share
```
A checkpoint is written under another name and renamed when it is whole; before it is deleted it is renamed back. So a
folder with a valid name is a whole checkpoint, whenever the process is killed.
"""

import contextlib
import os
import shutil
import warnings
from pathlib import Path

from drl.core.errors import UnusableFile
from drl.core.row_log import RowFiles
from drl.core.safe_files import is_inside, stay_inside
from drl.core.state_files import OtherFormat, StateDict, chunks_of, read_state, write_state

NAME = "step_{:012d}"


class DamagedCheckpoint(UserWarning):
    """A checkpoint cannot be read; an older one is used."""


class Checkpoints:
    def __init__(self, folder: Path):
        self.folder = folder
        self.row_files = RowFiles(folder / "rows")

    def stored(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        return [path for path in sorted(self.folder.glob("step_*")) if path.is_dir() and is_inside(self.folder, path)]

    def save(self, env_steps: int, state: StateDict, keep: int) -> None:
        """Save one, then delete all but the newest `keep`."""
        whole, draft = self.folder / NAME.format(env_steps), self.folder / f".{NAME.format(env_steps)}"
        stay_inside(self.folder.parent, whole)
        if whole.exists():  # the final one may be at the same step as a periodic one
            return
        write_state(draft, state, self.row_files)
        draft.replace(whole)
        _sync(self.folder)
        for old in self.stored()[:-keep]:
            _delete(old)
        needed: set[str] = set()
        for kept in self.stored():
            needed |= chunks_of(kept)
        self.row_files.delete_others(needed)

    def load_newest(self) -> StateDict | None:
        """The state of the newest checkpoint that can be read; None if there is none. Damaged ones are set aside."""
        for path in reversed(self.stored()):
            try:
                return read_state(path, self.row_files)
            except OtherFormat:
                raise
            except UnusableFile as error:
                aside = path.with_name(f"damaged_{path.name}")
                warnings.warn(f"{error}; it is set aside as {aside.name}", DamagedCheckpoint, stacklevel=2)
                with contextlib.suppress(OSError):
                    path.replace(aside)
        return None

    def load(self, env_steps: int) -> StateDict:
        """The state of the checkpoint at this step."""
        path = self.folder / NAME.format(env_steps)
        if not path.is_dir():
            offered = ", ".join(str(int(each.name.removeprefix("step_"))) for each in self.stored()) or "none"
            raise UnusableFile(f"{self.folder} has no checkpoint at step {env_steps}; it has {offered}")
        return read_state(path, self.row_files)


def _delete(path: Path) -> None:
    """Rename first: a folder that is only half deleted must not look like a checkpoint."""
    doomed = path.with_name(f".deleted_{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    path.replace(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Make a rename survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
