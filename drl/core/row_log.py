"""Rows of a ring on disk: each is written once, so a checkpoint adds only the rows since the one before it.

A ring is stored as chunks, files of consecutive rows. A checkpoint names the chunks that it needs, with their
checksums; chunks that no checkpoint needs are deleted.
"""

import hashlib
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors_numpy

from drl.core.errors import UnusableFile
from drl.core.safe_files import MOST_WEIGHTS, read_inside, write_atomically
from drl.core.specs import Array

PARTS = 10  # a chunk holds at most this part of its ring, so that little is kept that is no longer needed
SAMPLE = 1 << 18  # bytes that are compressed to see whether it pays
PAYS = 0.8  # largest share that compressing may leave
HEADER = 1 << 16  # bytes of a chunk beside its rows, at most


class RowLog(NamedTuple):
    """The newest rows of a ring: row number r is at `r % len(array)`. A row never changes once it is written."""

    array: Array  # [capacity, …]
    written: int  # rows so far
    most: int | None = None  # newest rows to store; None: all

    @property
    def first(self) -> int:
        """The number of the oldest row to store."""
        room = len(self.array)
        return max(self.written - (room if self.most is None else min(self.most, room)), 0)

    def read(self, first: int, end: int) -> Array:
        return self.array[np.arange(first, end) % len(self.array)]

    def stored(self) -> "StoredRows":
        """What is read back from disk."""
        return StoredRows(self.read(self.first, self.written), self.first)


class StoredRows(NamedTuple):
    """What a `RowLog` is after reading: the rows `first` to `first + len(rows)`."""

    rows: Array
    first: int

    @property
    def end(self) -> int:
        """Number of the row after the last one."""
        return self.first + len(self.rows)

    def into(self, ring: Array) -> None:
        """Put every row where it was."""
        ring[np.arange(self.first, self.end) % len(ring)] = self.rows


class Chunk(NamedTuple):
    """A file of consecutive rows."""

    file: str
    first: int
    end: int
    checksum: str


class RowFiles:
    """The chunks of one run. `known` are those of its last checkpoint, by the name of their ring."""

    def __init__(self, folder: Path, known: dict[str, list[Chunk]] | None = None):
        self.folder: Path = folder
        self.known: dict[str, list[Chunk]] = dict(known or {})

    def write(self, name: str, log: RowLog) -> list[Chunk]:
        """Write the rows that no chunk has yet; returns all chunks of this ring."""
        chunks = [chunk for chunk in self.known.get(name, []) if log.first < chunk.end <= log.written]
        first = chunks[-1].end if chunks else log.first
        length = max(len(log.array) // PARTS, 1)
        for begin in range(first, log.written, length):
            end = min(begin + length, log.written)
            content = _packed(log.read(begin, end))
            checksum = hashlib.sha256(content).hexdigest()
            file = f"{begin}-{end}-{checksum[:16]}.rows"
            write_atomically(self.folder / file, content)
            chunks.append(Chunk(file, begin, end, checksum))
        self.known[name] = chunks
        return chunks

    def read(self, chunks: list[Chunk], first: int) -> StoredRows:
        """The rows from number `first` on."""
        parts = []
        for chunk in chunks:
            content = read_inside(self.folder, self.folder / chunk.file, MOST_WEIGHTS)
            if hashlib.sha256(content).hexdigest() != chunk.checksum:
                raise UnusableFile(f"{self.folder / chunk.file} is damaged: its checksum differs from the recorded one")
            parts.append(_unpacked(content, self.folder / chunk.file)[max(first - chunk.first, 0) :])
        whole = np.concatenate(parts)
        if len(whole) != chunks[-1].end - first:
            raise UnusableFile(f"{self.folder} does not hold the rows {first} to {chunks[-1].end}")
        return StoredRows(whole, first)

    def delete_others(self, needed: set[str]) -> None:
        """Delete the chunks that are not `needed`."""
        for file in self.folder.glob("*.rows"):
            if file.name not in needed:
                file.unlink(missing_ok=True)


def _packed(rows: Array) -> bytes:
    """A byte that says whether the rest is compressed, then a safetensors file."""
    fields = {name: rows[name] for name in rows.dtype.names} if rows.dtype.names else {"rows": rows}
    content = safetensors_numpy.save({name: np.ascontiguousarray(field) for name, field in fields.items()})
    sample = content[HEADER : HEADER + SAMPLE] or content
    if len(zlib.compress(sample, 1)) <= PAYS * len(sample):
        return b"z" + len(content).to_bytes(8, "little") + zlib.compress(content, 1)
    return b"-" + content


def _unpacked(content: bytes, source: Path) -> Array:
    try:
        plain = content[1:]
        if content[:1] == b"z":
            size = int.from_bytes(content[1:9], "little")
            if size > MOST_WEIGHTS:
                raise ValueError(f"{size:,} bytes are more than the {MOST_WEIGHTS:,} that are read")
            plain = zlib.decompressobj().decompress(content[9:], size)
        fields = safetensors_numpy.load(plain)
    except (SafetensorError, zlib.error, KeyError, ValueError, TypeError, OverflowError) as error:
        raise UnusableFile(f"{source} does not hold rows: {error}") from None
    if list(fields) == ["rows"]:
        return fields["rows"]
    return with_fields(fields, (len(next(iter(fields.values()))),))


def with_fields(parts: dict[str, Array], shape: tuple[int, ...]) -> Array:
    """A structured array from its fields."""
    kinds = [(field, part.dtype, part.shape[len(shape) :]) for field, part in parts.items()]
    whole = np.empty(shape, np.dtype(kinds))
    for field, part in parts.items():
        whole[field] = part
    return whole
