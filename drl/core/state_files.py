"""Writing state to disk: arrays as safetensors, the rest as JSON. Atomic, checksummed, no pickle.

A nested state dict becomes a folder with `arrays.safetensors` and `state.json`. The JSON is written last and holds
the checksum of the arrays, so an incomplete folder is always detected.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors_numpy

from drl.core.errors import UnusableFile
from drl.core.safe_files import MOST_WEIGHTS, read_inside, write_atomically
from drl.core.specs import Array, PlainValue
from drl.core.specs import PlainDict as PlainDict

STATE_FORMAT = 1
StateDict = dict[str, Any]  # nested dicts of arrays, numbers, strings, None and lists of those: never objects


def write_json(path: Path, content: PlainValue) -> None:
    write_atomically(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> PlainValue:
    content = read_inside(path.parent, path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnusableFile(f"{path} is not valid JSON ({error}); restore it from a copy") from None


def write_arrays(path: Path, arrays: dict[str, Array]) -> str:
    """Write a safetensors file and return its checksum."""
    content = safetensors_numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


def read_arrays(path: Path, checksum: str) -> dict[str, Array]:
    """Read a safetensors file; raise if its checksum differs."""
    content = read_inside(path.parent, path, MOST_WEIGHTS)
    if hashlib.sha256(content).hexdigest() != checksum:
        raise UnusableFile(f"{path} is damaged: its checksum differs from the recorded one; use another copy")
    try:
        return safetensors_numpy.load(content)
    except (SafetensorError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise UnusableFile(f"{path} is not a safetensors file: {error}") from None


def write_state(folder: Path, state: StateDict) -> None:
    arrays: dict[str, Array] = {}
    plain = _split(state, "", arrays)
    checksum = write_arrays(folder / "arrays.safetensors", arrays)
    write_json(folder / "state.json", {"format": STATE_FORMAT, "checksum": checksum, "state": plain})


def read_state(folder: Path) -> StateDict:
    document = read_json(folder / "state.json")
    if not isinstance(document, dict) or document.get("format") != STATE_FORMAT:
        raise UnusableFile(f"{folder} has an unknown format; it was written by another version of drl")
    arrays = read_arrays(folder / "arrays.safetensors", document["checksum"])
    return _join(document["state"], arrays)  # type: ignore[no-any-return]


def _split(value: object, name: str, arrays: dict[str, Array]) -> PlainValue:
    """`value` with every array moved into `arrays`, a reference left in its place."""
    if isinstance(value, np.ndarray) and value.dtype.names:  # safetensors has no structured dtypes
        fields = [[field, _split(value[field], f"{name}/{field}", arrays)] for field in value.dtype.names]
        return {"$fields": fields, "$shape": list(value.shape)}
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


def _join(value: PlainValue, arrays: dict[str, Array]) -> Any:
    if isinstance(value, dict):
        if "$array" in value:
            return arrays[value["$array"]]
        if "$fields" in value:
            return _with_fields({field: _join(part, arrays) for field, part in value["$fields"]}, value["$shape"])
        return {key: _join(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_join(item, arrays) for item in value]
    return value


def _with_fields(parts: dict[str, Array], shape: list[int]) -> Array:
    kinds = [(field, part.dtype, part.shape[len(shape) :]) for field, part in parts.items()]
    whole = np.empty(shape, np.dtype(kinds))
    for field, part in parts.items():
        whole[field] = part
    return whole
