"""The header of a safetensors file, and nothing behind it: which tensors there are, and which bytes are theirs.

Source: the format's page at huggingface/safetensors. The first 8 bytes are the size of the header, little-endian. The
header is a JSON object: each tensor's dtype, shape and bytes, counted from the end of the header. The tensors tile the
rest of the file. No header is trusted: nothing is read or allocated for a number in it that the file does not bear out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.base.words import counted, ends_early
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.storage.interface import RangeReader

MAX_HEADER_BYTES: Final = 100_000_000
"""As the safetensors library has it."""
TAGS: Final = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""The name that the format has for each of our dtypes."""
_DTYPES: Final = {tag: DTYPES[name] for name, tag in TAGS.items()}
_BITS: Final = {tag: 8 * dtype.itemsize for tag, dtype in _DTYPES.items()} | {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "C64": 64,
}
_MOST: Final = 1 << 62
"""No dimension and no offset is as large."""


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor of a file: its bytes are [start, end) of the file, C order, little-endian."""

    name: str
    tag: str
    """The format's name for its dtype, such as 'F32'."""
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def dtype(self) -> DType | None:
        """Return our dtype; None for one that no checkpoint of ours can contain."""
        return _DTYPES.get(self.tag)


@dataclass(frozen=True, slots=True)
class Header:
    """The tensors of a file in the order of their bytes, and its metadata."""

    tensors: tuple[FileTensor, ...]
    metadata: Mapping[str, str]


def read_header(reader: RangeReader) -> Header:
    """Return the header of a file; CorruptError unless its tensors tile the bytes behind it."""
    if reader.size_bytes < 8:
        raise CorruptError("too short for a safetensors file", code="truncated", path=reader.path, offset=0)
    size = int.from_bytes(reader.read(0, 8), "little")
    if size > reader.size_bytes - 8:
        fault = f"{ends_early(reader.size_bytes, 8 + size)}, in its header"
        raise CorruptError(fault, code="truncated", path=reader.path, offset=0)
    if size > MAX_HEADER_BYTES:
        fault = f"the header has {size} bytes (expected at most {MAX_HEADER_BYTES})"
        raise CorruptError(fault, path=reader.path, offset=0)
    document = parse_object(reader.read(8, size), reader.path, offset=8)
    metadata = document.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CorruptError("the metadata in the header are not texts by their names", path=reader.path, offset=8)
    tensors = [_tensor(name, entry, 8 + size, reader.path) for name, entry in document.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    _check_tiles(tensors, 8 + size, reader)
    return Header(tuple(tensors), metadata)


def _tensor(name: str, entry: Any, begin: int, path: str) -> FileTensor:
    """Return the tensor of an entry; CorruptError for a damaged one. Offsets are counted from byte `begin` on."""
    fields = entry if isinstance(entry, dict) else {}
    tag, shape, span = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    bits = _BITS.get(tag) if isinstance(tag, str) else None
    if bits is None or not _are_naturals(shape) or not _are_naturals(span) or len(span) != 2 or span[0] > span[1]:
        raise CorruptError(f"the entry of {name!r} in the header is damaged", path=path, offset=8)
    start, end = span
    if _bits_of(shape, bits, most=8 * (end - start)) != 8 * (end - start):
        message = f"{name!r} has {counted(end - start, 'byte')} (expected as many as {tag} and its shape say)"
        raise CorruptError(message, code="content-size-mismatch", path=path, offset=begin + start)
    return FileTensor(name, str(tag), tuple(shape), begin + start, begin + end)


def _are_naturals(value: Any) -> TypeGuard[list[int]]:
    """Say whether a value is a list of whole numbers that sizes of arrays may have."""
    return isinstance(value, list) and all(type(number) is int and 0 <= number < _MOST for number in value)


def _bits_of(shape: Sequence[int], bits: int, *, most: int) -> int:
    """Return the bits of an array, at most some number above `most`: a shape may have thousands of dimensions."""
    if 0 in shape:
        return 0
    for length in shape:
        bits *= length
        if bits > most:
            return bits
    return bits


def _check_tiles(tensors: Sequence[FileTensor], begin: int, reader: RangeReader) -> None:
    """Raise CorruptError unless tensors in the order of their bytes tile those from `begin` to the end of a file."""
    end = begin
    for tensor in tensors:
        if tensor.start != end:
            fault = "overlaps the tensor before it" if tensor.start < end else "leaves a hole before it"
            raise CorruptError(f"{tensor.name!r} {fault}", path=reader.path, offset=tensor.start)
        if tensor.end > reader.size_bytes:
            fault = f"{ends_early(reader.size_bytes, tensor.end)}, in {tensor.name!r}"
            raise CorruptError(fault, code="truncated", path=reader.path, offset=tensor.start)
        end = tensor.end
    if end != reader.size_bytes:
        fault = f"{counted(reader.size_bytes - end, 'byte')} at the end belong to no tensor"
        raise CorruptError(fault, path=reader.path, offset=end)
