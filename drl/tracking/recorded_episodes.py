"""`episodes.jsonl`: finished episodes as seeds and actions, from which they can be replayed exactly.

A line holds the episodes of one learning step: `[number, env_index, seed, length, return]` for each, and their
concatenated actions, compressed. If attributes of the environments were set, `changes` lists what was set and `changed`
the place in that list for each episode. Vectorizations that do not know the seed of an episode record none.
"""

import base64
import binascii
import json
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drl.core.errors import BadInput, UnusableFile
from drl.core.log import Change, Episode, Log, Played
from drl.core.safe_files import write_atomically
from drl.core.specs import Array, PlainDict
from drl.tracking.files import JsonLines, Row, read_metrics

FILE = "episodes.jsonl"
CRASH = "crash.json"  # the episode in which an environment failed
MOST_ACTIONS = 1 << 28  # most bytes of actions in one line


class RecordedEpisode(NamedTuple):
    """An episode that can be replayed."""

    number: int  # in the order in which episodes ended, from 1; 0: it did not end
    env_index: int
    episode_return: float
    played: Played


class EpisodeTracker(JsonLines):
    """Writes the episodes of every log that can be replayed."""

    def _row(self, log: Log) -> Row | None:
        first = log.episodes - len(log.finished) + 1
        numbered = [(first + i, episode) for i, episode in enumerate(log.finished) if episode.played is not None]
        return {"learning_steps": log.learning_steps} | packed(numbered) if numbered else None


def packed(episodes: Sequence[tuple[int, Episode]]) -> PlainDict:
    """Return numbered episodes as plain data."""
    played = [episode.played for _, episode in episodes if episode.played is not None]
    actions = np.concatenate([each.actions for each in played])
    if actions.dtype.kind in "iu" and actions.size:  # the smallest type gives the smallest file
        actions = actions.astype(np.result_type(*map(np.min_scalar_type, (actions.min(), actions.max()))))
    row: PlainDict = {
        "episodes": [
            [number, episode.env_index, each.seed, len(each.actions), _number(episode.episode_return)]
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


def read_episode(folder: Path, which: str) -> RecordedEpisode:
    """Read a recorded episode of a run: `best`, `worst`, `last`, `crash` or a number."""
    if which == "crash":
        return _crash(folder)
    path = folder / FILE
    rows = read_metrics(path) if path.is_file() else []
    try:
        found = [(entry, row) for row in rows for entry in row["episodes"]]
        if not found:
            raise BadInput(
                f"{folder} has no recorded episodes; only sync and async environments record them, with "
                "--record-episodes; train with --vectorization sync (not available for multi-agent games)"
            )
        if which in ("best", "worst"):
            sign = 1 if which == "best" else -1
            entry, row = max(found, key=lambda each: -math.inf if each[0][4] is None else sign * each[0][4])
        elif which == "last":
            entry, row = found[-1]
        else:
            entry, row = _numbered(found, which, folder)
        return unpacked(row)[row["episodes"].index(entry)]
    except (KeyError, TypeError, IndexError, ValueError, OverflowError, zlib.error, binascii.Error) as error:
        if isinstance(error, BadInput):
            raise
        raise UnusableFile(f"{path} does not hold episodes ({type(error).__name__}: {error})") from None


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


def _crash(folder: Path) -> RecordedEpisode:
    path = folder / CRASH
    if not path.is_file():
        raise BadInput(f"{folder} has no {CRASH}: no environment failed in it")
    try:
        return unpacked(read_metrics(path)[0])[0]
    except (KeyError, TypeError, IndexError, ValueError, OverflowError, zlib.error) as error:
        raise UnusableFile(f"{path} does not hold an episode ({type(error).__name__}: {error})") from None


def _numbered(found: list[tuple[list[int], Row]], which: str, folder: Path) -> tuple[list[int], Row]:
    if not which.isdecimal():
        raise BadInput(f"--episode is {which!r}; expected best, worst, last, crash or a number")
    for entry, row in found:
        if entry[0] == int(which):
            return entry, row
    raise BadInput(f"{folder} has recorded the episodes {found[0][0][0]} to {found[-1][0][0]}, not {which}")


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
