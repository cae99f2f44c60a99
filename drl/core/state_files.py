"""State on disk: arrays as safetensors, the rest as JSON. Writing is atomic and checksummed, and uses no pickle.

A nested state dict becomes a folder with `arrays.safetensors` and `state.json`. The JSON is written last and holds
the checksum of the arrays and one of its own content, so an incomplete or damaged folder is always detected. Ring
buffers (`RowLog`) are stored separately, in chunks of consecutive rows: each row is written once, and states share the
chunks. Agent cards and run records are sealed in the same way.

`write_pth` writes a plain state dict without PyTorch, for `torch.load(path, weights_only=True)`: a zip of raw arrays
and one small pickle that describes them, which is assembled opcode by opcode. The file ends with its own checksum, as
the comment of the zip, which PyTorch ignores. `check_pth` verifies it.
"""

import hashlib
import io
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors_numpy

from drl.core.errors import UnusableFile, one_line
from drl.core.safe_files import MOST_WEIGHTS, read_inside, write_atomically
from drl.core.specs import Array, PlainDict, PlainValue

PARTS = 10  # a chunk holds at most 1/PARTS of its ring, so that few rows stay on disk longer than needed
SAMPLE = 1 << 18  # bytes that are compressed to see whether compression pays
PAYS = 0.8  # largest compressed size, relative to the plain size, at which it does
HEADER = 1 << 16  # largest size of a chunk's header in bytes
STORAGES = {"float32": "FloatStorage", "float64": "DoubleStorage", "int64": "LongStorage", "int32": "IntStorage"}
PTH_MARK = b"sha256 "  # comes before the checksum
ZIP_END, ZIP_END_SIZE = b"PK\5\6", 22  # of a zip without a comment
STATE_FORMAT = 2
MOST_NUMBER = 1 << 128  # the state of a random generator is smaller
SEAL = "content_checksum"  # the key of a JSON file's checksum of its own content
DAMAGED = "is damaged: its checksum differs from the recorded one; use another copy"


class RowLog(NamedTuple):
    """The newest rows of a ring buffer. Row number r is at `r % len(array)` and never changes once it is written."""

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
        """Return the rows as they are read back from disk."""
        return StoredRows(self.read(self.first, self.written), self.first)


class StoredRows(NamedTuple):
    """The rows `first` to `first + len(rows)` of a ring buffer, read from disk."""

    rows: Array
    first: int

    @property
    def end(self) -> int:
        """Number of the row after the last one."""
        return self.first + len(self.rows)

    def into(self, ring: Array) -> None:
        """Put every row back into its place in a ring buffer."""
        ring[np.arange(self.first, self.end) % len(ring)] = self.rows


class RowChunk(NamedTuple):
    """A file of consecutive rows."""

    file: str
    first: int
    end: int
    checksum: str


class RowFiles:
    """The chunks of one run. `known`: those of its last checkpoint, by the name of their ring buffer."""

    def __init__(self, folder: Path, known: dict[str, list[RowChunk]] | None = None):
        self.folder: Path = folder
        self.known: dict[str, list[RowChunk]] = dict(known or {})

    def write(self, name: str, log: RowLog) -> list[RowChunk]:
        """Write the rows that are in no chunk yet. Returns all chunks of this ring buffer."""
        chunks = [chunk for chunk in self.known.get(name, []) if log.first < chunk.end <= log.written]
        first = chunks[-1].end if chunks else log.first
        length = max(len(log.array) // PARTS, 1)
        for begin in range(first, log.written, length):
            end = min(begin + length, log.written)
            content = _packed(log.read(begin, end))
            checksum = hashlib.sha256(content).hexdigest()
            file = f"{begin}-{end}-{checksum[:16]}.rows"
            write_atomically(self.folder / file, content)
            chunks.append(RowChunk(file, begin, end, checksum))
        self.known[name] = chunks
        return chunks

    def read(self, chunks: list[RowChunk], first: int) -> StoredRows:
        """Read the rows from number `first` on."""
        parts = []
        for chunk in chunks:
            content = _read_checked(self.folder / chunk.file, chunk.checksum)
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
    """Return a flag byte (z: compressed) and a safetensors file."""
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
    """Make a structured array of its fields."""
    kinds = [(field, part.dtype, part.shape[len(shape) :]) for field, part in parts.items()]
    whole = np.empty(shape, np.dtype(kinds))
    for field, part in parts.items():
        whole[field] = part
    return whole


StateValue = Any  # an array, a number, a string, None, or a list or dict of those
StateDict = dict[str, StateValue]  # never objects


class OtherFormat(UnusableFile):
    """A file that another version of drl wrote."""


def write_json(path: Path, content: PlainValue) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, _rendered(content))


