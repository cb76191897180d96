"""Framing with checksums of values that a process can fill in by itself, once it has the values.

Nothing is asked of a format: its framing is made twice, with checksums that differ in every bit. Where the two differ
in four bytes that are such a number, a checksum stands. Framing that differs in another way, as an index with checksums
of itself, is left to whoever knows all checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.moving.extents import Span

if TYPE_CHECKING:
    from edl_ckpt.core.converting.destinations.interface import Destination

_ALL: Final = 0xFFFFFFFF
_FACTOR: Final = 0x9E3779B1
"""An odd number: its multiples modulo 2**32 are all different."""
_CRC: Final = struct.Struct("<I")


class SealedBytes(NamedTuple):
    """Framing of a file: `sums` has where in `data` a checksum stands, and where its value is in the file."""

    file: int
    offset: int
    data: bytes
    sums: tuple[tuple[int, Span], ...] = ()

    @property
    def end(self) -> int:
        """Return where it ends in the file."""
        return self.offset + len(self.data)

    def filled(self, crcs: Mapping[tuple[int, int], Crc32]) -> bytes:
        """Return the bytes with the checksums of values, by their file and offset."""
        data = bytearray(self.data)
        for at, value in self.sums:
            crc = crcs[self.file, value.start]
            assert crc.size_bytes == value.end - value.start  # noqa: S101 - the task has read all of it
            _CRC.pack_into(data, at, crc.value())
        return bytes(data)


def sealed_framing(destination: Destination) -> Iterator[SealedBytes]:
    """Yield the framing of files that are laid out, as far as its checksums are of values of the same file."""
    computed = {(file, offset) for file, offset, _ in destination.computed}
    places: dict[int, tuple[int, Span]] = {}
    marks: dict[tuple[str, int], int] = {}
    opposite: dict[tuple[str, int], int] = {}
    for number, (key, file, offset, size_bytes) in enumerate(destination.summed):
        marks[key] = opposite[key] = 0
        if size_bytes:
            mark = number * _FACTOR & _ALL
            marks[key], opposite[key] = mark, mark ^ _ALL
            places[mark] = -1 if (file, offset) in computed else file, Span(offset, offset + size_bytes)
    for one, other in zip(destination.literals(marks), destination.literals(opposite), strict=True):
        found = _sums_in(one[2], other[2])
        values = [(at, *places.get(mark, (-1, Span(0, 0)))) for at, mark in found or ()]
        if found is not None and all(file == one[0] for _, file, _ in values):
            yield SealedBytes(*one, tuple((at, span) for at, _, span in values))


def _sums_in(one: bytes, other: bytes) -> list[tuple[int, int]] | None:
    r"""Return where two framings have opposite numbers, and those of the first; None where they differ otherwise.

    >>> _sums_in(b"ab\x01\x00\x00\x00", b"ab\xfe\xff\xff\xff"), _sums_in(b"ab", b"ac"), _sums_in(b"a", b"a")
    ([(2, 1)], None, [])
    """
    if one == other:
        return []
    if len(one) != len(other):
        return None
    differs: bulk.U8 = np.frombuffer(one, np.uint8) ^ np.frombuffer(other, np.uint8)
    places = np.flatnonzero(differs)
    if len(places) % _CRC.size or (differs[places] != 0xFF).any():
        return None
    fields = places.reshape(-1, _CRC.size)
    if (fields != fields[:, :1] + np.arange(_CRC.size)).any():
        return None
    return [(at, _CRC.unpack_from(one, at)[0]) for at in fields[:, 0].tolist()]
