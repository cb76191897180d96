"""Tables of LevelDB, in which TensorFlow keeps the index of a bundle: sorted keys and values in checksummed blocks.

A table ends with a footer of 48 bytes: the handle of a block that nothing needs, that of the index block, and a magic
number. The values of the index block are the handles of the data blocks. A block is followed by one byte for its
compression and by the masked CRC-32C of both. Source: leveldb's `doc/table_format.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.numbers import MalformedError, varint_at
from edl_ckpt.core.kernel.checksums import crc32c, unmasked
from edl_ckpt.core.sources.bundle.snappy import decompressed
from edl_ckpt.core.sources.steps.interface import HEAD_BYTES
from edl_ckpt.core.storage.interface import RangeReader

FOOTER_BYTES: Final = 48
MAGIC: Final = (0xDB4775248B80FB57).to_bytes(8, "little")
_TRAILER_BYTES: Final = 5
"""The kind of compression, and the checksum."""
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
        raise _no_table(size, file.path)
    try:
        _check_blocks(file)
    except MalformedError as error:
        raise CorruptError(f"damaged index: {error}", path=file.path, offset=size - FOOTER_BYTES) from None
    if size > HEAD_BYTES:
        raise UnsupportedError(f"an index of {size} bytes, more than {HEAD_BYTES}, is not read", path=file.path)
    return file.read(0, size)


def _check_blocks(file: RangeReader) -> None:
    """Raise MalformedError unless the blocks that the index block names, itself and the footer are the whole file."""
    footer_at = file.size_bytes - FOOTER_BYTES
    footer = file.read(footer_at, FOOTER_BYTES)
    index = _index_handle(footer)
    _require(index.end == footer_at, "its last block does not end at its footer")
    if index.size_bytes > _INDEX_BYTES:
        found = f"the index of the table has {index.size_bytes} bytes"
        raise UnsupportedError(f"{found}, expected at most {_INDEX_BYTES}")

    data = file.read(index.start, index.size_bytes + _TRAILER_BYTES) + footer
    content = _block(data, _Handle(0, index.size_bytes))
    blocks = [_handle_of(value) for _, value in _pairs(content)]
    end = max((block.end for block in blocks), default=0)
    total = sum(block.size_bytes + _TRAILER_BYTES for block in blocks)
    _require(total == end, "its blocks leave a gap")
    _require(index.start - end <= _BETWEEN_BYTES, "its blocks leave a gap before the last one")


def entries(data: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield the key and the value of each entry of a table, in their order, with the offset of their block.

    Raises CorruptError for bytes that are no table, and for keys that do not ascend, UnsupportedError for an unknown
    compression.
    """
    if len(data) < FOOTER_BYTES or not data.endswith(MAGIC):
        raise _no_table(len(data), None)
    here = len(data) - FOOTER_BYTES
    last_key: bytes | None = None
    key_bytes_left = 0
    end = 0
    try:
        index = _index_handle(data[here:])
        here = index.start
        for _, value in _pairs(_block(data, index)):
            handle = _handle_of(value)
            here = handle.start
            _require(here >= end, "a block begins in the one before it")
            block = _block(data, handle)
            end = here + handle.size_bytes
            key_bytes_left += RESTART * len(block)
            for key, entry in _pairs(block):
                _require(last_key is None or key > last_key, "its keys do not ascend")
                key_bytes_left -= len(key)
                _require(key_bytes_left >= 0, "its keys are longer than they can be")
                last_key = key
                yield key, entry, here
    except MalformedError as error:
        raise CorruptError(f"damaged index: {error}", offset=here) from None


def _no_table(size_bytes: int, path: str | None) -> CorruptError:
    """Return the error of a file that does not end as a table does."""
    message = f"not the index of a bundle: it does not end with the footer of a table ({size_bytes} bytes)"
    return CorruptError(message, path=path, offset=max(size_bytes - FOOTER_BYTES, 0))


class _Handle(NamedTuple):
    """Where a block is."""

    start: int
    size_bytes: int
    """Without its trailer."""

    @property
    def end(self) -> int:
        """Return where the block and its trailer end."""
        return self.start + self.size_bytes + _TRAILER_BYTES


def _index_handle(footer: bytes) -> _Handle:
    """Return the handle of the index block; before it stands that of a block that nothing needs."""
    limit = FOOTER_BYTES - len(MAGIC)
    _, position = _handle_at(footer, 0, limit)
    index, _ = _handle_at(footer, position, limit)
    return index


def _handle_of(value: bytes) -> _Handle:
    """Return the handle that a value of the index block begins with."""
    handle, _ = _handle_at(value, 0, len(value))
    return handle


def _handle_at(data: bytes, position: int, end: int) -> tuple[_Handle, int]:
    """Return a handle, and where it ends."""
    start, position = varint_at(data, position, end)
    size_bytes, position = varint_at(data, position, end)
    return _Handle(start, size_bytes), position


def _block(data: bytes, handle: _Handle) -> bytes:
    """Return the content of a block, whose checksum is right."""
    start = handle.start
    end = start + handle.size_bytes
    if handle.end > len(data) - FOOTER_BYTES:
        raise MalformedError(f"a block ends after the end of the file (at byte {end} of {len(data)})")
    stored = int.from_bytes(data[end + 1 : handle.end], "little")
    if crc32c(memoryview(data)[start : end + 1]) != unmasked(stored):
        raise MalformedError("the checksum of a block is wrong")
    compression = data[end]
    if compression > 1:
        raise UnsupportedError(f"unknown compression {compression} of a block of the index", offset=end)
    return decompressed(data[start:end]) if compression else data[start:end]


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block; each key begins like the one before it."""
    restarts = int.from_bytes(block[-4:], "little")
    limit = len(block) - 4 - 4 * restarts
    if limit < 0 or len(block) < 4:
        raise MalformedError("a block is too small for its restarts")
    key = b""
    position = 0
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
