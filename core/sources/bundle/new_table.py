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
    return bytes(out + (handles + index.append_to(out)).ljust(FOOTER_BYTES - len(MAGIC), b"\0") + MAGIC)


def _shared(key: bytes, other: bytes) -> int:
    """Return how many bytes two keys begin with alike.

    >>> _shared(b"weights", b"weird"), _shared(b"", b"a")
    (3, 0)
    """
    size = min(len(key), len(other))
    return size - ((int.from_bytes(key[:size], "big") ^ int.from_bytes(other[:size], "big")).bit_length() + 7) // 8
