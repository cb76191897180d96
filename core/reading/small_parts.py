"""Small parts of tables that lie close behind each other in a shard: read in one go, as a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from edl_ckpt.core.base.columns import numbers_of
from edl_ckpt.core.base.packing import near
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.routing import PART_NUMBERS, Part, sketch_size
from edl_ckpt.core.model.tables import ShardIndex, TableEntry
from edl_ckpt.core.reading.blocks import Sums
from edl_ckpt.core.reading.pieces import PIECE_BYTES, is_small
from edl_ckpt.core.reading.reader import Checkpoint

_GAP_BYTES: Final = 4 << 10
"""The most bytes between two small parts that are read along with them."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Small parts of tables that lie close behind each other in [start, end) of a shard, to be read in one go."""

    shard: ShardIndex
    entries: tuple[TableEntry, ...]
    start: int
    end: int

    @property
    def value_bytes(self) -> int:
        """Return the bytes of all values."""
        values = [entry.values for entry in self.entries]
        return int((numbers_of(values, "end") - numbers_of(values, "start")).sum())

    def parts(self) -> bulk.I64:
        """Return the parts for `routing`, in the bytes of the bundle; their sketches follow each other."""
        runs = [entry.ids[0] for entry in self.entries]
        ids, row_bytes = numbers_of(runs, "start"), numbers_of(self.entries, "row_bytes")
        sums = np.fromiter(map(sketch_size, row_bytes.tolist()), np.int64, len(runs))
        parts = np.zeros((len(runs), PART_NUMBERS), np.int64)
        parts[:, Part.IDS] = ids - self.start
        parts[:, Part.ID_BYTES] = numbers_of(runs, "end") - ids
        parts[:, Part.ROWS] = numbers_of(self.entries, "rows")
        parts[:, Part.VALUES] = np.maximum(numbers_of(self.entries, "values.start") - self.start, 0)
        parts[:, Part.ROW_BYTES] = row_bytes
        parts[:, Part.SUMS] = np.cumsum(sums) - sums
        return parts


def bundles(checkpoint: Checkpoint, bundle_bytes: int = PIECE_BYTES, *, times: int = 1) -> Iterator[Bundle]:
    """Yield all small parts of tables, by `is_small`, shard by shard, in bundles of about `bundle_bytes`."""
    for shard in checkpoint.shards:
        wanted = max(bundle_bytes, checkpoint.reader(shard).block_bytes)
        parts = sorted((entry for entry in shard.tables if is_small(entry, times)), key=_part_extent)
        for start, end, entries in near(parts, _part_extent, _GAP_BYTES, wanted):
            yield Bundle(shard, tuple(entries), start, end)


def _part_extent(entry: TableEntry) -> tuple[int, int]:
    return entry.offset, entry.ids[0].end


def read_bundle(checkpoint: Checkpoint, bundle: Bundle, sums: Sums | None = None) -> bulk.U8:
    """Return the bytes of a bundle, uint8 [end - start], and add them to checksums."""
    reader = checkpoint.reader(bundle.shard)
    view = reader.view(bundle.start, bundle.end - bundle.start)
    data = np.empty(bundle.end - bundle.start, np.uint8) if view is None else np.frombuffer(view, np.uint8)
    if view is None:
        reader.read_into(bundle.start, data.data)
    if sums is not None:
        sums.add(reader, bundle.start, data.data)
    return data
