"""The index of a bundle: its header, and of each tensor its dtype, its shape and where its bytes are.

The messages are read field by field here: ten thousand of protobuf's objects would take longer than all the rest.
Source: `tensorflow/core/protobuf/tensor_bundle.proto`, `tensor_shape.proto`, `tensor_slice.proto` and, for the keys of
slices, `tensorflow/core/util/saved_tensor_slice_util.cc` and `lib/strings/ordered_code.cc`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.base.numbers import MalformedError, varint, varint_at
from edl_ckpt.core.sources.bundle.new_table import table
from edl_ckpt.core.sources.bundle.table import entries, read_table
from edl_ckpt.core.storage.interface import RangeReader

_VERSION: Final = 1
"""The newest version of the format: a header names the oldest one that may read it."""
_MAX_DIMS: Final = 254
"""As TensorShape has it."""
_MOST: Final = (1 << 63) - 1
_NUMBER, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
"""Wire types of protobuf."""
Slice = tuple[tuple[int, int | None], ...]
"""(start, length) in each dimension; None for all of it."""


def data_file(prefix: str, number: int, count: int) -> str:
    """Return the name of a data file of a bundle.

    >>> data_file("model", 0, 2)
    'model.data-00000-of-00002'
    """
    return f"{prefix}.data-{number:05}-of-{count:05}"


class StoredTensor(NamedTuple):
    """What the index says of a tensor. With slices it has no bytes itself: they are tensors of their own."""

    dtype: int
    """The number in tensorflow.DataType."""
    shape: tuple[int, ...]
    shard: int
    start: int
    end: int
    crc32c: int
    """As it is stored: masked."""
    slices: tuple[Slice, ...]


class Index(NamedTuple):
    """An index: the number of data files, the tensors by name, and the slices by their keys."""

    shards: int
    tensors: Mapping[str, StoredTensor]
    slices: Mapping[bytes, StoredTensor]

    def slice_of(self, name: str, one: Slice) -> StoredTensor | None:
        """Return a slice of a tensor; None where the index lacks it."""
        return self.slices.get(slice_key(name.encode(), one))

    def ends(self) -> dict[int, int]:
        """Return the greatest end of a tensor in each data file, by its number."""
        ends: dict[int, int] = {}
        for tensors in (self.tensors, self.slices):
            for tensor in tensors.values():
                if tensor.end > ends.get(tensor.shard, 0):
                    ends[tensor.shard] = tensor.end
        return ends


def read_index(data: bytes, path: str | None = None) -> Index:
    """Read an index; CorruptError for damage, UnsupportedError for what this reader cannot read."""
    try:
        return _read(data)
    except EdlCkptError as error:
        error.path = path
        raise


def read_index_of(file: RangeReader) -> Index:
    """Read the index that a file is, whatever the file's size says; errors as `read_index`."""
    return read_index(read_table(file), file.path)


def index_bytes(shards: int, tensors: Iterable[tuple[bytes, StoredTensor]]) -> bytes:
    """Return an index, as TensorFlow writes it: its size does not depend on checksums."""
    header = b"\x08" + varint(shards) + b"\x1a\x02\x08" + varint(_VERSION)
    return table([(b"", header), *sorted((key, _message(tensor)) for key, tensor in tensors)])


def _message(tensor: StoredTensor) -> bytes:
    """Return the entry of a tensor."""
    out = [b"\x08", varint(tensor.dtype), b"\x12", _sized(_shape_message(tensor.shape))]
    for tag, number in ((b"\x18", tensor.shard), (b"\x20", tensor.start), (b"\x28", tensor.end - tensor.start)):
        if number:
            out += [tag, varint(number)]
    if not tensor.slices:
        out += [b"\x35", tensor.crc32c.to_bytes(4, "little")]
    for one in tensor.slices:
        extents = ((b"\x08" + varint(start) if start else b"", length) for start, length in one)
        parts = (start if length is None else start + b"\x10" + varint(length) for start, length in extents)
        out += [b"\x3a", _sized(b"".join(b"\x0a" + _sized(part) for part in parts))]
    return b"".join(out)


@lru_cache(maxsize=1024)
def _shape_message(shape: tuple[int, ...]) -> bytes:
    return b"".join(b"\x12" + _sized(b"\x08" + varint(dim) if dim else b"") for dim in shape)


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data


@lru_cache(maxsize=1)  # a listing reads the one that a command then opens
def _read(data: bytes) -> Index:
    tensors: dict[str, StoredTensor] = {}
    slices: dict[bytes, StoredTensor] = {}
    shapes: dict[bytes, tuple[int, ...]] = {}
    shards = -1
    for key, value, offset in entries(data):
        try:
            if shards < 0:
                shards = _header(key, value)
            elif key[0]:
                tensors[key.decode("utf-8", "backslashreplace")] = _tensor(value, shards, shapes)
            else:
                slices[key] = _tensor(value, shards, shapes)
        except MalformedError as error:
            message = f"damaged index: the entry of {key.decode('utf-8', 'replace')!r}: {error}"
            raise CorruptError(message, offset=offset) from None
    if shards < 0:
        raise CorruptError("damaged index: it has no entries", offset=0)
    return Index(shards, tensors, slices)


