"""Write a plain state dict without PyTorch, for `torch.load(path, weights_only=True)`.

Such a file is a zip of raw arrays and one small pickle that describes them. The pickle is assembled here, opcode by
opcode; nothing is ever unpickled.
"""

import io
import struct
import zipfile
from pathlib import Path

import numpy as np

from drl.core.safe_files import write_atomically
from drl.core.specs import Array

STORAGES = {"float32": "FloatStorage", "float64": "DoubleStorage", "int64": "LongStorage", "int32": "IntStorage"}


def write_pth(path: str | Path, arrays: dict[str, Array]) -> None:
    """Write `arrays` by name, atomically."""
    kept = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:

        def put(name: str, content: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), content)  # no timestamp: equal arrays give equal files

        put("data.pkl", _pickled(kept))
        put("byteorder", b"little")
        for number, array in enumerate(kept.values()):
            put(f"data/{number}", array.astype(array.dtype.newbyteorder("<")).tobytes())
        put("version", b"3\n")
    write_atomically(Path(path), buffer.getvalue())


def _pickled(arrays: dict[str, Array]) -> bytes:
    """A dict of `torch._utils._rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict())`, protocol 2."""
    items = b"".join(_text(name) + _tensor(number, array) for number, (name, array) in enumerate(arrays.items()))
    return b"\x80\x02" + b"}(" + items + b"u."  # PROTO, EMPTY_DICT, MARK, …, SETITEMS, STOP


def _tensor(number: int, array: Array) -> bytes:
    storage = _tuple(
        _text("storage"),
        _global("torch", STORAGES[array.dtype.name]),
        _text(str(number)),
        _text("cpu"),
        _integer(array.size),
    )
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
