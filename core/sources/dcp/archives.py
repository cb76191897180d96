"""Items of torch: each is a zip of its own inside a data file, whose members are stored as they are.

`data.pkl` says dtype, shape and strides of the tensor, `data/KEY` has its bytes. The zip's directory lies at its end,
the pickle at its begin, so two small reads per item suffice; those of neighbouring items are one read.
"""

from __future__ import annotations

import functools
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.packing import near
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.sources.dcp.metadata import Item, whole_numbers
from edl_ckpt.core.sources.dcp.pickles import TENSOR_NAMES, Pickled, PickledValues, load
from edl_ckpt.core.storage.interface import RangeReader

_HEAD_BYTES: Final = 1536
"""What is before the values in an item of torch, with the alignment of their begin."""
_TAIL_BYTES: Final = 1024
"""The directory of an item, and the records at its end."""
_NEAR_BYTES: Final = 4 << 10
_FAR_BYTES: Final = 64 << 10
"""What lies between two reads is read with them up to these sizes, on a disk and where a read takes a request."""
_MOST_BYTES: Final = 1 << 20
_SMALL_BYTES: Final = 64 << 10
"""No directory of an item, and no pickle of a tensor, is larger."""
_END: Final = struct.Struct("<4sHHHHIIH")
_END64: Final = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR64: Final = struct.Struct("<4sIQI")
_ENTRY: Final = struct.Struct("<10xH4xIIIHHH8xI")
_LOCAL: Final = struct.Struct("<4s22xHH")
_IN_EXTRA: Final = 0xFFFFFFFF
_Fault: TypeAlias = CorruptError | UnsupportedError


@dataclass(frozen=True, slots=True)
class ItemValues:
    """The tensor of an item: where its storage lies in the file, and the place of the first element there.

    `strides` are bytes for each dimension. `crc` is that of the bytes [start, end).
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int
    start: int
    end: int
    crc: int

    @property
    def is_plain(self) -> bool:
        """Return True where the elements follow each other in C order."""
        return in_c_order(self.shape, self.strides, DTYPES[self.dtype].itemsize)


def in_c_order(sizes: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Say whether elements follow each other in C order, without gaps; strides are bytes."""
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != itemsize:
            return 0 in sizes
        itemsize *= size
    return True


class _ZipMember(NamedTuple):
    crc: int
    size: int
    header: int


class _Archive:
    """An item, of which the begin and the end were read."""

    def __init__(self, reader: RangeReader, item: Item, head: bytes, tail: bytes) -> None:
        self._reader, self._item, self._head, self._tail = reader, item, head, tail
        self._size = item.end - item.start

    def _read(self, offset: int, size: int) -> bytes:
        """Return bytes of the item; CorruptError for some outside of it."""
        tail = self._size - len(self._tail)
        if offset < 0 or size > _SMALL_BYTES or offset + size > self._size:
            raise CorruptError("its zip names bytes outside of it", offset=self._item.start)
        if offset + size <= len(self._head):
            return self._head[offset : offset + size]
        if offset >= tail:
            return self._tail[offset - tail :][:size]
        return self._reader.read(self._item.start + offset, size)

    def _fields(self, kind: struct.Struct, offset: int, mark: bytes) -> tuple[int, ...]:
        """Return the numbers of a record of the zip, without its mark."""
        stored_mark, *numbers = kind.unpack(self._read(offset, kind.size))
        if stored_mark != mark:
            raise CorruptError("its zip has no record where one must be", offset=self._item.start + max(offset, 0))
        return tuple(numbers)

    def _directory(self) -> bytes:
        """Return the directory of the zip."""
        end = self._size - _END.size
        size, start = self._fields(_END, end, b"PK\5\6")[4:6]
        locator = end - _LOCATOR64.size
        if locator >= 0 and self._read(locator, 4) == b"PK\6\7":
            end = self._fields(_LOCATOR64, locator, b"PK\6\7")[1]
            size, start = self._fields(_END64, end, b"PK\6\6")[7:9]
        if start + size != end:
            raise CorruptError("the directory of its zip does not end where it says", offset=self._item.start + end)
        return self._read(start, size)

    @functools.cached_property
    def _members(self) -> dict[str, _ZipMember]:
        """Return the members by their names, without the name of the archive."""
        data, position = self._directory(), 0
        members: dict[str, _ZipMember] = {}
        while position < len(data):
            if len(data) - position < _ENTRY.size or data[position : position + 4] != b"PK\1\2":
                raise CorruptError("the directory of its zip is damaged", offset=self._item.start)
            method, crc, packed, size, named, extra, comment, header = _ENTRY.unpack_from(data, position)
            position += _ENTRY.size + named + extra + comment
            name = data[position - named - extra - comment :][:named].decode("utf-8", "replace")
            size, packed, header = _in_extra(data[position - extra - comment :][:extra], size, packed, header)
            if method or size != packed:
                raise UnsupportedError(f"its zip has a compressed member: {name}")
            members[name.partition("/")[2]] = _ZipMember(crc, size, header)
        return members

    def _extent(self, name: str) -> tuple[int, int, int]:
        """Return where a member begins and ends in the item, and its checksum."""
        member = self._members.get(name)
        if member is None:
            raise CorruptError(f"its zip has no {name}", offset=self._item.start)
        named, extra = self._fields(_LOCAL, member.header, b"PK\3\4")
        start = member.header + _LOCAL.size + named + extra
        whole_name = self._read(member.header + _LOCAL.size, named)
        if whole_name.partition(b"/")[2] != name.encode() or start + member.size > self._size:
            raise CorruptError(f"the header of {name} contradicts the directory of its zip", offset=self._item.start)
        return start, start + member.size, member.crc

    def _content(self, name: str) -> bytes:
        """Return a small member; CorruptError where its checksum differs."""
        start, end, crc = self._extent(name)
        data = self._read(start, end - start)
        if zlib.crc32(data) != crc:
            raise CorruptError(
                f"the checksum of {name} differs", code="checksum-mismatch", offset=self._item.start + start
            )
        return data

    def values(self) -> ItemValues:
        """Return the tensor."""
        if "byteorder" in self._members and self._content("byteorder") != b"little":
            raise UnsupportedError("its values are big-endian")
        dtype, key, elements, first, shape, strides = _tensor(self._content("data.pkl"))
        start, end, crc = self._extent(f"data/{key}")
        itemsize = DTYPES[dtype].itemsize
        last = first + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if end - start != elements * itemsize or (0 not in shape and last >= elements) or math.prod(shape) > elements:
            message = f"its shape {list(shape)} of {dtype} does not fit into {end - start} bytes"
            raise CorruptError(message, offset=self._item.start + start)
        base = self._item.start
        in_bytes = tuple(stride * itemsize for stride in strides)
        return ItemValues(dtype, shape, in_bytes, base + start + first * itemsize, base + start, base + end, crc)