def read_json(path: Path) -> PlainValue:
    """Read a JSON file; raise `UnusableFile` if it is not valid JSON."""
    return _parsed(read_inside(path.parent, path), path)


def write_sealed(path: Path, content: PlainDict) -> None:
    """Write a JSON object with a checksum of its content."""
    write_json(path, content | {SEAL: _checksum(content)})


def read_sealed(path: Path, version: int) -> PlainDict:
    """Read a JSON object of the format `version` that `write_sealed` wrote; raise if any byte has changed."""
    content = read_inside(path.parent, path)
    document = _parsed(content, path)
    if not isinstance(document, dict):
        raise UnusableFile(f"{path} does not hold a JSON object")
    if (stated := document.get("format")) != version:
        raise OtherFormat(
            f"{path} has format {stated!r:.20}, this drl reads format {version}; another version of drl wrote it"
        )
    try:
        if document.get(SEAL) == _checksum(document) and content == _rendered(document):
            return document
    except (ValueError, RecursionError):  # NaN, deep nesting
        pass
    raise UnusableFile(f"{path} {DAMAGED}")


def write_arrays(path: Path, arrays: dict[str, Array]) -> str:
    """Write a safetensors file and return its checksum."""
    content = arrays_as_bytes(arrays)
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


def arrays_as_bytes(arrays: dict[str, Array]) -> bytes:
    """The content of a safetensors file."""
    return safetensors_numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()})


