"""The rows of a table in batches that fit into memory, for readers that look at all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from threading import BoundedSemaphore
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.thread_memory import ThreadMemory
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.reading.blocks import VALUE_BATCH_BYTES, IdPiece, Sums, read_rows
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.storage.interface import RangeReader

_LOOK_BYTES: Final = 512 << 10
"""Bytes of values that are looked at twice, for their sketch and their checksum, while they are in the L2 cache."""


class Looks:
    """How the threads of one pass look at what they have read of far storage.

    At most as many threads as cores look at a time. If all did, all would be done at the same time, and then all would
    wait for the network together, while no core works. The memory of batches is used again by the next ones.
    """

    def __init__(self) -> None:
        self.turn = BoundedSemaphore(len(os.sched_getaffinity(0)))
        self.memory = ThreadMemory()


def row_batches(
    checkpoint: Checkpoint,
    piece: IdPiece,
    rows: int,
    batch_bytes: int,
    sums: Sums | None = None,
    *,
    wanted: npt.NDArray[np.bool_] | None = None,
    looks: Looks | None = None,
) -> Iterator[tuple[slice, bulk.U8]]:
    """Yield (rows of the piece, their values uint8 [n, row_bytes]) in batches of about `batch_bytes`.

    With `sums` no batch is larger than the cache, though as much is read at a time, and the
    bytes are added to `sums`, each batch after the caller has used it. All batches share one buffer, which the next
    one overwrites: fresh memory costs more than the read. Batches without any row that is `wanted`, bool [rows], are
    left out, and not read where that is possible. With `looks`, a caller that waits for nothing else has far rows in
    its turns and in its memory: no batch may be used behind the last one.
    """
    reader = checkpoint.reader(piece.shard, piece.entry.values)
    row_bytes = piece.entry.row_bytes
    sizes = _batch_sizes(reader, rows, row_bytes, batch_bytes, is_summed=sums is not None, has_memory=looks is not None)
    step = sizes.batch_rows
    room = sizes.room_rows * row_bytes
    looks = looks if reader.block_bytes else None
    memory = np.empty(room, np.uint8) if looks is None else looks.memory.take(room)
    buffer = memory.reshape(-1, row_bytes) if room else np.empty((sizes.read_rows, 0), np.uint8)
    for first in range(0, rows, sizes.read_rows or 1):
        last = min(first + sizes.read_rows, rows)
        if wanted is not None and not wanted[first:last].any():
            continue
        values = read_rows(checkpoint, piece.shard, piece.entry, piece.first_row + first, buffer[: last - first])
        with nullcontext() if looks is None else looks.turn:
            for start in range(first, last, step):
                stop = min(start + step, last)
                batch = values[start - first : stop - first]
                yield slice(start, stop), batch
                if sums is not None:
                    offset = piece.entry.values.start + (piece.first_row + start) * row_bytes
                    sums.add(reader, offset, batch.reshape(-1).data)


class _BatchSizes(NamedTuple):
    """Rows of a batch, rows of a read, which has several batches, and rows that the memory has room for."""

    batch_rows: int
    read_rows: int
    room_rows: int


def _batch_sizes(
    reader: RangeReader, rows: int, row_bytes: int, batch_bytes: int, *, is_summed: bool, has_memory: bool
) -> _BatchSizes:
    """Return the sizes of batches of `rows` rows.

    Rows that are summed are looked at twice, so a batch of them stays in the cache. What is near is read as it is
    looked at. Of far storage a read is as long as a request should be, unless the caller bounds its memory with smaller
    batches; `has_memory` is True where the memory of one read is used again for the next.
    """

    def rows_in(size_bytes: int) -> int:
        return min(max(1, size_bytes // max(row_bytes, 1)), rows)

    batch_rows = rows_in(min(batch_bytes, _LOOK_BYTES) if is_summed else batch_bytes)
    if not reader.block_bytes:
        read_rows = batch_rows if is_summed else rows_in(batch_bytes)
        return _BatchSizes(batch_rows, read_rows, read_rows)
    bounds_memory = batch_bytes < VALUE_BATCH_BYTES
    longest = rows_in(batch_bytes if bounds_memory else max(batch_bytes, reader.block_bytes))
    if not longest:
        return _BatchSizes(batch_rows, 0, 0)
    read_rows = -(-rows // max(round(rows / longest), 1))  # requests of one size, and no small one at the end
    # Without memory of its own a caller gets some of one size for all pieces, which is used again for the next.
    room_rows = longest if has_memory else longest + longest // 2
    return _BatchSizes(batch_rows, read_rows, max(read_rows, room_rows))
