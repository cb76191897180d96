"""Items of torch: each is a zip of its own inside a data file, whose members are stored as they are.

`data.pkl` says dtype, shape and strides of the tensor, `data/KEY` has its bytes. The pickle lies at the begin of the
zip, its directory at the end. So two small reads of an item suffice, and those of neighbouring items are one read.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.packing import near
from edl_ckpt.core.sources.dcp.metadata import Item
from edl_ckpt.core.sources.dcp.pickles import TENSOR_NAMES, kind_of, load
from edl_ckpt.core.sources.torch.tensors import ItemValues, StoredTensor, logical_bytes, stored_tensor
from edl_ckpt.core.sources.torch.zips import LOCAL, Member, directory_entries
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
_END: Final = struct.Struct("<4s36xQQ4s38x")
"""The records at the end of a zip: torch always writes that of 64 bits and its locator, before that of 32 bits."""
_Fault: TypeAlias = CorruptError | UnsupportedError


class _Archive:
    """An item, of which the begin and the end were read."""

    def __init__(self, reader: RangeReader, item: Item, head: bytes, tail: bytes) -> None:
        self._reader, self._start, self._head, self._tail = reader, item.start, head, tail
        self._size = item.end - item.start
        self._archive: bytes | None = None
        self._members = dict(self._directory())

    def _error(self, message: str, offset: int = 0) -> CorruptError:
        return CorruptError(message, offset=self._start + offset)

    def _read(self, offset: int, size: int) -> bytes:
        """Return bytes of the item; CorruptError for others."""
        if offset < 0 or size > _SMALL_BYTES or offset + size > self._size:
            raise self._error("its zip names bytes outside of it")
        if offset + size <= len(self._head):
            return self._head[offset : offset + size]
        tail = offset - (self._size - len(self._tail))
        return self._tail[tail : tail + size] if tail >= 0 else self._reader.read(self._start + offset, size)

    def _directory(self) -> Iterator[tuple[bytes, Member]]:
        """Yield the members, by their names without that of the archive."""
        end = self._size - _END.size
        mark, size, start, locator = _END.unpack(self._read(end, _END.size))
        if (mark, locator) != (b"PK\6\6", b"PK\6\7") or start + size != end:
            raise self._error("its zip does not end as it must", max(end, 0))
        for name, member in directory_entries(self._read(start, size), self._start + start):
            self._archive = member.archive if self._archive is None else self._archive
            yield name, member

    def _extent(self, name: bytes) -> tuple[int, int, int]:
        """Return where a member begins and ends in the item, and its checksum."""
        if name not in self._members:
            raise self._error(f"its zip has no {name.decode(errors='replace')}")
        folder, crc, length, header = self._members[name]
        if folder != self._archive:  # torch takes the name of the first member's, and misses this one
            raise self._error(f"its zip has {name.decode(errors='replace')} under another name of its archive", header)
        mark, named, extra = LOCAL.unpack(self._read(header, LOCAL.size))
        inside = self._read(header + LOCAL.size, named)
        start = header + LOCAL.size + named + extra
        if mark != b"PK\3\4" or inside.partition(b"/")[2] != name or start + length > self._size:
            raise self._error(f"its zip has another header of {name.decode(errors='replace')}", header)
        return start, start + length, crc

    def _content(self, name: bytes) -> bytes:
        """Return a small member; CorruptError where its checksum differs."""
        start, end, crc = self._extent(name)
        data = self._read(start, end - start)
        if zlib.crc32(data) != crc:
            raise self._error(f"the checksum of {name.decode()} differs", start)
        return data

    def values(self) -> ItemValues:
        """Return the tensor."""
        if b"byteorder" in self._members and self._content(b"byteorder") != b"little":
            raise UnsupportedError("its values are big-endian")
        key, stored, needed, tensor = _tensor(self._content(b"data.pkl"))
        start, end, crc = self._extent(b"data/" + key.encode(errors="replace"))
        if needed > end - start or stored != end - start:
            raise self._error(f"its shape {list(tensor.shape)} does not fit into {end - start} bytes", start)
        start, end = self._start + start, self._start + end
        return replace(tensor, first=start + tensor.first, start=start, end=end, crc=crc)


@functools.lru_cache(maxsize=1024)
def _tensor(pickled: bytes) -> StoredTensor:
    """Return what `data.pkl` says of its tensor, each element of which has bytes of its own."""
    tensor = load(pickled, TENSOR_NAMES)
    args: tuple[Any, ...] = tensor.given if kind_of(tensor) == "Tensor" else ()
    storage: Any = args[0].given[0] if len(args) > 5 and kind_of(args[0]) == "Pickled" else ()
    if type(storage) is not tuple or len(storage) != 5:
        raise CorruptError("its pickle is no tensor")
    stored = stored_tensor(storage, (args[1], args[2], args[3], *args[4:]))
    return stored._replace(needed=max(stored.needed, logical_bytes(stored.values)))


def read_values(reader: RangeReader, items: Sequence[Item]) -> Iterator[tuple[Item, ItemValues | _Fault]]:
    """Yield the tensor of each item of a file, in the order of the file, or why it cannot be read."""
    ends: list[tuple[Item, int, int]] = []
    last = 0
    for item in sorted(items, key=lambda item: item.start):
        if item.start < last or item.end > reader.size_bytes:
            beyond = f"ends at byte {item.end:,} of {reader.size_bytes:,}"
            message = f"its item {beyond if item.start >= last else 'overlaps another one'}"
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
            if item.start not in heads:
                heads[item.start] = part
                continue
            try:
                yield item, _Archive(reader, item, heads.pop(item.start), part).values()
            except (CorruptError, UnsupportedError) as error:
                yield item, error
