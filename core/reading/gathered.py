"""Rows that a file has in pieces, or in another order, read as if they were one after the other in a file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.kernel.bulk import I64, U8
from edl_ckpt.core.model.tables import Columns, GatheredRows
from edl_ckpt.core.reading.blocks import read_runs
from edl_ckpt.core.storage.interface import RangeReader


class GatheredReader(RangeReader):
    """Gathered rows as a file, over the open `files` of their shard."""

    def __init__(self, rows: GatheredRows, files: Sequence[RangeReader]) -> None:
        self._rows, self._files = rows, files
        first = files[rows.columns[0].extent.file]
        self.path = f"{first.path} (gathered rows)"  # not that of the file: its bytes are others
        self.size_bytes = rows.rows * rows.row_bytes
        self.block_bytes = first.block_bytes
        self.bytes_read = 0
        """What the files themselves count."""

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`, of whole rows or of parts of them."""
        if not size:
            return b""
        width = self._rows.row_bytes
        first, end = offset // width, -(-(offset + size) // width)
        numbers = self._order(first, end)
        parts = [self._read_columns(some, numbers) for some in self._rows.columns]
        start = offset - first * width
        return np.concatenate(parts, axis=1).reshape(-1)[start : start + size].tobytes()

    def _order(self, first: int, end: int) -> I64:
        """Return the numbers of the rows that rows [first, end) are, int64 [n]."""
        order = self._rows.order
        if order is None:
            return np.arange(first, end, dtype=np.int64)
        size, at = order.encoding.itemsize, order.start + first * order.encoding.itemsize
        data = self._files[order.file].read(at, (end - first) * size)
        numbers: I64 = np.frombuffer(data, order.encoding.value).astype(np.int64) - order.first
        return numbers

    def _read_columns(self, some: Columns, numbers: I64) -> U8:
        """Return the bytes of rows, uint8 [n, row_bytes]; CorruptError for a number that no row has."""
        reader, count = self._files[some.extent.file], some.extent.size_bytes // max(some.row_bytes, 1)
        outside = numbers[(numbers < 0) | (numbers >= count)]
        if len(outside):
            message = f"an id leads to row {outside[0]}, and there are {count} rows"
            raise CorruptError(message, path=reader.path, offset=some.extent.start)
        return read_runs(reader, some.extent.start + numbers * some.row_bytes, some.row_bytes)
