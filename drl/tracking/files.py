"""Logs as files: `metrics.jsonl`, the source of all plots and reports; `episodes.jsonl`, finished episodes as seeds and
actions; `progress.csv` for spreadsheets.

Each tracker continues an existing file. A resumed run repeats some learning steps. Rows at or after the first new log's
learning step are dropped first, so an interrupted run leaves the same rows as an uninterrupted one.

A row that cannot be written waits in memory. The next `flush` writes it, after `move` into another folder.

A line of `episodes.jsonl` holds the episodes of a learning step, `[number, env_index, seed, length, return]` for each,
and their concatenated actions, compressed. If attributes of the environments were set, `changes` lists what was set and
`changed` the place in that list for each episode. An episode whose seed is unknown is not recorded.
"""

import base64
import contextlib
import csv
import io
import itertools
import json
import math
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from drl.core.errors import BadInput, UnusableFile
from drl.core.log import Change, Episode, Log, Played
from drl.core.safe_files import read_inside, write_atomically
from drl.core.specs import Array, PlainDict

Row = PlainDict  # one line of metrics.jsonl
MOST_METRICS = 1 << 30  # bytes
EPISODES = "episodes.jsonl"
CRASH = "crash.json"  # the episode in which an environment failed
MOST_ACTIONS = 1 << 28  # most bytes of actions in one line


class FileTracker(ABC):
    """Appends a row to a file for each log."""

    def __init__(self, path: str | Path):
        self.path: Path = Path(path)
        self.waiting: list[Row] = []  # not written yet
        self._file: IO[bytes] | None = None
        self._size = 0  # bytes of whole rows in the file

    def write(self, log: Log) -> None:
        row = self._row(log)
        if row is not None:
            self.waiting.append(row)
        self.flush()

    def flush(self) -> None:
        """Write the waiting rows. If that fails, none of them is in the file."""
        if not self.waiting:
            return
        try:
            content = self._open_for(self.waiting)
            assert self._file is not None
            left = memoryview(content)
            while left:  # a full disk takes a part, then raises
                left = left[self._file.write(left) :]
        except BaseException:
            if self._file is not None:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file.fileno(), self._size)
            self._drop_file()
            raise
        self._size += len(content)
        self.waiting = []

    def content(self) -> bytes:
        """Return what was written, even if the file was deleted since."""
        if self._file is not None:
            return os.pread(self._file.fileno(), self._size, 0)
        return self.path.read_bytes() if self.path.is_file() else b""

    def move(self, folder: Path) -> None:
        """Continue in another folder, which already has a copy of the file."""
        self._drop_file()
        self.path = folder / self.path.name

    def close(self) -> None:
        self.flush()
        self._drop_file()

    def _drop_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _continue(self, size: int) -> None:
        """Open the file and cut it to its first `size` bytes."""
        self._file, self._size = self.path.open("r+b" if self.path.exists() else "w+b", buffering=0), size
        self._file.truncate(size)
        self._file.seek(size)

    @abstractmethod
    def _row(self, log: Log) -> Row | None: ...

    @abstractmethod
    def _open_for(self, rows: list[Row]) -> bytes:
        """Open the file if necessary and return the bytes to append for these rows."""


class JsonLines(FileTracker):
    """One JSON object per line, each with its `learning_steps`."""

    def _open_for(self, rows: list[Row]) -> bytes:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            old = _json_rows(self.path) if self.path.exists() else []
            first = rows[0]["learning_steps"]
            earlier = itertools.takewhile(lambda line: line[1].get("learning_steps", 0) < first, old)
            self._continue(sum(len(line) for line, _ in earlier))
        return b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)


class JsonlTracker(JsonLines):
    """One flat JSON object per log, plus its finished episodes as `[return, length, terminated, success]`. `success` is
    null if the environment does not define success.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "metrics.jsonl"
    >>> tracker = JsonlTracker(path)
    >>> tracker.write(Log(env_steps=8, episodes=0, learning_steps=1, learn={"loss": float("nan")}))
    >>> tracker.close()
    >>> path.read_text()
    '{"env_steps": 8, "episodes": 0, "learning_steps": 1, "learn/loss": null, "finished": []}\\n'
    """

    def _row(self, log: Log) -> Row:
        row: Row = {name: _json_number(value) for name, value in log.flat().items()}
        ends = [(each, None if each.success is None else bool(each.success)) for each in log.finished]
        row["finished"] = [
            [_json_number(each.episode_return), int(each.length), bool(each.terminated), success]
            for each, success in ends
        ]
        return row


