"""CRC-32 of bytes in pieces, and CRC-32C (Castagnoli), which tensor bundles have of each tensor and block of an index.

Without a compiled kernel zlib has the one, and numpy the other. They are the references; numpy is imported only then,
since a listing compares checksums too.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

if TYPE_CHECKING:
    from edl_ckpt.core.kernel._kernel import Kernel
    from edl_ckpt.core.kernel.bulk import U8, U32

_ZLIB: Final = 0xEDB88320
_CASTAGNOLI: Final = 0x82F63B78
"""Polynomials, with their bits reversed."""
_ONE: Final = 1 << 31
_ALL: Final = 0xFFFFFFFF
_LANES: Final = 1 << 12
"""Bytes that numpy looks at together, each of another part of the data."""
_MASK_DELTA: Final = 0xA282EAD8
compiled: Callable[[Any, int], int] | None = None
"""What the kernel has for CRC-32C; tests set it to None to compare numpy with it."""
crc32: Callable[[Any, int], int] = zlib.crc32
"""CRC-32 of some bytes, after those that a value is the CRC-32 of; in the kernel it is three times as fast."""
with suppress(ImportError, AttributeError):  # no compiler at installation, or a kernel that was built for other code
    from edl_ckpt.core.kernel import _kernel

    compiled = cast("Kernel", _kernel).crc32c
    crc32 = cast("Kernel", _kernel).crc32


def crc32c(data: bytes | memoryview | U8, value: int = 0) -> int:
    """Return the CRC-32C of some bytes, after those that `value` is the CRC-32C of.

    >>> hex(crc32c(b"123456789")), crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    ('0xe3069283', True)
    """
    return compiled(data, value) if compiled is not None else _by_numpy(data, value)


class Crc(NamedTuple):
    """A checksum of 32 bits: the function that goes on with it, and its polynomial."""

    of: Callable[[Any, int], int]
    polynomial: int


CRCS: Final = {"crc32": Crc(crc32, _ZLIB), "crc32c": Crc(crc32c, _CASTAGNOLI)}


@dataclass(slots=True)
class Crc32:
    """The CRC-32, or CRC-32C, of bytes that come in pieces, in any order and from several threads."""

    kind: str = "crc32"
    _pieces: dict[int, tuple[int, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, at: int, data: memoryview | bytes) -> None:
        """Add bytes at an offset."""
        crc = CRCS[self.kind].of(data, 0)
        with self._lock:
            self._pieces[at] = (len(data), crc)

    @property
    def pieces(self) -> dict[int, tuple[int, int]]:
        """Return the size and the checksum of each piece, by its offset, for another process to take."""
        return dict(self._pieces)

    def take(self, pieces: Mapping[int, tuple[int, int]]) -> None:
        """Take the pieces that another process has added."""
        with self._lock:
            self._pieces.update(pieces)

    def join(self) -> None:
        """Make one piece of those that follow each other, so that they are few to send."""
        with self._lock:
            joined: dict[int, tuple[int, int]] = {}
            begin = end = -1
            for at, (size, crc) in sorted(self._pieces.items()):
                if at == end:
                    before, known = joined[begin]
                    joined[begin] = before + size, combined_crc32(known, crc, size, self.kind)
                else:
                    joined[at] = size, crc
                    begin = at
                end = at + size
            self._pieces = joined

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all pieces."""
        return sum(size for size, _ in self._pieces.values())

    def value(self) -> int:
        """Return the checksum of all pieces in their order."""
        crc = 0
        for at in sorted(self._pieces):
            size, own = self._pieces[at]
            crc = combined_crc32(crc, own, size, self.kind)
        return crc


def combined_crc32(first: int, second: int, second_bytes: int, kind: str = "crc32") -> int:
    """Return the CRC-32 of two pieces from that of each: crc32_combine of zlib, which Python does not have.

    >>> combined_crc32(zlib.crc32(b"abc"), zlib.crc32(b"defgh"), 5) == zlib.crc32(b"abcdefgh")
    True
    """
    polynomial = CRCS[kind].polynomial
    return _multiply(_zeros(second_bytes, polynomial), first, polynomial) ^ second if first else second


@lru_cache(1 << 10)
def _zeros(count: int, polynomial: int) -> int:
    """Return x**(8 * count) modulo a polynomial: what so many zero bytes multiply a sum by."""
    shift, step = _ONE, 3
    while count:
        if count & 1:
            shift = _multiply(_power(step, polynomial), shift, polynomial)
        count >>= 1
        step += 1
    return shift


@cache
def _power(exponent: int, polynomial: int) -> int:
    """Return x**(2**exponent) modulo a polynomial."""
    root = _power(exponent - 1, polynomial) if exponent else 0
    return _multiply(root, root, polynomial) if exponent else _ONE >> 1


def _multiply(a: int, b: int, polynomial: int) -> int:
    """Multiply polynomials over two elements, bits reflected, modulo another one."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (polynomial if b & 1 else 0)
    return product


def unmasked(value: int) -> int:
    """Return the checksum that LevelDB and TensorFlow store as this value: rotated, and with a number added.

    >>> hex(unmasked(0xC78AB0E5))
    '0xe3069283'
    """
    rotated = (value - _MASK_DELTA) & _ALL
    return (rotated >> 17 | rotated << 15) & _ALL


def masked(value: int) -> int:
    """Return the value that LevelDB and TensorFlow store for a checksum.

    >>> hex(masked(0xe3069283))
    '0xc78ab0e5'
    """
    return ((value >> 15 | value << 17) + _MASK_DELTA) & _ALL


def _by_numpy(data: bytes | memoryview | U8, value: int) -> int:
    """Cut the bytes into lanes of one length, take a byte of each lane at a time, and join the sums of neighbours."""
    import numpy as np

    table = _table()
    octets = np.frombuffer(data, np.uint8)
    length = len(octets) // _LANES
    crc = value ^ _ALL
    if length:
        lanes = octets[: length * _LANES].reshape(_LANES, length).T
        sums = np.zeros(_LANES, np.uint32)
        sums[0] = crc
        for column in lanes:
            sums = table[(sums ^ column) & np.uint32(255)] ^ (sums >> np.uint32(8))
        shift = _zeros(length, _CASTAGNOLI)
        bits = np.array([_multiply(shift, 1 << bit, _CASTAGNOLI) for bit in range(32)], np.uint32)
        while len(sums) > 1:
            sums = _shifted(sums[::2], bits) ^ sums[1::2]
            bits = _shifted(bits, bits)
        crc = int(sums[0])
    for octet in octets[length * _LANES :].tolist():
        crc = int(table[(crc ^ octet) & 255]) ^ crc >> 8
    return crc ^ _ALL


@cache
def _table() -> U32:
    """Return the checksums of each byte alone, uint32 [256]."""
    import numpy as np

    sums = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        sums = (sums >> np.uint32(1)) ^ (sums & np.uint32(1)) * np.uint32(_CASTAGNOLI)
    return sums


def _shifted(sums: U32, bits: U32) -> U32:
    """Return sums, uint32 [n], after the zero bytes that `bits` are for."""
    import numpy as np

    out = np.zeros_like(sums)
    for number, bit in enumerate(bits):
        out ^= (sums >> np.uint32(number) & np.uint32(1)) * bit
    return out
