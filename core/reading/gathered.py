"""Rows that a file has in pieces, or in another order, read as if they were one after the other in a file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.kernel.bulk import I64
from edl_ckpt.core.model.tables import GatheredRows
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
        parts = [
            read_runs(self._files[some.extent.file], some.extent.start + numbers * some.row_bytes, some.row_bytes)
            for some in self._rows.columns
        ]
        start = offset - first * width
        return np.concatenate(parts, axis=1).reshape(-1)[start : start + size].tobytes()

    def _order(self, first: int, end: int) -> I64:
        """Return the numbers of the rows that rows [first, end) are, int64 [n]; CorruptError for one that is none."""
        order, numbers = self._rows.order, np.arange(first, end, dtype=np.int64)
        reader, at, size = self._files[self._rows.columns[0].extent.file], self._rows.columns[0].extent.start, 0
        if order is not None:
            size = order.encoding.itemsize
            reader, at = self._files[order.file], order.start + first * size
            data = np.frombuffer(reader.read(at, (end - first) * size), order.encoding.value)
            numbers = data.astype(np.int64) - order.first
        count = min(some.extent.size_bytes // some.row_bytes for some in self._rows.columns)
        outside = np.flatnonzero((numbers < 0) | (numbers >= count))
        if len(outside):
            message = f"row {first + int(outside[0])} is row {numbers[outside[0]]} of {count}"
            raise CorruptError(message, path=reader.path, offset=at + int(outside[0]) * size)
        return numbers