def _header(key: bytes, value: bytes) -> int:
    """Return the number of data files."""
    shards = 0
    if key:
        raise MalformedError("it stands where the header should be")
    for number, kind, field, stop in _fields(value):
        if (number, kind) == (1, _NUMBER):
            shards = field
        elif (number, kind) == (2, _NUMBER) and field:
            raise UnsupportedError("a bundle that was written by a big-endian machine")
        elif (number, kind) == (3, _BYTES):
            least = [n for k, _, n, _ in _fields(value, field, stop) if k == 2]
            if least and least[-1] > _VERSION:
                raise UnsupportedError(f"a bundle whose readers must know version {least[-1]} of the format")
    if not 0 < shards < 1 << 31:
        raise MalformedError(f"it says {shards} data files")
    return shards


def _tensor(value: bytes, shards: int, shapes: dict[bytes, tuple[int, ...]]) -> StoredTensor:
    """Return the tensor of an entry. It reads the fields by itself, which takes a third of the time of `_fields`."""
    numbers = {0x08: 0, 0x18: 0, 0x20: 0, 0x28: 0}
    shape: tuple[int, ...] = ()
    slices: list[Slice] = []
    position = 0
    end = len(value)
    crc32c = 0
    while position < end:
        begin, tag = position, value[position]
        if tag == 0x35:  # the only one whose value is no varint
            position += 5
            crc32c = int.from_bytes(value[begin + 1 : position], "little")
            continue
        field = value[begin + 1] if begin + 1 < end else 0x80
        position += 2
        if field >= 0x80:
            field, position = varint_at(value, begin + 1, end)
        if tag in numbers:
            numbers[tag] = field
        elif tag == 0x12:
            begin, position = position, position + field
            key = value[begin:position]
            shape = shapes[key] if key in shapes else shapes.setdefault(key, _shape(key))
        elif tag == 0x3A:
            slices.append(_slice(value, position, min(position + field, end)))
            position += field
        else:
            _, _, _, position = next(_fields(value, begin))
    dtype, shard, start, size = numbers.values()
    if position > end or shard >= shards or start + size > _MOST:
        raise MalformedError(f"it is cut short, or cannot be: bytes {start} to {start + size} of data file {shard}")
    return StoredTensor(dtype, shape, shard, start, start + size, crc32c, tuple(slices))


def _shape(value: bytes) -> tuple[int, ...]:
    dims: list[int] = []
    for number, kind, field, stop in _fields(value):
        if (number, kind) == (2, _BYTES):
            dims.append(next((n for k, _, n, _ in _fields(value, field, stop) if k == 1), 0))
        elif (number, kind) == (3, _NUMBER) and field:
            raise MalformedError("it has no shape")
    if len(dims) > _MAX_DIMS or any(dim > _MOST for dim in dims):
        raise MalformedError("its shape cannot be")
    return tuple(dims)


def _slice(value: bytes, start: int, end: int) -> Slice:
    extents: list[tuple[int, int | None]] = []
    for number, kind, field, stop in _fields(value, start, end):
        if (number, kind) == (1, _BYTES):
            numbers = {k: n for k, _, n, _ in _fields(value, field, stop)}
            extents.append((numbers.get(1, 0), numbers.get(2)))
    return tuple(extents)


def _fields(data: bytes, position: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number, wire type, the number or where its bytes begin, and where it ends."""
    end = len(data) if end is None else end
    while position < end:
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = varint_at(data, position - 1, end)
        kind, value = tag & 7, position
        if kind == _FOUR_BYTES:
            position += 4
            value = int.from_bytes(data[value:position], "little")
        elif kind == _EIGHT_BYTES:
            position += 8
        elif kind in {_NUMBER, _BYTES}:
            value, position = varint_at(data, position, end)
            if kind == _BYTES:
                value, position = position, position + value
        else:
            raise MalformedError(f"a field of the unknown wire type {kind}")
        if position > end:
            raise MalformedError("a field is cut short")
        yield tag >> 3, kind, value, position


def slice_key(name: bytes, one: Slice) -> bytes:
    r"""Return the key of a slice: 0, the name, the number of dimensions, and start and length in each of them.

    >>> slice_key(b"w", ((2, 300), (0, None)))
    b'\x00w\x00\x01\x01\x02\x82\xc1,\x80\x7f'
    """
    numbers = (number for start, length in one for number in (start, -1 if length is None else length))
    text = name.replace(b"\0", b"\0\xff") + b"\0\x01"  # UTF-8 has no byte 0xff that would need it too
    return b"\0" + text + _ordered(len(one)) + b"".join(map(_ordered_signed, numbers))


def _ordered(number: int) -> bytes:
    """Return a number as its bytes from the highest on, after how many they are."""
    size = (number.bit_length() + 7) // 8
    return bytes([size]) + number.to_bytes(size, "big")


def _ordered_signed(number: int) -> bytes:
    """Return a number of 64 bits in as many bytes as there are ones, or below 0 zeros, at its begin."""
    size = (number if number >= 0 else ~number).bit_length() // 7 + 1
    whole = number ^ ((1 << size) - 1) << 7 * size
    return (whole & ((1 << 8 * size) - 1)).to_bytes(size, "big")
