"""Writing state to disk: arrays as safetensors, the rest as JSON. Atomic, checksummed, no pickle.

A nested state dict becomes a folder with `arrays.safetensors` and `state.json`. The JSON is written last and names
the checksum of the arrays, so a folder is either whole or recognisably not.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors_numpy

from drl.core.errors import UnusableFile
from drl.core.specs import Array

STATE_FORMAT = 1


def write_atomically(path: Path, content: bytes) -> None:
    """The file is the old one or the new one, never half of either."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise UnusableFile(f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UnusableFile(f"{path} is not valid JSON ({error}); restore it from a copy") from None


def write_arrays(path: Path, arrays: dict[str, Array]) -> str:
    """Write a safetensors file and return its checksum."""
    content = safetensors_numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


def read_arrays(path: Path, checksum: str) -> dict[str, Array]:
    """Read a safetensors file; one flipped bit anywhere is an error."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnusableFile(f"{path} cannot be read: {error.strerror or error}") from None
    if hashlib.sha256(content).hexdigest() != checksum:
        raise UnusableFile(f"{path} is damaged: its checksum is not the one written beside it; use another copy")
    try:
        return safetensors_numpy.load(content)
    except (SafetensorError, KeyError) as error:
        raise UnusableFile(f"{path} is not a safetensors file: {error}") from None


def write_state(folder: Path, state: dict[str, Any]) -> None:
    arrays: dict[str, Array] = {}
    plain = _split(state, "", arrays)
    checksum = write_arrays(folder / "arrays.safetensors", arrays)
    write_json(folder / "state.json", {"format": STATE_FORMAT, "checksum": checksum, "state": plain})


def read_state(folder: Path) -> dict[str, Any]:
    document = read_json(folder / "state.json")
    if not isinstance(document, dict) or document.get("format") != STATE_FORMAT:
        raise UnusableFile(f"{folder} has an unknown format; it was written by another version of drl")
    arrays = read_arrays(folder / "arrays.safetensors", document["checksum"])
    return _join(document["state"], arrays)  # type: ignore[no-any-return]


def _split(value: Any, name: str, arrays: dict[str, Array]) -> Any:
    """`value` with every array moved into `arrays`, a reference left in its place."""
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"$array": name}
    if isinstance(value, dict):
        return {key: _split(item, f"{name}/{key}", arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_split(item, f"{name}/{i}", arrays) for i, item in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    assert value is None or isinstance(value, bool | int | float | str), f"{name}: {type(value)} is not plain state"
    return value


def _join(value: Any, arrays: dict[str, Array]) -> Any:
    if isinstance(value, dict):
        if "$array" in value:
            return arrays[value["$array"]]
        return {key: _join(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_join(item, arrays) for item in value]
    return value
