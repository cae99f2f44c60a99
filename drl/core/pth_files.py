"""Write a plain state dict without PyTorch, for `torch.load(path, weights_only=True)`.

Such a file is a zip of raw arrays and one small pickle that describes them. The pickle is assembled here, opcode by
opcode; nothing is ever unpickled.

A file of ours ends with its own checksum, as the comment of the zip, which PyTorch ignores. `check_pth` verifies it.
"""

import hashlib
import io
import struct
import zipfile
from pathlib import Path

import numpy as np

from drl.core.errors import UnusableFile
from drl.core.safe_files import write_atomically
from drl.core.specs import Array

STORAGES = {"float32": "FloatStorage", "float64": "DoubleStorage", "int64": "LongStorage", "int32": "IntStorage"}
MARK = b"sha256 "  # comes before the checksum
END, END_SIZE = b"PK\5\6", 22  # of a zip without a comment


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
    write_atomically(Path(path), seal_pth(buffer.getvalue()))


def seal_pth(content: bytes) -> bytes:
    """A `.pth` file with its checksum at the end."""
    sealed = content[:-2] + struct.pack("<H", len(MARK) + 64) + MARK  # the length of the comment, then the comment
    return sealed + hashlib.sha256(sealed).hexdigest().encode()


def check_pth(content: bytes, source: str | Path) -> None:
    """Raise if a `.pth` file is damaged, or larger unpacked than packed. A file that `torch.save` wrote has no checksum
    of the whole, only one of each entry."""
    sealed, checksum = content[:-64], content[-64:]
    if sealed.endswith(MARK):
        whole = hashlib.sha256(sealed).hexdigest().encode() == checksum
    else:
        whole = content[-END_SIZE:].startswith(END) and content.endswith(b"\0\0")
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