class CsvTracker(FileTracker):
    """One line per log. A new column is added on the right and stays empty in earlier lines.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "progress.csv"
    >>> tracker = CsvTracker(path)
    >>> tracker.write(Log(env_steps=8, episodes=0, learning_steps=1))
    >>> tracker.write(Log(env_steps=16, episodes=1, learning_steps=2, learn={"loss": 0.5}))
    >>> tracker.close()
    >>> print(path.read_text().strip())
    env_steps,episodes,learning_steps,learn/loss
    8,0,1,
    16,1,2,0.5
    """

    def __init__(self, path: str | Path):
        super().__init__(path)
        self.columns: list[str] = []

    def _row(self, log: Log) -> Row:
        return {name: value.item() if hasattr(value, "item") else value for name, value in log.flat().items()}

    def _open_for(self, rows: list[Row]) -> bytes:
        fresh = self._file is None
        lines = self._lines_before(rows[0]["learning_steps"]) if fresh else []
        columns = self.columns if not fresh else lines[0] if lines else []
        new = [name for name in dict.fromkeys(itertools.chain.from_iterable(rows)) if name not in columns]
        if fresh or new:
            self._rewrite([*columns, *new], lines[1:] if fresh else self._read()[1:])
        return "".join(_csv_line([row.get(name, "") for name in self.columns]) for row in rows).encode()

    def _rewrite(self, columns: list[str], lines: list[list[str]]) -> None:
        """Replace the whole file atomically: a kill leaves either the old file or the new one."""
        padded = [[*line, *[""] * (len(columns) - len(line))] for line in lines]
        content = "".join(_csv_line(line) for line in [columns, *padded]).encode()
        write_atomically(self.path, content)
        self._drop_file()
        self._continue(len(content))
        self.columns = columns

    def _read(self) -> list[list[str]]:
        """Header and rows, without an incomplete last line."""
        text = self.content().decode(errors="replace")
        return list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))

    def _lines_before(self, learning_steps: int) -> list[list[str]]:
        lines = self._read() if self.path.exists() else []
        if not lines:
            return []
        try:
            at = lines[0].index("learning_steps")
            return [lines[0], *(line for line in lines[1:] if int(line[at]) < learning_steps)]
        except (ValueError, IndexError) as error:
            text = f"{self.path} exists but was not written by drl ({error}); move it away or give another path"
            raise UnusableFile(text) from error


