"""The rows of a piece from a file of the local disk to others, by the compiled kernel alone.

Between a read, the look at what was read, and the writes, Python does nothing and no thread waits for its turn: on two
cores that was a third of the time of the pass. Storage that is no local disk, and the few rows of a small piece, go
through the reader and the sinks as ever.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.base.memory import page_cache_bytes
from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.kernel import bulk, routing
from edl_ckpt.core.moving.source import FileRows
from edl_ckpt.core.reading.blocks import IdBlock
from edl_ckpt.core.reading.scan import DIRECT_BYTES
from edl_ckpt.core.storage.interface import OnDisk, Sinks, is_on_disk

LOOK_BYTES: Final = 256 << 10
"""Bytes of values that are read at a time, and looked at while they are in the L2 cache."""
_AHEAD_BYTES: Final = 4 << 20
"""Bytes behind those of a call that the disk begins to read."""
_CACHE_SHARE: Final = 0.75
"""The part of the memory that source and target may have in the page cache."""
CALL_BYTES: Final = 16 << 20
"""Bytes that the kernel moves in one call: an interrupted command waits for no longer."""


def exceeds_page_cache(size_bytes: int) -> bool:
    """Say whether so many bytes, of source and target, will hardly be in the page cache at a time.

    Then the source leaves it behind the move: what was written must be read back, and would otherwise have to leave it
    for what this command does not read again.
    """
    present = page_cache_bytes()
    return 0 < present * _CACHE_SHARE < size_bytes


class MovedRows(NamedTuple):
    """Rows that follow each other in a file, and where they go."""

    file: FileRows
    first: int
    block: IdBlock
    owner: bulk.U16
    """The target of each, uint16 [n]."""
    counts: bulk.I64
    """How many go to each target, int64 [to_ps]."""


def move_directly(
    rows: MovedRows,
    files: Sinks,
    values_at: bulk.I64,
    sketch: bulk.U32,
    gathered: bulk.U8,
    advance: Advance,
    *,
    once: bool = False,
) -> bool:
    """Move rows to `values_at`, int64 [to_ps], and add them to a sketch; False where the kernel cannot, or few rows.

    `values_at` moves on. Rows are gathered in `gathered`, uint8 [bytes], before they are written. With `once` the
    source leaves the page cache behind the rows. Raises what the reader and the files raise.
    """
    reader, row_bytes, count = rows.file.reader, rows.file.row_bytes, len(rows.block.ids)
    if count * row_bytes < DIRECT_BYTES or not (is_on_disk(reader) and routing.can_move_file_rows()):
        return False
    targets: dict[int, OnDisk] = {}
    for target in np.flatnonzero(rows.counts).tolist():
        sink = files[target]
        if not is_on_disk(sink):
            return False
        targets[target] = sink
    descriptors = np.full(len(rows.counts), -1, np.int32)
    descriptors[list(targets)] = [file.descriptor for file in targets.values()]
    buffers = np.empty(max(LOOK_BYTES // row_bytes, 1) * row_bytes, np.uint8), gathered
    step = max(CALL_BYTES, len(gathered)) // row_bytes or 1
    for start in range(0, count, step):
        chosen, before = slice(start, min(start + step, count)), values_at.copy()
        offset, size = (
            rows.file.start + (rows.first + start) * row_bytes,
            (min(start + step, count) - start) * row_bytes,
        )
        reader.will_need(offset, min(size + _AHEAD_BYTES, rows.file.end - offset))
        failed = routing.move_file_rows(
            sketch,
            rows.block.ids[chosen],
            rows.owner[chosen],
            (reader.descriptor, offset, row_bytes),
            descriptors,
            values_at,
            buffers,
        )
        if failed is not None:
            where = reader if failed.target < 0 else targets[failed.target]
            raise where.failed(failed.error, offset)
        if once:
            reader.will_not_need(offset, size)
        reader.add_moved(size)
        moved = values_at - before
        for target, written in targets.items():
            written.add_moved(int(moved[target]))
        advance(size)
    return True
