"""Logs as files: `metrics.jsonl`, the source of all plots and reports, and `progress.csv` for spreadsheets.

Both continue an existing file. A resumed run repeats some learning steps. Rows at or after the first new log's learning
step are dropped first, so an interrupted run leaves the same rows as an uninterrupted one.
"""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from drl.core.errors import UnusableFile
from drl.core.log import Log
from drl.core.safe_files import read_inside, write_atomically
from drl.core.state_files import PlainDict

Row = PlainDict  # one line of metrics.jsonl
MOST_METRICS = 1 << 30  # bytes


class JsonlTracker:
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

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._file: IO[bytes] | None = None

    def write(self, log: Log) -> None:
        if self._file is None:
            self._file = self._open(log.learning_steps)
        row: Row = {name: _json_number(value) for name, value in log.flat().items()}
        row["finished"] = [
            [_json_number(e.episode_return), int(e.length), bool(e.terminated), _json_flag(e.success)]
            for e in log.finished
        ]
        self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, learning_steps: int) -> IO[bytes]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            return self.path.open("wb")
        kept = 0  # bytes
        for line, row in _json_rows(self.path):
            if row.get("learning_steps", 0) >= learning_steps:
                break
            kept += len(line)
        file = self.path.open("r+b")
        try:
            file.truncate(kept)
            file.seek(kept)
        except BaseException:
            file.close()
            raise
        return file


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
                f"{path} line {i + 1} is not a JSON object ({error}); only the last line may be torn. "
                f"Delete that line to read the rest"
            ) from error
        rows.append((line, row))
    return rows


def _json_number(value: float) -> float | int | None:
    """A plain number; None for NaN and infinity, which JSON lacks."""
    number = value.item() if hasattr(value, "item") else value
    return number if math.isfinite(number) else None


def _json_flag(value: bool | None) -> bool | None:
    return None if value is None else bool(value)  # converts NumPy's bool, too


class CsvTracker:
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
        self.path = Path(path)
        self.columns: list[str] = []
        self._file: IO[str] | None = None

    def write(self, log: Log) -> None:
        row = log.flat()
        fresh = self._file is None
        if fresh:
            lines = self._lines_before(log.learning_steps)
            self.columns = lines[0] if lines else list(row)
        new = [name for name in row if name not in self.columns]
        if fresh or new:
            lines = lines if fresh else self._read()
            self.columns = [*self.columns, *new]
            self._rewrite([[*line, *[""] * (len(self.columns) - len(line))] for line in lines[1:]])
        assert self._file is not None
        values = (row.get(name, "") for name in self.columns)
        self._file.write(_csv_line([value.item() if hasattr(value, "item") else value for value in values]))
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self) -> list[list[str]]:
        """Header and rows, without an incomplete last line."""
        text = self.path.read_bytes().decode(errors="replace")
        return list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))

    def _lines_before(self, learning_steps: int) -> list[list[str]]:
        lines = self._read() if self.path.exists() else []
        if not lines:
            return []
        try:
            at = lines[0].index("learning_steps")
            return [lines[0], *(line for line in lines[1:] if int(line[at]) < learning_steps)]
        except (ValueError, IndexError) as error:
            raise UnusableFile(
                f"{self.path} exists but was not written by drl ({error}); move it away or give another path"
            ) from error

    def _rewrite(self, rows: list[list[str]]) -> None:
        """Replace the whole file atomically: a kill leaves either the old file or the new one."""
        self.close()
        write_atomically(self.path, "".join(_csv_line(line) for line in [self.columns, *rows]).encode())
        self._file = self.path.open("a", encoding="utf-8", newline="")


def _csv_line(values: Sequence[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()
