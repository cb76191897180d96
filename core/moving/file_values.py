"""Values of an input where they lie in files, and their cast: rows of a table, a variable, small tables in one read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.storage.interface import RangeReader


class Cast(NamedTuple):
    """The dtype of values as they are, and the one that they get."""

    dtype: DType
    target: DType

    def size_of(self, size_bytes: int) -> int:
        """Return how many bytes so many bytes of values become."""
        return size_bytes // self.dtype.itemsize * self.target.itemsize

    def before(self, size_bytes: int) -> int:
        """Return from how many bytes of values so many come."""
        return size_bytes // self.target.itemsize * self.dtype.itemsize


def cast_to(dtype: DType | None, target: DType) -> Cast | None:
    """Return the cast of values; None where they stay as they are, and where there are none."""
    return None if dtype is None or dtype == target else Cast(dtype, target)


class FileRows(NamedTuple):
    """Rows of a table that follow each other in [start, end) of a file, and what becomes of their values."""

    reader: RangeReader
    start: int
    end: int
    row_bytes: int
    cast: Cast | None = None

    @property
    def moved_bytes(self) -> int:
        """Return the bytes of a row where it goes."""
        return self.row_bytes if self.cast is None else self.cast.size_of(self.row_bytes)

    def view(self, first: int, count: int) -> bulk.U8 | None:
        """Return rows from `first` on where they are, uint8 [count, row_bytes]; None where that is impossible."""
        view = self.reader.view(self.start + first * self.row_bytes, count * self.row_bytes)
        return None if view is None else np.frombuffer(view, np.uint8).reshape(count, self.row_bytes)

    def read(self, first: int, rows: bulk.U8) -> bulk.U8:
        """Return the rows from `first` on, as many as uint8 [n, row_bytes] has: in it, or where they are."""
        return read_bytes(self.reader, self.start + first * self.row_bytes, rows)


class FileValues(NamedTuple):
    """The values of a variable: the file, their offset there, and what they become."""

    reader: RangeReader
    start: int
    cast: Cast | None = None
    stored_bytes: int | None = None
    """How many bytes of it the source has, and the rest are zeros; None for all."""


def read_bytes(reader: RangeReader, offset: int, out: bulk.U8) -> bulk.U8:
    """Return as many bytes of a file as uint8 `out` has: where they are if the reader can, else in it."""
    view = reader.view(offset, out.nbytes) if out.size else None
    if view is not None:
        return np.frombuffer(view, np.uint8).reshape(out.shape)
    if out.size:
        reader.read_into(offset, out.reshape(-1).data)
    return out


class SmallParts(NamedTuple):
    """Small tables, read together: the parts of them, int64 [n, PART_NUMBERS], lie in `data`, uint8 [bytes]."""

    data: bulk.U8
    parts: bulk.I64
