"""Tables of LevelDB, in which TensorFlow keeps the index of a bundle: sorted keys and values in checksummed blocks.

A table ends with a footer of 48 bytes: the handle of a block that nothing needs, that of the index block, and a magic
number. The values of the index block are the handles of the data blocks. A block is followed by one byte for its
compression and by the masked CRC-32C of both. Source: leveldb's `doc/table_format.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.numbers import MalformedError, varint_at
from edl_ckpt.core.kernel.checksums import crc32c, unmasked
from edl_ckpt.core.sources.bundle.snappy import decompressed
from edl_ckpt.core.sources.steps.interface import HEAD_BYTES
from edl_ckpt.core.storage.interface import RangeReader

FOOTER_BYTES: Final = 48
MAGIC: Final = (0xDB4775248B80FB57).to_bytes(8, "little")
_TRAILER_BYTES: Final = 5
RESTART: Final = 16
"""A key is stored whole after 16 others at the latest, so all keys are no longer than so many times their block."""
_INDEX_BYTES: Final = 64 << 20
_BETWEEN_BYTES: Final = 4 << 10
"""Between the last data block and the index block is one that has nothing."""
SMALL_BYTES: Final = 8 << 20
"""So small a table is read as it is; of a larger one, what its footer bounds."""


def _require(fact: bool, message: str) -> None:  # noqa: FBT001 - a statement, as of `assert`
    if not fact:
        raise MalformedError(message)


def is_table(file: RangeReader) -> bool:
    """Say whether a file ends as a table does: that alone tells the index of a bundle from any other `.index`."""
    size = file.size_bytes
    return size >= FOOTER_BYTES and file.read(size - len(MAGIC), len(MAGIC)) == MAGIC


def read_table(file: RangeReader) -> bytes:
    """Return the bytes of a table, which its footer bounds; CorruptError for a file that has others too.

    Nothing is read for the size of a file alone: its blocks, by the index block, must be the whole of it. Raises
    UnsupportedError for a table with a larger index block than any bundle has.
    """
    size = file.size_bytes
    if size <= SMALL_BYTES:
        return file.read(0, size)
    if not is_table(file):
        message = f"not the index of a bundle: it does not end with the footer of a table ({size} bytes)"
        raise CorruptError(message, path=file.path, offset=max(size - FOOTER_BYTES, 0))
    footer = file.read(size - FOOTER_BYTES, FOOTER_BYTES)
    try:
        limit = FOOTER_BYTES - len(MAGIC)
        position = varint_at(footer, varint_at(footer, 0, limit)[1], limit)[1]  # after the block that nothing needs
        start, count, _ = _handle(footer, position, limit)
        _require(start + count + _TRAILER_BYTES == size - FOOTER_BYTES, "its last block does not end at its footer")
        if count > _INDEX_BYTES:
            raise UnsupportedError(f"the index of the table has {count} bytes, expected at most {_INDEX_BYTES}")
        block = file.read(start, count + _TRAILER_BYTES)
        handles = [_handle(handle, 0, len(handle)) for _, handle in _pairs(_block(block + footer, 0, count))]
        end = max((first + one + _TRAILER_BYTES for first, one, _ in handles), default=0)
        _require(sum(one + _TRAILER_BYTES for _, one, _ in handles) == end, "its blocks leave a gap")
        _require(start - end <= _BETWEEN_BYTES, "its blocks leave a gap before the last one")
    except MalformedError as error:
        raise CorruptError(f"damaged index: {error}", path=file.path, offset=size - FOOTER_BYTES) from None
    if size > HEAD_BYTES:
        raise UnsupportedError(f"an index of {size} bytes, more than {HEAD_BYTES}, is not read", path=file.path)
    return file.read(0, size)


def entries(data: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield the key and the value of each entry of a table, in their order, with the offset of their block.

    Raises CorruptError for bytes that are no table, and for keys that do not ascend, UnsupportedError for an unknown
    compression.
    """
    if len(data) < FOOTER_BYTES or not data.endswith(MAGIC):
        message = f"not the index of a bundle: it does not end with the footer of a table ({len(data)} bytes)"
        raise CorruptError(message, offset=max(len(data) - FOOTER_BYTES, 0))
    start, limit = len(data) - FOOTER_BYTES, len(data) - 8
    last, budget, end = None, 0, 0
    try:
        position = varint_at(data, varint_at(data, start, limit)[1], limit)[1]  # after the block that nothing needs
        start, size, _ = _handle(data, position, limit)
        for _, handle in _pairs(_block(data, start, size)):
            start, size, _ = _handle(handle, 0, len(handle))
            _require(start >= end, "a block begins in the one before it")
            end, block = start + size, _block(data, start, size)
            budget += RESTART * len(block)
            for key, value in _pairs(block):
                _require(last is None or key > last, "its keys do not ascend")
                last, budget = key, budget - len(key)
                _require(budget >= 0, "its keys are longer than they can be")
                yield key, value, start
    except MalformedError as error:
        raise CorruptError(f"damaged index: {error}", offset=start) from None


def _handle(data: bytes, position: int, end: int) -> tuple[int, int, int]:
    """Return the offset and the size of a block, and where its handle ends."""
    start, position = varint_at(data, position, end)
    size, position = varint_at(data, position, end)
    return start, size, position


def _block(data: bytes, start: int, size: int) -> bytes:
    """Return the content of a block, whose checksum is right."""
    end = start + size
    if end + _TRAILER_BYTES > len(data) - FOOTER_BYTES:
        raise MalformedError(f"a block ends after the end of the file (at byte {end} of {len(data)})")
    stored = int.from_bytes(data[end + 1 : end + _TRAILER_BYTES], "little")
    if crc32c(memoryview(data)[start : end + 1]) != unmasked(stored):
        raise MalformedError("the checksum of a block is wrong")
    if data[end] > 1:
        raise UnsupportedError(f"unknown compression {data[end]} of a block of the index", offset=end)
    return decompressed(data[start:end]) if data[end] else data[start:end]


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block; each key begins like the one before it."""
    limit = len(block) - 4
    limit -= 4 * int.from_bytes(block[-4:], "little")
    if limit < 0 or len(block) < 4:
        raise MalformedError("a block is too small for its restarts")
    key, position = b"", 0
    while position < limit:
        shared, fresh, size = block[position : position + 3]  # at least four bytes follow `limit`
        position += 3
        if (shared | fresh | size) >= 0x80:
            shared, position = varint_at(block, position - 3, limit)
            fresh, position = varint_at(block, position, limit)
            size, position = varint_at(block, position, limit)
        start = position + fresh
        end = start + size
        if end > limit or shared > len(key):
            raise MalformedError("an entry is larger than its block, or its key longer than the one before it")
        key = key[:shared] + block[position:start]
        yield key, block[start:end]
        position = end
