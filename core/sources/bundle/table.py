"""Tables of LevelDB, in which TensorFlow keeps the index of a bundle: sorted keys and values in checksummed blocks.

A table ends with a footer of 48 bytes: the handle of a block that nothing needs, that of the index block, and a magic
number. The values of the index block are the handles of the data blocks. A block is followed by one byte for its
compression and by the masked CRC-32C of both. Source: leveldb's `doc/table_format.md`, snappy's
`format_description.txt`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.numbers import MalformedError, varint, varint_at
from edl_ckpt.core.kernel.checksums import crc32c, masked, unmasked
from edl_ckpt.core.sources.steps.interface import HEAD_BYTES
from edl_ckpt.core.storage.interface import RangeReader

FOOTER_BYTES: Final = 48
_MAGIC: Final = (0xDB4775248B80FB57).to_bytes(8, "little")
_TRAILER_BYTES: Final = 5
_SNAPPY_FACTOR: Final = 32
"""More than snappy can expand anything by: a copy of 64 bytes takes three."""
_RESTART: Final = 16
"""A key is stored whole after 16 others at the latest, so all keys are no longer than so many times their block."""
_BLOCK_BYTES: Final = 256 << 10
"""TensorFlow ends a block once it has so many bytes."""
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
    return size >= FOOTER_BYTES and file.read(size - len(_MAGIC), len(_MAGIC)) == _MAGIC


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
        limit = FOOTER_BYTES - len(_MAGIC)
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
    if len(data) < FOOTER_BYTES or not data.endswith(_MAGIC):
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
            budget += _RESTART * len(block)
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


class _NewBlock:
    """A block that is being written; the key of every `interval`th entry is stored whole."""

    def __init__(self, interval: int = _RESTART) -> None:
        self.data, self.key, self._count, self._interval = bytearray(), b"", 0, interval
        self._restarts = [bytes(4)]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the whole block."""
        return len(self.data) + 4 * len(self._restarts) + 4

    def add(self, key: bytes, value: bytes) -> None:
        """Add an entry, whose key comes after all others."""
        shared = 0
        if self._count % self._interval:
            shared = _shared(self.key, key)
        elif self._count:
            self._restarts.append(len(self.data).to_bytes(4, "little"))
        sizes = (shared, len(key) - shared, len(value))
        self.data += bytes(sizes) if max(sizes) < 0x80 else b"".join(map(varint, sizes))
        self.data += key[shared:]
        self.data += value
        self._count += 1
        self.key = key

    def append_to(self, out: bytearray) -> bytes:
        """Append the block and its trailer to a table, and return its handle."""
        start, data = len(out), b"".join([self.data, *self._restarts, len(self._restarts).to_bytes(4, "little"), b"\0"])
        out += data + masked(crc32c(data)).to_bytes(4, "little")
        return varint(start) + varint(len(data) - 1)


def table(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the table of keys that ascend and their values, byte for byte as TensorFlow's TableBuilder makes it."""
    out, block, index = bytearray(), _NewBlock(), _NewBlock(1)
    for key, value in pairs:
        if block.size_bytes >= _BLOCK_BYTES or (block.data and len(key) + len(value) >= 2 * _BLOCK_BYTES):
            cut = _shared(block.key, key)
            between = block.key[: cut + 1]
            shorter = cut < len(block.key) and between[cut] + 1 < key[cut]
            index.add(between[:cut] + bytes([between[cut] + 1]) if shorter else block.key, block.append_to(out))
            block = _NewBlock()
        block.add(key, value)
    rest = block.key.lstrip(b"\xff")
    last = block.key[: len(block.key) - len(rest)] + bytes([rest[0] + 1]) if rest else block.key
    handle = block.append_to(out)
    handles = _NewBlock().append_to(out)
    index.add(last, handle)
    return bytes(out + (handles + index.append_to(out)).ljust(FOOTER_BYTES - len(_MAGIC), b"\0") + _MAGIC)


def _shared(key: bytes, other: bytes) -> int:
    """Return how many bytes two keys begin with alike.

    >>> _shared(b"weights", b"weird"), _shared(b"", b"a")
    (3, 0)
    """
    size = min(len(key), len(other))
    return size - ((int.from_bytes(key[:size], "big") ^ int.from_bytes(other[:size], "big")).bit_length() + 7) // 8


def decompressed(data: bytes) -> bytes:
    r"""Return what snappy has compressed to these bytes; MalformedError for bytes that it cannot have made.

    >>> decompressed(b"\x09\x08abc\x09\x03")
    b'abcabcabc'
    """
    size, position = varint_at(data, 0, len(data))
    if size > _SNAPPY_FACTOR * len(data):
        raise MalformedError("a compressed block is larger than it can be")
    out = bytearray()
    while position < len(data):
        tag = data[position]
        kind, length, position = tag & 3, (tag >> 2) + 1, position + 1
        more = kind or max(length - 60, 0)  # bytes of the offset, or of the length of bytes as they are
        more = 4 if kind == 3 else more
        number = int.from_bytes(data[position : position + more], "little")
        position += more
        if position > len(data):
            raise MalformedError("a compressed block is cut short")
        if kind == 0:
            length = number + 1 if more else length
            if position + length > len(data):
                raise MalformedError("a compressed block is cut short")
            out += data[position : position + length]
            position += length
            continue
        if kind == 1:
            number, length = number | tag >> 5 << 8, (length - 1 & 7) + 4
        if not 0 < number <= len(out):
            raise MalformedError("a compressed block copies from before its begin")
        start = len(out) - number
        source = out[start : start + length]
        out += (source * (length // len(source) + 1))[:length]
        if len(out) > size:
            break
    if len(out) != size:
        raise MalformedError("a compressed block has another size than it says")
    return bytes(out)