def _csv_line(values: Sequence[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


class EpisodeTracker(JsonLines):
    """Writes the episodes of every log that can be replayed."""

    def _row(self, log: Log) -> Row | None:
        first = log.episodes - len(log.finished) + 1
        numbered = [(first + i, episode) for i, episode in enumerate(log.finished) if episode.played is not None]
        return {"learning_steps": log.learning_steps} | packed(numbered) if numbered else None


def read_metrics(path: str | Path) -> list[Row]:
    """Every row of a `metrics.jsonl`. An incomplete last line is skipped, so the file may still be growing."""
    path = Path(path)
    lines = read_inside(path.parent, path, MOST_METRICS).splitlines(keepends=True)
    try:  # one call for all lines takes a third less time than one per line
        rows = json.loads(b"[" + b",".join(lines) + b"]")
        if len(rows) == len(lines) and lines[-1].endswith(b"\n") and all(isinstance(row, dict) for row in rows):
            return list(rows)
    except (ValueError, IndexError, RecursionError):
        pass  # parse line by line below, to report the bad line
    return [row for _, row in _json_rows(path)]


def evaluation_in(row: Row) -> PlainDict:
    """Return the numbers of a row's evaluation by name; empty without an evaluation."""
    return {name.partition("/")[2]: value for name, value in row.items() if name.startswith("evaluation/")}


def _json_rows(path: Path) -> list[tuple[bytes, Row]]:
    with path.open("rb") as file:
        lines = file.readlines()
    rows = []
    for i, line in enumerate(lines):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("torn")
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            if i == len(lines) - 1:
                break
            raise UnusableFile(
                f"{path} line {i + 1} is not a JSON object ({error}); only the last line may be incomplete. "
                f"Delete that line to read the rest"
            ) from error
        rows.append((line, row))
    return rows


def _json_number(value: float) -> float | int | None:
    """Return a plain number, or None for NaN and infinity, which JSON lacks."""
    number = value.item() if hasattr(value, "item") else value
    return number if math.isfinite(number) else None


class RecordedEpisode(NamedTuple):
    """An episode that can be replayed."""

    number: int  # in the order in which episodes ended, from 1; 0: it did not end
    env_index: int
    episode_return: float
    played: Played


def read_episode(folder: Path, which: str) -> RecordedEpisode:
    """Read a recorded episode of a run: `best`, `worst`, `last`, `crash` or a number."""
    path = folder / (CRASH if which == "crash" else EPISODES)
    if which == "crash" and not path.is_file():
        raise BadInput(f"{folder} has no {CRASH}: no environment failed in it")
    rows = read_metrics(path) if path.is_file() else []
    try:
        recorded = [(entry, row) for row in rows for entry in row["episodes"]]
        if which == "crash":
            entry, row = recorded[0]
        elif not recorded:
            raise BadInput(
                f"{folder} has no recorded episodes; only sync and async environments record them, with "
                "--record-episodes; train with --vectorization sync (not available for multi-agent games)"
            )
        elif which in ("best", "worst"):
            sign = 1 if which == "best" else -1
            entry, row = max(recorded, key=lambda each: -math.inf if each[0][4] is None else sign * each[0][4])
        elif which == "last":
            entry, row = recorded[-1]
        elif not which.isdecimal():
            raise BadInput(f"--episode is {which!r}; expected best, worst, last, crash or a number")
        elif not (numbered := [each for each in recorded if each[0][0] == int(which)]):
            first, last = recorded[0][0][0], recorded[-1][0][0]
            raise BadInput(f"{folder} has recorded the episodes {first} to {last}, not {which}")
        else:
            entry, row = numbered[0]
        return unpacked(row)[row["episodes"].index(entry)]
    except BadInput:
        raise
    except (KeyError, TypeError, IndexError, ValueError, OverflowError, zlib.error) as error:
        raise UnusableFile(f"{path} does not hold episodes ({type(error).__name__}: {error})") from None


def packed(episodes: Sequence[tuple[int, Episode]]) -> PlainDict:
    """Return numbered episodes as plain data."""
    played = [episode.played for _, episode in episodes if episode.played is not None]
    actions = np.concatenate([each.actions for each in played])
    if actions.dtype.kind in "iu" and actions.size:  # the smallest type gives the smallest file
        actions = actions.astype(np.result_type(*map(np.min_scalar_type, (actions.min(), actions.max()))))
    row: PlainDict = {
        "episodes": [
            [number, episode.env_index, each.seed, len(each.actions), _json_number(float(episode.episode_return))]
            for (number, episode), each in zip(episodes, played, strict=True)
        ],
        "dtype": actions.dtype.str,
        "shape": list(actions.shape[1:]),
        "actions": base64.b64encode(zlib.compress(np.ascontiguousarray(actions).tobytes(), 1)).decode(),
    }
    if any(each.changes for each in played):
        kinds: list[tuple[Change, ...]] = []  # most episodes have the same
        for each in played:
            if each.changes not in kinds:
                kinds.append(each.changes)
        row["changes"] = [[list(change) for change in changes] for changes in kinds]
        row["changed"] = [kinds.index(each.changes) for each in played]
    return row


def unpacked(row: Row) -> list[RecordedEpisode]:
    """Return the episodes of one line."""
    content = zlib.decompressobj().decompress(base64.b64decode(row["actions"], validate=True), MOST_ACTIONS)
    dtype, shape = np.dtype(str(row["dtype"])), tuple(int(size) for size in row["shape"])
    if dtype.kind not in "iufb":
        raise ValueError(f"actions of type {dtype}")
    actions: Array = np.frombuffer(content, dtype).reshape(-1, *shape)
    if dtype.kind in "iu":
        actions = actions.astype(np.int64)
    changes = [tuple(_change(each) for each in changes) for changes in row.get("changes", [[]])]
    changed = row.get("changed", [0] * len(row["episodes"]))
    episodes, begin = [], 0
    for (number, env_index, seed, length, total), kind in zip(row["episodes"], changed, strict=True):
        end = begin + int(length)
        if not begin <= end <= len(actions):
            raise ValueError(f"{len(actions)} actions are too few for its episodes")
        recorded = Played(int(seed), actions[begin:end], changes[kind])
        episodes.append(RecordedEpisode(int(number), int(env_index), math.nan if total is None else total, recorded))
        begin = end
    return episodes


def _change(plain: Sequence[object]) -> Change:
    """A change of a file, which may hold anything."""
    after, name, value = plain
    if type(after) is not int or type(name) is not str:
        raise ValueError(f"a change is {plain!r:.80}")
    return Change(after, name, value)


def write_crash(folder: Path, episode: Episode) -> None:
    """Save the episode in which an environment failed."""
    write_atomically(folder / CRASH, json.dumps(packed([(0, episode)])).encode() + b"\n")
