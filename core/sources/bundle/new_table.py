"""A new table of LevelDB, byte for byte as TensorFlow's TableBuilder makes it; `table.py` says what a table is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from edl_ckpt.core.base.numbers import varint
from edl_ckpt.core.kernel.checksums import crc32c, masked
from edl_ckpt.core.sources.bundle.table import FOOTER_BYTES, MAGIC, RESTART

_BLOCK_BYTES: Final = 256 << 10
"""TensorFlow ends a block once it has so many bytes."""


class _NewBlock:
    """A block that is being written; the key of every `interval`th entry is stored whole."""

    def __init__(self, interval: int = RESTART) -> None:
        self.data = bytearray()
        self.last_key = b""
        self._count = 0
        self._interval = interval
        self._restarts = [bytes(4)]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the whole block."""
        return len(self.data) + 4 * len(self._restarts) + 4

    def add(self, key: bytes, value: bytes) -> None:
        """Add an entry, whose key comes after all others."""
        shared = 0
        if self._count % self._interval:
            shared = _shared(self.last_key, key)
        elif self._count:
            self._restarts.append(len(self.data).to_bytes(4, "little"))
        sizes = (shared, len(key) - shared, len(value))
        self.data += bytes(sizes) if max(sizes) < 0x80 else b"".join(map(varint, sizes))
        self.data += key[shared:]
        self.data += value
        self._count += 1
        self.last_key = key

    def append_to(self, out: bytearray) -> bytes:
        """Append the block and its trailer to a table, and return its handle."""
        start = len(out)
        restarts = b"".join(self._restarts) + len(self._restarts).to_bytes(4, "little")
        content = bytes(self.data) + restarts
        block = content + b"\0"  # not compressed
        out += block
        out += masked(crc32c(block)).to_bytes(4, "little")
        return varint(start) + varint(len(content))


def table(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the table of keys that ascend and their values, byte for byte as TensorFlow's TableBuilder makes it."""
    out = bytearray()
    block = _NewBlock()
    index = _NewBlock(1)
    for key, value in pairs:
        is_large = len(key) + len(value) >= 2 * _BLOCK_BYTES  # it gets a block of its own
        if block.size_bytes >= _BLOCK_BYTES or (block.data and is_large):
            index.add(_between(block.last_key, key), block.append_to(out))
            block = _NewBlock()
        block.add(key, value)
    index.add(_after(block.last_key), block.append_to(out))
    unused = _NewBlock().append_to(out)
    handles = unused + index.append_to(out)
    return bytes(out + handles.ljust(FOOTER_BYTES - len(MAGIC), b"\0") + MAGIC)


def _between(last: bytes, first: bytes) -> bytes:
    """Return the key in the index of a block that ends with `last`, where the next one begins with `first`.

    It is the shortest that is not below the one and is below the other, of those with the next byte of `last`.

    >>> _between(b"weights/a", b"words"), _between(b"a", b"b")
    (b'wf', b'a')
    """
    same = _shared(last, first)
    if same < len(last) and last[same] + 1 < first[same]:
        return last[:same] + bytes([last[same] + 1])
    return last


def _after(last: bytes) -> bytes:
    r"""Return the key in the index of the last block: the shortest that is not below its last key.

    >>> _after(b"weights"), _after(b"\xff\xffab"), _after(b"\xff")
    (b'x', b'\xff\xffb', b'\xff')
    """
    rest = last.lstrip(b"\xff")
    if not rest:
        return last
    return last[: len(last) - len(rest)] + bytes([rest[0] + 1])


def _shared(key: bytes, other: bytes) -> int:
    """Return how many bytes two keys begin with alike.

    >>> _shared(b"weights", b"weird"), _shared(b"", b"a")
    (3, 0)
    """
    size = min(len(key), len(other))
    return size - ((int.from_bytes(key[:size], "big") ^ int.from_bytes(other[:size], "big")).bit_length() + 7) // 8
