"""Snapshots as bytes: nested dicts, lists and tuples of arrays, numbers, texts and bytes. Nothing is ever pickled.

The bytes: MAGIC; the size of the header, 8 bytes, little-endian; the header, JSON in ASCII; then the elements of every
array, C order, little-endian, one array after the other. In the header, `arrays` has [dtype, shape] of each. `value` is
the value: None, booleans, numbers, texts and lists as they are, and all else as an object with one key that names it.
So a file from anywhere can be read: it contains data and no code.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.arrays import BFLOAT16, as_array, as_bytes, dtype_name, is_array
from edl_ckpt.core.base.errors import CorruptError, UsageError
from edl_ckpt.core.base.memory import check_memory

MAGIC: Final = b"edl-ckpt/snapshot/1\n"
_MAX_HEADER_BYTES: Final = 1 << 28
_PIECE_BYTES: Final = 8 << 20
_KINDS: Final = "biufc"
"""Booleans, integers, unsigned integers, floats and complex numbers; bfloat16 comes beside them."""

_TAG: Final = re.compile(rf"[<|][{_KINDS}][0-9]{{1,2}}|bfloat16")
"""The dtypes that are written; numpy would evaluate other texts."""


def write_snapshot(stream: BinaryIO, snapshot: Any) -> None:
    """Write a snapshot to a stream; arrays of any library are written from where they are.

    Raises UsageError, before anything is written, for a value of any other type; it names the place.
    """
    arrays: list[npt.NDArray[Any]] = []
    try:
        value = _encode(snapshot, "the snapshot", arrays)
        tags = ("bfloat16" if dtype_name(a) == "bfloat16" else a.dtype.newbyteorder("<").str for a in arrays)
        header = {"arrays": [[tag, list(a.shape)] for tag, a in zip(tags, arrays, strict=True)], "value": value}
        data = json.dumps(header, allow_nan=False, separators=(",", ":")).encode("ascii")
    except RecursionError:
        raise UsageError("the snapshot contains itself, or is nested too deeply") from None
    except ValueError as error:  # Python writes no whole number of more than 4300 digits
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"the snapshot contains a number that cannot be written: {error}") from None
    stream.write(MAGIC)
    stream.write(len(data).to_bytes(8, "little"))
    stream.write(data)
    for array in arrays:
        view = as_bytes(array).data
        stream.writelines(view[start : start + _PIECE_BYTES] for start in range(0, len(view), _PIECE_BYTES))


def read_snapshot(stream: BinaryIO) -> Any:
    """Return the snapshot that `write_snapshot` wrote: arrays as numpy arrays, everything else as it was.

    Raises CorruptError for other bytes, EdlCkptError for an array that is larger than the memory of this machine.
    """
    if _read(stream, len(MAGIC)) != MAGIC:
        raise CorruptError("not a snapshot that edl-ckpt wrote", hint="a state with a `save` needs its own `load`")
    size = int.from_bytes(_read(stream, 8), "little")
    if size > _MAX_HEADER_BYTES:
        raise CorruptError(f"the header of the snapshot has {size} bytes (at most {_MAX_HEADER_BYTES})")
    try:
        header = json.loads(_read(stream, size))
        kinds = [_described(tag, shape) for tag, shape in header["arrays"]]
        arrays = [_read_array(stream, dtype, shape) for dtype, shape in kinds]
        return _decode(header["value"], arrays)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        if isinstance(error, CorruptError):
            raise
        raise CorruptError(f"the header of the snapshot is damaged: {error}") from None


def _encode(value: Any, where: str, arrays: list[npt.NDArray[Any]]) -> Any:
    """Return a value as JSON; its arrays are appended to `arrays`."""
    if value is None or type(value) in {bool, int, str}:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if type(value) in {list, tuple}:
        nodes = [_encode(item, f"{where}[{number}]", arrays) for number, item in enumerate(value)]
        return {"tuple": nodes} if type(value) is tuple else nodes
    if isinstance(value, dict):
        return {"dict": [[_key(k, where), _encode(v, f"{where}[{k!r}]", arrays)] for k, v in value.items()]}
    if isinstance(value, bytes | bytearray):
        arrays.append(np.frombuffer(value, np.uint8))
        return {"bytes": len(arrays) - 1}
    if not is_array(value):
        raise _refuse(where, type(value).__qualname__)
    array = as_array(value, where)
    if array.dtype.kind not in _KINDS and dtype_name(array) != "bfloat16":
        raise _refuse(where, f"an array of {array.dtype}")
    arrays.append(array)
    return {"scalar" if isinstance(value, np.generic) else "array": len(arrays) - 1}


def _key(key: Any, where: str) -> str | int:
    if type(key) in {str, int}:
        return key  # type: ignore[no-any-return]
    raise _refuse(where, f"a key of type {type(key).__qualname__}")


def _refuse(where: str, what: str) -> UsageError:
    return UsageError(
        f"{where}: {what} cannot be saved; expected arrays, numbers, texts, bytes, and dicts, lists and tuples of them",
        hint="define save and load of the state to write it in another way",
    )


def _described(tag: Any, shape: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and the shape of an array; CorruptError for others than are written."""
    sizes = isinstance(shape, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in shape)
    if not sizes or not isinstance(tag, str) or not _TAG.fullmatch(tag):
        raise CorruptError(f"the header of the snapshot describes no array: {str([tag, shape])[:200]}")
    return BFLOAT16 if tag == "bfloat16" else np.dtype(tag), tuple(shape)


def _read_array(stream: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    size = math.prod(shape) * dtype.itemsize
    check_memory(size, "an array of the snapshot", getattr(stream, "name", "snapshot"))
    data = np.empty(size, np.uint8)
    for start in range(0, size, _PIECE_BYTES):
        count = min(_PIECE_BYTES, size - start)
        data[start : start + count] = np.frombuffer(_read(stream, count), np.uint8)
    return data.view(dtype).reshape(shape)


def _read(stream: BinaryIO, size: int) -> bytes:
    data = b""
    while left := size - len(data):
        more = stream.read(left)
        if not more:
            raise CorruptError(f"the snapshot ends {left} bytes too early")
        data += more
    return data


def _decode(node: Any, arrays: list[npt.NDArray[Any]]) -> Any:
    if isinstance(node, list):
        return [_decode(each, arrays) for each in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "dict":
        return {key: _decode(value, arrays) for key, value in content}
    if kind == "tuple":
        return tuple(_decode(each, arrays) for each in content)
    if kind == "float":
        return float(content)
    if kind == "bytes":
        return arrays[content].tobytes()
    if kind not in {"array", "scalar"}:
        raise CorruptError(f"the header of the snapshot has an unknown value: {str(kind)[:100]!r}")
    return arrays[content] if kind == "array" else arrays[content][()]
