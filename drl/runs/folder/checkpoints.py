"""The checkpoints of a run: everything needed to continue it exactly.

```text
checkpoints/step_000000010000/    state.json, arrays.safetensors
checkpoints/rows/                 the rows of a replay, which checkpoints share
```
A checkpoint is written under another name and renamed when it is whole; before it is deleted it is renamed again. So a
folder with a valid name is a whole checkpoint, even if the process is killed. The next save removes leftovers.
"""

import contextlib
import re
import shutil
import warnings
from pathlib import Path

from drl.core.errors import BadInput, UnusableFile
from drl.core.safe_files import is_inside, remove_drafts, stay_inside, sync_folder, write_atomically
from drl.core.state_files import OtherFormat, RowFiles, StateDict, chunks_of, read_state, write_state

NAME, PATTERN = "step_{:012d}", re.compile(r"step_(\d{12,})")


class DamagedCheckpoint(UserWarning):
    """A checkpoint cannot be read; an older one is used."""


class Checkpoints:
    """The checkpoints of a run; damaged ones are set aside."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.row_files: RowFiles = RowFiles(folder / "rows")

    def stored(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        paths = [path for path in sorted(self.folder.glob("step_*")) if PATTERN.fullmatch(path.name)]
        return [path for path in paths if path.is_dir() and is_inside(self.folder, path)]

    def steps(self) -> list[int]:
        """The environment steps of whole checkpoints, oldest first."""
        return [int(path.name.removeprefix("step_")) for path in self.stored()]

    def save(self, env_steps: int, state: StateDict, keep: int) -> None:
        """Save one, then delete all but the newest `keep`."""
        whole, draft = self.folder / NAME.format(env_steps), self.folder / f".{NAME.format(env_steps)}"
        stay_inside(self.folder.parent, whole)
        if whole.exists():  # the final one may be at the same step as a periodic one
            return
        self._remove_leftovers()
        write_state(draft, state, self.row_files)
        sync_folder(self.row_files.folder)
        sync_folder(draft)
        draft.replace(whole)
        sync_folder(self.folder)
        for old in self.stored()[:-keep]:
            _delete(old)
        self.row_files.delete_others(set[str]().union(*map(chunks_of, self.stored())))

    def take_over(self, other: "Checkpoints") -> None:
        """Copy the newest checkpoint of another folder, unless it is here."""
        for newest in other.stored()[-1:]:
            whole, draft = self.folder / newest.name, self.folder / f".{newest.name}"
            if whole.exists():
                return
            self._remove_leftovers()
            for chunk in chunks_of(newest):
                write_atomically(self.row_files.folder / chunk, (other.row_files.folder / chunk).read_bytes())
            for file in newest.iterdir():
                write_atomically(draft / file.name, file.read_bytes())
            draft.replace(whole)
            sync_folder(self.folder)

    def load_newest(self) -> StateDict | None:
        """The state of the newest checkpoint that can be read; None if there is no checkpoint. Damaged ones are set
        aside if there is an older one."""
        damaged: dict[Path, UnusableFile] = {}
        for path in reversed(self.stored()):
            try:
                state = read_state(path, self.row_files)
            except OtherFormat:
                raise
            except UnusableFile as error:
                damaged[path] = error
                continue
            for other, reason in damaged.items():
                aside = other.with_name(f"damaged_{other.name}")
                warnings.warn(f"{reason}; it is set aside as {aside.name}", DamagedCheckpoint, stacklevel=2)
                with contextlib.suppress(OSError):
                    shutil.rmtree(aside, ignore_errors=True)
                    other.replace(aside)
            return state
        if damaged:
            raise UnusableFile(f"no checkpoint can be read: {next(iter(damaged.values()))}")
        return None

    def load(self, env_steps: int) -> StateDict:
        """The state of the checkpoint at this step."""
        path = self.folder / NAME.format(env_steps)
        if not path.is_dir():
            offered = ", ".join(map(str, self.steps())) or "none"
            raise BadInput(f"{self.folder} has no checkpoint at step {env_steps}; it has {offered}")
        return read_state(path, self.row_files)

    def _remove_leftovers(self) -> None:
        for stale in (*self.folder.glob(".step_*"), *self.folder.glob(".deleted_step_*")):
            shutil.rmtree(stale, ignore_errors=True)
        remove_drafts(self.row_files.folder)


def _delete(path: Path) -> None:
    """Rename first: a half deleted folder must not look like a checkpoint."""
    doomed = path.with_name(f".deleted_{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    path.replace(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
