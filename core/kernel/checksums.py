"""CRC-32C (Castagnoli) of many bytes: tensor bundles have it of each tensor, and of each block of their index.

The numpy part is the reference, and is used without a compiled kernel: it imports numpy only then, since a listing
compares checksums too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from edl_ckpt.core.kernel._kernel import Kernel
    from edl_ckpt.core.kernel.bulk import U8, U32

_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli's, with its bits reversed."""
_ALL: Final = 0xFFFFFFFF
_LANES: Final = 1 << 12
"""Bytes that numpy looks at together, each of another part of the data."""
_MASK_DELTA: Final = 0xA282EAD8
compiled: Callable[[Any, int], int] | None = None
"""What the kernel has for it; tests set it to None to compare numpy with it."""
with suppress(ImportError, AttributeError):  # no compiler at installation, or a kernel that was built for other code
    from edl_ckpt.core.kernel import _kernel

    compiled = cast("Kernel", _kernel).crc32c


def crc32c(data: bytes | memoryview | U8, value: int = 0) -> int:
    """Return the CRC-32C of some bytes, after those that `value` is the CRC-32C of.

    >>> hex(crc32c(b"123456789")), crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    ('0xe3069283', True)
    """
    return compiled(data, value) if compiled is not None else _by_numpy(data, value)


def unmasked(value: int) -> int:
    """Return the checksum that LevelDB and TensorFlow store as this value: rotated, and with a number added.

    >>> hex(unmasked(0xC78AB0E5))
    '0xe3069283'
    """
    rotated = (value - _MASK_DELTA) & _ALL
    return (rotated >> 17 | rotated << 15) & _ALL


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
        bits = _after_zeros(length)
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
        sums = (sums >> np.uint32(1)) ^ (sums & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return sums


def _after_zeros(count: int) -> U32:
    """Return what becomes of each bit of a sum after so many zero bytes, uint32 [32]."""
    import numpy as np

    one = np.uint32(1) << np.arange(32, dtype=np.uint32)
    step = _table()[one & np.uint32(255)] ^ (one >> np.uint32(8))
    done = one
    while count:
        done = _shifted(done, step) if count & 1 else done
        step = _shifted(step, step)
        count >>= 1
    return done


def _shifted(sums: U32, bits: U32) -> U32:
    """Return sums, uint32 [n], after the zero bytes that `bits` are for."""
    import numpy as np

    out = np.zeros_like(sums)
    for number, bit in enumerate(bits):
        out ^= (sums >> np.uint32(number) & np.uint32(1)) * bit
    return out