def _in_extra(extra: bytes, *numbers: int) -> Iterator[int]:
    """Yield the numbers of a directory's entry; those that need 64 bits lie in its extra field."""
    long = extra[4:] if extra[:2] == b"\1\0" else b""
    for number in numbers:
        if number != _IN_EXTRA:
            yield number
        elif len(long) < 8:
            raise CorruptError("the directory of its zip lacks a size")
        else:
            yield int.from_bytes(long[:8], "little")
            long = long[8:]


class _Rebuilt(NamedTuple):
    """What the pickle of an item says: its dtype, the key of its storage, and numbers of elements."""

    dtype: str
    key: str
    elements: int
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def _tensor(pickled: bytes) -> _Rebuilt:
    """Return what `data.pkl` says of a tensor."""
    tensor = load(pickled, TENSOR_NAMES)
    args = tensor.args if type(tensor) is PickledValues else ()
    storage = args[0].args[0] if args and type(args[0]) is Pickled else ()
    if type(storage) is not tuple or len(storage) != 5 or len(args) < 6:
        raise CorruptError("its pickle is no tensor")
    _, dtype, key, _, length = storage
    untyped = dtype == "" and len(args) > 6
    dtype = args[6] if untyped else dtype
    if type(dtype) is not str or type(key) is not str or dtype not in DTYPES:
        raise CorruptError("its pickle names no dtype of ours")
    elements, first = whole_numbers((length, args[1]))
    shape, strides = whole_numbers(args[2]), whole_numbers(args[3])
    if len(shape) != len(strides):
        raise CorruptError("its pickle has strides for other dimensions than those of its shape")
    return _Rebuilt(dtype, key, elements // DTYPES[dtype].itemsize if untyped else elements, first, shape, strides)


def read_values(
    reader: RangeReader, items: Sequence[Item]
) -> Iterator[tuple[Item, ItemValues | CorruptError | UnsupportedError]]:
    """Yield the tensor of each item of a file, in the order of the file, or why it cannot be read."""
    ends: list[tuple[Item, int, int]] = []
    last = 0
    for item in sorted(items, key=lambda item: item.start):
        if item.end > reader.size_bytes or item.start < last:
            what = (
                "overlaps another one" if item.start < last else f"ends at byte {item.end:,} of {reader.size_bytes:,}"
            )
            message = f"{item.name!r}: its item {what}"
            yield item, CorruptError(message, code="values-outside-content", path=reader.path, offset=item.start)
            continue
        last = item.end
        ends.append((item, item.start, min(item.start + _HEAD_BYTES, last)))
        ends.append((item, max(item.start, last - _TAIL_BYTES), last))
    heads: dict[int, bytes] = {}
    gap = _FAR_BYTES if reader.block_bytes else _NEAR_BYTES
    for start, end, close in near(ends, lambda one: one[1:], gap, _MOST_BYTES):
        data = reader.read(start, end - start)
        for item, first, stop in close:
            part = data[first - start : stop - start]
            if item.start in heads:
                yield item, _parsed(reader, item, heads.pop(item.start), part)
            else:
                heads[item.start] = part


def _parsed(reader: RangeReader, item: Item, head: bytes, tail: bytes) -> ItemValues | _Fault:
    try:
        return _Archive(reader, item, head, tail).values()
    except CorruptError as error:
        offset = item.start if error.offset is None else error.offset
        return CorruptError(f"{item.name!r}: {error.message}", code=error.code, path=reader.path, offset=offset)
    except UnsupportedError as error:
        return UnsupportedError(f"{item.name!r}: {error.message}", path=reader.path, offset=item.start)
