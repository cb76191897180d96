"""Readers over other readers: ids of far storage that are kept on the local disk, and rows that are gathered.

Ids must be counted before a row can be found, and then compared, sorted and moved. So the first of these steps fetches
the ids of all tables, and small tables whole, into one nameless file; the others read them there. A second opening of
the same files takes them over, if the storage says that they are of the same generation. Without room on the disk, ids
are read from the storage each time.

Rows that a file has in pieces, or in another order, are read as if they were one after the other in a file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError
from edl_ckpt.core.base.packing import near
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.kernel.bulk import I64, U8
from edl_ckpt.core.model.tables import Box, GatheredRows, ShardIndex
from edl_ckpt.core.reading.blocks import read_runs
from edl_ckpt.core.storage.files import ScratchFile
from edl_ckpt.core.storage.interface import RangeReader, RemoteReader

KEPT_BYTES: Final = 1 << 30
"""The most that is kept; of more ids, those of the last shards are read each time."""
_SMALL_BYTES: Final = 256 << 10
"""The part of a table in a shard is kept whole up to this size."""
_GAP_BYTES: Final = 64 << 10
"""What lies between two ranges is kept with them up to this size: it takes less time than another request."""


class KeptReader(RemoteReader):
    """A file of which some ranges are on the local disk; everything else is read from the file."""

    def __init__(self, inner: RangeReader, disk: ScratchFile, ranges: Sequence[tuple[int, int, int]]) -> None:
        self.inner, self.disk, self.ranges = inner, disk, ranges  # (start, end, place on the disk), in order
        for fact in ("path", "size_bytes", "block_bytes", "generation", "mark", "bytes_read"):
            setattr(self, fact, getattr(inner, fact))  # `bytes_read`: those that were read from the file itself

    def _find(self, offset: int, size: int) -> int | None:
        number = bisect_right(self.ranges, offset, key=itemgetter(0)) - 1
        if number < 0:
            return None
        start, end, place = self.ranges[number]
        return place + offset - start if offset + size <= end else None

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on."""
        place = self._find(offset, buffer.nbytes)
        if place is not None:
            self.disk.read_into(place, buffer.cast("B"))
            return
        self.inner.read_into(offset, buffer)
        self.bytes_read = self.inner.bytes_read

    def check_unchanged(self) -> None:
        """Raise LockedError when the file has changed since it was opened."""
        self.inner.check_unchanged()

    def close(self) -> None:
        """Close the file; what is kept stays."""
        self.inner.close()


def keep(shards: Sequence[ShardIndex], readers: Mapping[str, RangeReader], workers: int) -> Mapping[str, RangeReader]:
    """Fetch what is to be kept of some shards; return readers that find it, or the same ones where there is no room."""
    wanted: dict[str, list[tuple[int, int, int]]] = {}
    total = 0
    for shard in shards:
        for number, file in enumerate(shard.file.files):
            ranges = list(_to_keep(shard, number))
            if ranges and total + sum(end - start for start, end in ranges) <= KEPT_BYTES:
                places = accumulate((end - start for start, end in ranges), initial=total)
                wanted[file.path] = [(start, end, place) for (start, end), place in zip(ranges, places, strict=False)]
                total += sum(end - start for start, end in ranges)
    if not total:
        return readers
    try:
        disk = ScratchFile(total)
    except (EdlCkptError, OSError):  # there may be no directory for temporary files
        return readers

    def fetch(block: tuple[RangeReader, int, int, int]) -> None:
        reader, start, end, place = block
        data = np.empty(end - start, np.uint8).data
        reader.read_into(start, data)
        disk.write(place, data)

    run_all(fetch, _blocks(wanted, readers), workers)
    return {**readers, **{path: KeptReader(readers[path], disk, ranges) for path, ranges in wanted.items()}}


def take_over(kept: Mapping[str, RangeReader], readers: Mapping[str, RangeReader]) -> Mapping[str, RangeReader]:
    """Return readers that find what was kept of the same generations of the same files."""
    found = dict(readers)
    for path, old in kept.items():
        new = readers.get(path)
        if isinstance(old, KeptReader) and new is not None and new.generation and new.generation == old.generation:
            found[path] = KeptReader(new, old.disk, old.ranges)
    return found


def _blocks(
    wanted: Mapping[str, Sequence[tuple[int, int, int]]], readers: Mapping[str, RangeReader]
) -> Iterator[tuple[RangeReader, int, int, int]]:
    """Yield (reader, start, end, place on the disk) of each request."""
    for path, ranges in wanted.items():
        reader = readers[path]
        for start, end, place in ranges:
            for at in range(start, end, reader.block_bytes):
                yield reader, at, min(at + reader.block_bytes, end), place + at - start


def _to_keep(shard: ShardIndex, file: int) -> Iterator[tuple[int, int]]:
    """Return the ranges [start, end) of a file that are kept, in order: those with small gaps between them as one."""
    runs = [(entry, [run for run in entry.ids if run.is_stored and run.file == file]) for entry in shard.tables]
    extents = [(run.start, run.end) for _, own in runs for run in own]
    extents += [
        (entry.offset, max(run.end for run in own))
        for entry, own in runs
        if own and entry.values.file == file and max(run.end for run in own) - entry.offset <= _SMALL_BYTES
    ]
    return ((start, end) for start, end, _ in near(sorted(extents), lambda extent: extent, _GAP_BYTES))


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
            file, size, begin = self._files[box.extent.file], box.row_bytes, low - box.first
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
        """Return the numbers of the rows that rows [first, end) are, int64 [n]; CorruptError for one that is none."""
        order, numbers = self._rows.order, np.arange(first, end, dtype=np.int64)
        reader, at, size = self._files[self._rows.boxes[0].extent.file], self._rows.boxes[0].extent.start, 0
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
