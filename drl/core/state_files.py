"""Writing state to disk: arrays as safetensors, the rest as JSON. Atomic, checksummed, no pickle.

A nested state dict becomes a folder with `arrays.safetensors` and `state.json`. The JSON is written last and holds
the checksum of the arrays and one of its own content, so an incomplete or damaged folder is always detected. Rings of
rows (`RowLog`) can be kept apart, in files that several states share. An agent's card and a run's record are sealed in
the same way.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors_numpy

from drl.core.errors import UnusableFile, one_line
from drl.core.row_log import Chunk, RowFiles, RowLog, StoredRows, with_fields
from drl.core.safe_files import MOST_WEIGHTS, read_inside, write_atomically
from drl.core.specs import Array, PlainValue
from drl.core.specs import PlainDict as PlainDict

STATE_FORMAT = 2
MOST_NUMBER = 1 << 128  # the state of a random generator is smaller
SEAL = "content_checksum"  # the key of a JSON file's checksum of its own content
StateValue = Any  # an array, a number, a string, None, or a list or dict of those
StateDict = dict[str, StateValue]  # never objects


class OtherFormat(UnusableFile):
    """Written by another version of drl."""


def write_json(path: Path, content: PlainValue) -> None:
    """Write a JSON file at once or not at all."""
    write_atomically(path, _rendered(content))


def read_json(path: Path) -> PlainValue:
    """The content of a JSON file; raise `UnusableFile` if it is none."""
    return _parsed(read_inside(path.parent, path), path)


def write_sealed(path: Path, content: PlainDict) -> None:
    """Write a JSON object with its `format` and a checksum of the rest."""
    write_json(path, content | {SEAL: _checksum(content)})


def read_sealed(path: Path, formats: tuple[int | None, ...], unsealed: int | None = 0) -> PlainDict:
    """What `write_sealed` wrote, or an error if any byte has changed. Only files of the format `unsealed` have no
    checksum."""
    content = read_inside(path.parent, path)
    document = _parsed(content, path)
    if not isinstance(document, dict):
        raise UnusableFile(f"{path} does not hold a JSON object")
    found = document.get("format")
    if found not in formats:
        known = " or ".join(str(each) for each in formats if each is not None)
        raise OtherFormat(
            f"{path} has format {found!r:.20}, this drl reads format {known}; another version of drl wrote it"
        )
    if found == unsealed and SEAL not in document:
        return document
    try:
        if document.get(SEAL) == _checksum(document) and found != unsealed and content == _rendered(document):
            return document
    except (ValueError, RecursionError):  # NaN, deep nesting
        pass
    raise UnusableFile(f"{path} is damaged: its checksum differs from the recorded one; use another copy")


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
    content = read_inside(path.parent, path, MOST_WEIGHTS)
    if hashlib.sha256(content).hexdigest() != checksum:
        raise UnusableFile(f"{path} is damaged: its checksum differs from the recorded one; use another copy")
    try:
        return safetensors_numpy.load(content)
    except (SafetensorError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise UnusableFile(f"{path} is not a safetensors file: {error}") from None


def write_state(folder: Path, state: StateDict, row_files: RowFiles | None = None) -> set[str]:
    """Write a state; its rings go to `row_files`, if there are any. Returns the names of the chunks that it needs."""
    arrays: dict[str, Array] = {}
    needed: set[str] = set()
    plain = _split(state, "", arrays, row_files, needed)
    checksum = write_arrays(folder / "arrays.safetensors", arrays)
    write_sealed(folder / "state.json", {"format": STATE_FORMAT, "checksum": checksum, "state": plain})
    return needed


def read_state(folder: Path, row_files: RowFiles | None = None) -> StateDict:
    """The inverse of `write_state`. `row_files` then knows the chunks of this state."""
    document = read_sealed(folder / "state.json", (STATE_FORMAT,))
    arrays = read_arrays(folder / "arrays.safetensors", document.get("checksum", ""))
    try:
        return _join(document["state"], "", arrays, row_files)  # type: ignore[no-any-return]
    except UnusableFile:
        raise
    except Exception as error:  # the file is untrusted: reading it can raise anything
        said = one_line(error)
        raise UnusableFile(f"{folder}/state.json does not describe a state ({said})") from None


def chunks_of(folder: Path) -> set[str]:
    """The names of the chunks that a state needs; none if it cannot be read."""
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
    """`value` with every array moved into `arrays` and every ring into `row_files`, a reference left in its place."""
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
            row_files.known[name] = chunks = [Chunk(*chunk) for chunk in value["chunks"]]
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
