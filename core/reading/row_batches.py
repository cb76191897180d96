"""The rows of a table in batches that fit into memory, for readers that look at all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from threading import BoundedSemaphore
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.thread_memory import ThreadMemory
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.reading.blocks import VALUE_BATCH_BYTES, IdPiece, Sums, read_rows
from edl_ckpt.core.reading.reader import Checkpoint

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
    # A caller with smaller batches bounds its memory. What is near is read as it is looked at, into the same memory.
    block_bytes = max(batch_bytes, reader.block_bytes) if batch_bytes >= VALUE_BATCH_BYTES else batch_bytes
    step_bytes = batch_bytes if sums is None else min(batch_bytes, _LOOK_BYTES)
    step, block = (min(max(1, n // max(piece.entry.row_bytes, 1)), rows) for n in (step_bytes, block_bytes))
    most = block
    if sums is not None and not reader.block_bytes:
        block = most = step
    if reader.block_bytes and block:
        block = -(-rows // max(round(rows / block), 1))  # requests of one size, and no small one at the end
        if looks is None:
            most += most // 2  # of one size for all pieces, so that the memory of one is used again for the next
    room = max(block, most) * piece.entry.row_bytes
    looks = looks if reader.block_bytes else None
    memory = np.empty(room, np.uint8) if looks is None else looks.memory.take(room)
    buffer = memory.reshape(-1, piece.entry.row_bytes) if room else np.empty((block, 0), np.uint8)
    for first in range(0, rows, block or 1):
        last = min(first + block, rows)
        if wanted is not None and not wanted[first:last].any():
            continue
        values = read_rows(checkpoint, piece.shard, piece.entry, piece.first_row + first, buffer[: last - first])
        with nullcontext() if looks is None else looks.turn:
            for start in range(first, last, step):
                stop = min(start + step, last)
                some = values[start - first : stop - first]
                yield slice(start, stop), some
                if sums is not None:
                    at = piece.entry.values.start + (piece.first_row + start) * piece.entry.row_bytes
                    sums.add(reader, at, some.reshape(-1).data)