def read_arrays(path: Path, checksum: str) -> dict[str, Array]:
    """Read a safetensors file; raise if its checksum differs."""
    content = _read_checked(path, checksum)
    try:
        return safetensors_numpy.load(content)
    except (SafetensorError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise UnusableFile(f"{path} is not a safetensors file: {error}") from None


def _read_checked(path: Path, checksum: str) -> bytes:
    content = read_inside(path.parent, path, MOST_WEIGHTS)
    if hashlib.sha256(content).hexdigest() != checksum:
        raise UnusableFile(f"{path} {DAMAGED}")
    return content


def write_state(folder: Path, state: StateDict, row_files: RowFiles | None = None) -> set[str]:
    """Write a state; ring buffers go to `row_files`, unless it is None. Returns the names of the chunks it needs."""
    arrays: dict[str, Array] = {}
    needed: set[str] = set()
    plain = _split(state, "", arrays, row_files, needed)
    checksum = write_arrays(folder / "arrays.safetensors", arrays)
    write_sealed(folder / "state.json", {"format": STATE_FORMAT, "checksum": checksum, "state": plain})
    return needed


def read_state(folder: Path, row_files: RowFiles | None = None) -> StateDict:
    """Read what `write_state` wrote. Afterwards `row_files` knows the chunks of this state."""
    document = read_sealed(folder / "state.json", STATE_FORMAT)
    arrays = read_arrays(folder / "arrays.safetensors", document.get("checksum", ""))
    try:
        return _join(document["state"], "", arrays, row_files)
    except UnusableFile:
        raise
    except Exception as error:  # the file is untrusted: reading it can raise anything
        raise UnusableFile(f"{folder}/state.json does not describe a state ({one_line(error)})") from None


def chunks_of(folder: Path) -> set[str]:
    """Return the names of the chunks that a state needs; none if it cannot be read."""
    found: set[str] = set()

    def collect(value: PlainValue) -> None:
        if isinstance(value, dict) and "$rows" in value:
            found.update(str(chunk[0]) for chunk in value["chunks"] or [])
        elif isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                collect(item)

    try:
        collect(read_json(folder / "state.json"))
    except (UnusableFile, KeyError, IndexError, TypeError, RecursionError):
        return set()
    return found


def _rendered(content: PlainValue) -> bytes:
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def _parsed(content: bytes, path: Path) -> PlainValue:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnusableFile(f"{path} is not valid JSON ({error}); restore it from a copy") from None


def _checksum(document: PlainDict) -> str:
    content = {name: value for name, value in document.items() if name not in ("format", SEAL)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _split(
    value: object, name: str, arrays: dict[str, Array], row_files: RowFiles | None, needed: set[str]
) -> PlainValue:
    """Move every array of `value` into `arrays` and every ring buffer into `row_files`; leave references to them."""
    if isinstance(value, RowLog):
        chunks = None if row_files is None else row_files.write(name, value)
        needed.update(chunk.file for chunk in chunks or [])
        content = value.stored().rows if chunks is None else value.array[:0]
        rows = _split(content, name, arrays, None, needed)
        return {"$rows": rows, "first": value.first, "chunks": chunks and [list(chunk) for chunk in chunks]}
    if isinstance(value, np.ndarray) and value.dtype.names:  # safetensors has no structured dtypes
        fields = [[f, _split(value[f], f"{name}/{f}", arrays, row_files, needed)] for f in value.dtype.names]
        return {"$fields": fields, "$shape": list(value.shape)}
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"$array": name}
    if isinstance(value, dict):
        return {key: _split(item, f"{name}/{key}", arrays, row_files, needed) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_split(item, f"{name}/{i}", arrays, row_files, needed) for i, item in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    assert value is None or isinstance(value, bool | int | float | str), f"{name}: {type(value)} is not plain state"
    return value


def _join(value: PlainValue, name: str, arrays: dict[str, Array], row_files: RowFiles | None) -> Any:
    if isinstance(value, dict):
        if "$array" in value:
            return arrays[value["$array"]]
        if "$rows" in value:
            if not value["chunks"]:
                return StoredRows(_join(value["$rows"], name, arrays, None), value["first"])
            assert row_files is not None, "this state has rings in files of their own"
            row_files.known[name] = chunks = [RowChunk(*chunk) for chunk in value["chunks"]]
            return row_files.read(chunks, value["first"])
        if "$fields" in value:
            parts = {field: _join(part, f"{name}/{field}", arrays, row_files) for field, part in value["$fields"]}
            return with_fields(parts, tuple(value["$shape"]))
        return {key: _join(item, f"{name}/{key}", arrays, row_files) for key, item in value.items()}
    if isinstance(value, list):
        return [_join(item, f"{name}/{i}", arrays, row_files) for i, item in enumerate(value)]
    if isinstance(value, int) and abs(value) >= MOST_NUMBER:
        raise ValueError(f"{name} is a number of {value.bit_length()} bits")
    return value


def write_pth(path: str | Path, arrays: dict[str, Array]) -> None:
    """Write `arrays` by name, atomically."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:

        def put(name: str, content: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), content)  # no timestamp: equal arrays give equal files

        put("data.pkl", _pickled(arrays))
        put("byteorder", b"little")
        for number, array in enumerate(arrays.values()):
            put(f"data/{number}", array.astype(array.dtype.newbyteorder("<")).tobytes())
        put("version", b"3\n")
    write_atomically(Path(path), seal_pth(buffer.getvalue()))


def seal_pth(content: bytes) -> bytes:
    """Append the checksum to a `.pth` file."""
    sealed = content[:-2] + struct.pack("<H", len(PTH_MARK) + 64) + PTH_MARK  # length of the comment, comment
    return sealed + hashlib.sha256(sealed).hexdigest().encode()


def check_pth(content: bytes, source: str | Path) -> None:
    """Raise if a `.pth` file is damaged, or larger unpacked than packed. A file of `torch.save` only has a checksum for
    each entry."""
    sealed, checksum = content[:-64], content[-64:]
    if sealed.endswith(PTH_MARK):
        whole = hashlib.sha256(sealed).hexdigest().encode() == checksum
    else:
        whole = content[-ZIP_END_SIZE:].startswith(ZIP_END) and content.endswith(b"\0\0")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            plain = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
            plain = plain and sum(entry.file_size for entry in entries) <= len(content)
            whole = whole and plain and archive.testzip() is None
    except Exception:  # zipfile raises many kinds of errors for damaged files
        whole = False
    if not whole:
        raise UnusableFile(f"{source} is damaged, or not a file that torch.save wrote; use another copy")


def _pickled(arrays: dict[str, Array]) -> bytes:
    """A dict of `torch._utils._rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict())`, protocol 2."""
    items = b"".join(_text(name) + _tensor(number, array) for number, (name, array) in enumerate(arrays.items()))
    return b"\x80\x02" + b"}(" + items + b"u."  # PROTO, EMPTY_DICT, MARK, …, SETITEMS, STOP


def _tensor(number: int, array: Array) -> bytes:
    kind, size = _global("torch", STORAGES[array.dtype.name]), _integer(array.size)
    storage = _tuple(_text("storage"), kind, _text(str(number)), _text("cpu"), size)
    strides = [step // array.itemsize for step in array.strides]
    hooks = _global("collections", "OrderedDict") + b")R"  # EMPTY_TUPLE, REDUCE
    shape = _tuple(*map(_integer, array.shape))
    arguments = _tuple(storage + b"Q", _integer(0), shape, _tuple(*map(_integer, strides)), b"\x89", hooks)
    return _global("torch._utils", "_rebuild_tensor_v2") + arguments + b"R"


def _tuple(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def _integer(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def _text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()
