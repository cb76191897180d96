"""Ids of far storage that are kept on the local disk.

Ids must be counted before a row can be found, and then compared, sorted and moved. So the first of these steps fetches
the ids of all tables, and small tables whole, into one nameless file; the others read them there. A second opening of
the same files takes them over, if the storage says that they are of the same generation. Without room on the disk,
ids are read from the storage each time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.packing import near
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.model.tables import ShardIndex
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
    """Return the ranges [start, end) of a file that are kept, in order: those with small gaps between them as one.

    They are the ids of all tables, and small tables whole.
    """
    extents: list[tuple[int, int]] = []
    for entry in shard.tables:
        own = [(run.start, run.end) for run in entry.ids if run.is_stored and run.file == file]
        extents += own
        end = max((end for _, end in own), default=0)
        if own and entry.values.file == file and end - entry.offset <= _SMALL_BYTES:
            extents.append((entry.offset, end))
    return ((start, end) for start, end, _ in near(sorted(extents), lambda extent: extent, _GAP_BYTES))
