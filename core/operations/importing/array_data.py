"""Arrays in files: each in one, or its rows in several that follow each other, as a cluster exports large tables."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Self, TypeGuard

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.moving.source import read_bytes
from edl_ckpt.core.reading.picklable import FileValue
from edl_ckpt.core.storage.interface import RangeReader
from edl_ckpt.core.storage.location import Location


@dataclass(frozen=True, slots=True)
class ArrayData:
    """An array in a file: its bytes, C order, little-endian, begin at `offset`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    reader: RangeReader
    offset: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def checked(self, size_bytes: int) -> Self:
        """Return the array; CorruptError when so many bytes are there, and they are not those of its shape."""
        if self.size_bytes != size_bytes:
            message = f"{self.name!r} has {counted(size_bytes, 'byte')} (expected {self.size_bytes})"
            raise CorruptError(message, path=self.reader.path, offset=self.offset)
        return self

    def read(self, start: int, size: int) -> npt.NDArray[np.uint8]:
        """Return bytes [start, start + size) of its elements: perhaps those of the source itself."""
        return read_bytes(self.reader, self.offset + start, np.empty(size, np.uint8))


class FileExtent(RangeReader):
    """Bytes of another file `base`, which begin at `begin`."""

    def __init__(self, base: RangeReader, begin: int, size_bytes: int) -> None:
        self.base, self.begin = base, begin
        self.path, self.size_bytes, self.bytes_read = base.path, size_bytes, 0

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        return self.base.read(self.begin + offset, size)


class RowNumbers(RangeReader):
    """The numbers from 0 on, as int64, which no file has."""

    def __init__(self, path: str, count: int) -> None:
        self.path, self.size_bytes, self.bytes_read = path, 8 * count, 0

    def read(self, offset: int, size: int) -> bytes:
        """Return whole numbers."""
        return np.arange(offset // 8, (offset + size) // 8, dtype="<i8").tobytes()


def row_numbers(vectors: ArrayData) -> ArrayData:
    """Return the numbers of the rows of an array, as an array."""
    count = vectors.shape[0] if vectors.shape else 0
    return ArrayData(f"{vectors.name} by row", DTYPES["int64"], (count,), RowNumbers(vectors.reader.path, count), 0)


class Joined(RangeReader):
    """Bytes of several files, one after the other, as those of one file."""

    def __init__(self, pieces: Sequence[FileExtent]) -> None:
        self.pieces = pieces
        self._starts = list(accumulate((piece.size_bytes for piece in pieces), initial=0))
        self.path, self.size_bytes = pieces[0].path, self._starts[-1]
        self.block_bytes, self.bytes_read = pieces[0].base.block_bytes, 0

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        data = bytearray(size)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on."""
        number, done = bisect_right(self._starts, offset) - 1, 0
        while done < len(buffer):
            piece, within = self.pieces[number], offset + done - self._starts[number]
            count = min(piece.size_bytes - within, len(buffer) - done)
            piece.base.read_into(piece.begin + within, buffer[done : done + count])
            done, number = done + count, number + 1
        self.bytes_read += done

    def check_unchanged(self) -> None:
        """Raise LockedError when a file has changed since it was opened."""
        for piece in self.pieces:
            piece.base.check_unchanged()


def value_of(location: Location, reader: RangeReader) -> FileValue:
    """Return a file that was opened by its path, with the options of a location, as a value; the first of several."""
    return FileValue.of(location.with_url(reader.path).split()[0], reader)


def for_others(location: Location, reader: RangeReader) -> RangeReader:
    """Return a reader of the same files that can be pickled: another process opens them at its first read."""
    if isinstance(reader, RowNumbers):
        return reader
    if not isinstance(reader, Joined):
        return value_of(location, reader).open()
    return Joined([FileExtent(for_others(location, p.base), p.begin, p.size_bytes) for p in reader.pieces])


def joined(name: str, parts: Sequence[ArrayData | None], path: str) -> ArrayData:
    """Return arrays that follow each other as one; CorruptError for those that cannot be one."""
    known = [part for part in parts if part is not None]
    forms = {(part.dtype, part.shape[1:]) for part in known}
    if len(known) != len(parts) or len(forms) != 1 or not all(part.shape for part in known):
        raise CorruptError(f"the notes on the parts of {name!r} are damaged", path=path)
    if len(known) == 1:
        return replace(known[0], name=name)
    reader = Joined([FileExtent(part.reader, part.offset, part.size_bytes) for part in known])
    rows = sum(part.shape[0] for part in known)
    return ArrayData(name, known[0].dtype, (rows, *known[0].shape[1:]), reader, 0)


def naming(names: object) -> TypeGuard[list[str]]:
    """Say whether something from a document is a list of names."""
    return isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)
