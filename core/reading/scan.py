"""Tables and variables in pieces, which several workers read independently of each other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.packing import near
from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.kernel import bulk, routing
from edl_ckpt.core.model.tables import DenseEntry, Encoding, ShardIndex, TableEntry
from edl_ckpt.core.reading.blocks import (
    VALUE_BATCH_BYTES,
    IdPiece,
    Sums,
    check_row_count,
    cuts,
    read_rows,
)
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.storage.interface import RangeReader, is_on_disk

PIECE_BYTES: Final = 1 << 20
"""Bytes of ids, or of a dense variable, in one task."""
SMALL_BYTES: Final = 256 << 10
"""The size up to which the part of a table in a shard is small: then a few calls for each would cost more than it."""
_LOOK_BYTES: Final = 512 << 10
"""Bytes of values that are looked at twice, for their sketch and their checksum, while they are in the L2 cache."""
_READ_BYTES: Final = 256 << 10
"""Bytes of values that the kernel reads at a time, and looks at while they are in the L2 cache."""
DIRECT_BYTES: Final = 1 << 20
"""Bytes of values that the kernel has in one call; fewer, in a whole piece, are not worth it."""
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
        return sum(entry.values.size_bytes for entry in self.entries)

    def parts(self, sums: Sequence[int]) -> bulk.I64:
        """Return the parts for `routing`, in the bytes of the bundle; `sums` is where their sketches begin."""
        start = self.start
        numbers = [
            (
                run.start - start,
                run.end - run.start,
                entry.rows,
                0,
                max(entry.values.start - start, 0),
                entry.row_bytes,
                at,
            )
            for entry, at in zip(self.entries, sums, strict=True)
            for run in entry.ids
        ]
        return np.array(numbers, np.int64)


def is_small(entry: TableEntry, times: int = 1) -> bool:
    """Say whether the part of a table in a shard is small: rows, and behind them their ids, a byte or more for each.

    It may be so many times as large as what is small for every caller; with 0 no part is small.
    """
    if len(entry.ids) != 1 or not 0 < entry.rows <= entry.ids[0].end - entry.ids[0].start:
        return False
    run = entry.ids[0]
    return (
        run.encoding is Encoding.VARINT
        and run.file == entry.values.file == 0
        and entry.values.end <= run.start
        and run.end - entry.offset <= SMALL_BYTES * times
    )


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


def cut_piece(checkpoint: Checkpoint, piece: IdPiece, piece_bytes: int) -> Iterator[IdPiece]:
    """Cut a piece into smaller ones, whose rows are not counted; unpacked ids stay together."""
    step = _id_step(piece.entry, checkpoint.reader(piece.shard, piece.entry.values).block_bytes, piece_bytes)
    whole = piece.start, piece.end  # nearly every piece is one: there may be thousands
    for start, end in [whole] if piece.end - piece.start <= step else cuts(piece.run, *whole, step):
        yield IdPiece(piece.shard, piece.entry, piece.run, start, end)


def _id_step(entry: TableEntry, block_bytes: int, piece_bytes: int) -> int:
    """Return the bytes of ids of a piece: at most `piece_bytes`, and so many that their values are whole requests."""
    id_bytes = sum(run.end - run.start for run in entry.ids)
    for_a_block = id_bytes * block_bytes // max(entry.values.size_bytes, 1)
    return piece_bytes // for_a_block * for_a_block if 0 < for_a_block <= piece_bytes else piece_bytes


class Looks:
    """How the threads of one pass look at what they have read of far storage.

    At most as many threads as cores look at a time. If all did, all would be done at the same time, and then all would
    wait for the network together, while no core works. The memory of batches is used again by the next ones: the
    kernel clears fresh memory, which costs as much as to receive it.
    """

    def __init__(self) -> None:
        self.turn = BoundedSemaphore(len(os.sched_getaffinity(0)))
        self._spare: list[bulk.U8] = []

    @contextmanager
    def memory(self, size: int) -> Iterator[bulk.U8]:
        """Lend uint8 [size], with any content, for a while."""
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = np.empty(0, np.uint8)
        if len(memory) < size:
            memory = np.empty(size, np.uint8)
        try:
            yield memory[:size]
        finally:
            self._spare.append(memory)


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
    with ExitStack() as stack:
        room = max(block, most) * piece.entry.row_bytes
        looks = looks if reader.block_bytes else None
        memory = np.empty(room, np.uint8) if looks is None else stack.enter_context(looks.memory(room))
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


def sketch_directly(
    reader: RangeReader,
    piece: IdPiece,
    ids: bulk.I64,
    batch_bytes: int,
    sketch: bulk.U32,
    sums: Sums | None,
    advance: Advance,
) -> bool:
    """Let the kernel read the rows of a piece and add them to a sketch; False where it cannot, or they are few.

    Between a read and the look at it Python does nothing, so threads do not wait for each other. Raises what the reader
    raises.
    """
    entry, rows = piece.entry, len(ids)
    size = rows * entry.row_bytes
    file = reader if is_on_disk(reader) else None
    if file is None or size < DIRECT_BYTES or not routing.can_move_file_rows():
        return False
    if piece.first_row + rows > entry.rows:
        check_row_count(piece.shard, entry, piece.first_row + rows, at_least=True)
    step = min(max(1, min(batch_bytes, DIRECT_BYTES) // entry.row_bytes), rows)
    buffer = np.empty((step, entry.row_bytes), np.uint8)
    at = entry.values.start + piece.first_row * entry.row_bytes
    file.will_need(at, size)
    for start in range(0, rows, step):
        some = buffer[: min(step, rows - start)]
        source = file.descriptor, at
        failed = routing.sketch_file_rows(sketch, ids[start : start + step], source, _READ_BYTES, some)
        if failed:
            raise file.failed(failed, at)
        file.add_moved(some.nbytes)
        if sums is not None:
            sums.add(reader, at, some.reshape(-1).data)
        at += some.nbytes
    advance(size)
    return True


@dataclass(frozen=True, slots=True)
class DensePiece:
    """Bytes [start, start + size) of the values of a dense variable."""

    shard: ShardIndex
    entry: DenseEntry
    start: int
    size: int


def read_dense(checkpoint: Checkpoint, piece: DensePiece, sums: Sums | None = None) -> bulk.U8:
    """Return the bytes of a piece, uint8 [size], and add them to checksums."""
    data = np.empty(piece.size, np.uint8)
    if piece.size:
        reader, at = checkpoint.reader(piece.shard, piece.entry.values), piece.entry.values.start + piece.start
        reader.read_into(at, data.data)
        if sums is not None:
            sums.add(reader, at, data.data)
    return data
