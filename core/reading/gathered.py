"""A reader of rows that a file has in pieces or in another order, as if they were one after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.kernel.bulk import I64, U8
from edl_ckpt.core.model.tables import Box, GatheredRows
from edl_ckpt.core.reading.blocks import read_runs
from edl_ckpt.core.storage.interface import RangeReader


class GatheredReader(RangeReader):
    """Gathered rows as a file, over the open `files` that their boxes number."""

    def __init__(self, rows: GatheredRows, files: Sequence[RangeReader]) -> None:
        self._rows, self._files = rows, files
        self._lasts = list(accumulate((box.first + box.rows for box in rows.boxes), max))
        first = files[rows.boxes[0].extent.file]
        self.path = f"{first.path} (gathered rows)"  # not that of the file: its bytes are others
        self.size_bytes = rows.rows * rows.row_bytes
        self.block_bytes = first.block_bytes
        self.bytes_read = 0
        """What the files themselves count."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on."""
        width, size = self._rows.row_bytes, len(buffer)
        if not size:
            return
        first, end = offset // width, -(-(offset + size) // width)
        given, start = np.frombuffer(buffer, np.uint8), offset - first * width
        is_whole = (end - first) * width == size
        out = given.reshape(-1, width) if is_whole else np.zeros((end - first, width), np.uint8)
        if self._rows.order is None and end <= self._lasts[-1]:
            self._read_between(first, end, out)
        else:
            self._read_rows(self._order(first, end), out)
        if not is_whole:
            given[:] = out.reshape(-1)[start : start + size]

    def _read_between(self, first: int, end: int, out: U8) -> None:
        """Read rows [first, end), which are those of the boxes in their order: uint8 [n, bytes of a row]."""
        for box in self._rows.boxes[bisect_right(self._lasts, first) :]:
            low, high = max(first, box.first), min(end, box.first + box.rows)
            if box.first >= end:
                break
            if low >= high:
                continue
            file = self._files[box.extent.file]
            size = box.row_bytes
            begin = low - box.first
            target = out[low - first : high - first, box.column : box.column + size]
            if box.steps:
                target[:] = read_runs(file, _starts(box, np.arange(begin, high - box.first)), size)
                continue
            data = target if target.flags.c_contiguous else np.empty_like(target, order="C")
            file.read_into(box.extent.start + begin * size, data.reshape(-1).data)
            if data is not target:
                target[:] = data

    def _read_rows(self, numbers: I64, out: U8) -> None:
        """Read the rows of some numbers, int64 [n]: uint8 [n, bytes of a row]."""
        low, high = int(numbers.min()), int(numbers.max())
        for box in self._rows.boxes[bisect_right(self._lasts, low) :]:
            if box.first > high:
                break
            inside = np.flatnonzero((numbers >= box.first) & (numbers < box.first + box.rows))
            if len(inside):
                starts = _starts(box, numbers[inside] - box.first)
                data = read_runs(self._files[box.extent.file], starts, box.row_bytes)
                out[inside, box.column : box.column + box.row_bytes] = data

    def check_unchanged(self) -> None:
        """Raise LockedError when a file has changed since it was opened."""
        for file in self._files:
            file.check_unchanged()

    def _order(self, first: int, end: int) -> I64:
        """Return the stored numbers of rows [first, end), int64 [n]; CorruptError for one that is out of range."""
        order, numbers = self._rows.order, np.arange(first, end, dtype=np.int64)
        reader = self._files[self._rows.boxes[0].extent.file]
        at = self._rows.boxes[0].extent.start
        size = 0
        if order is not None:
            reader, size = self._files[order.file], order.encoding.itemsize
            at = order.start + first * size
            data = np.frombuffer(reader.read(at, (end - first) * size), order.encoding.value)
            numbers = data.astype(np.int64) - order.first
        outside = np.flatnonzero((numbers < 0) | (numbers >= self._lasts[-1]))
        if len(outside):
            message = f"row {first + int(outside[0])} is row {numbers[outside[0]]} of {self._lasts[-1]}"
            raise CorruptError(message, path=reader.path, offset=at + int(outside[0]) * size)
        return numbers


def _starts(box: Box, rows: I64) -> I64:
    """Return where some rows of a box begin in its file, int64 [n]."""
    if not box.steps:
        return box.extent.start + rows * box.row_bytes
    places = np.unravel_index(rows, [count for count, _ in box.steps])
    steps = [place * step for place, (_, step) in zip(places, box.steps, strict=True)]
    starts: I64 = np.sum(steps, axis=0, dtype=np.int64)
    return starts + box.extent.start
