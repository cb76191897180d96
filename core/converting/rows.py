"""The rows of a table on their way to buckets: counted first, so that each piece knows its places, then written.

A bucket is a rank, or a part of one where a system keeps rows in groups. The rows of a bucket have the order of the
source, so a table and its companions keep one order. Pieces are written in any order, by several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import run_all, run_parallel
from edl_ckpt.core.converting.changes import OutTable
from edl_ckpt.core.kernel import bulk, routing
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.reading.blocks import IdPiece, read_piece
from edl_ckpt.core.reading.casts import cast_bytes
from edl_ckpt.core.reading.pieces import IdsAt, count_rows, ids_at
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.row_batches import row_batches
from edl_ckpt.core.sources.elasticdl.target import write_groups
from edl_ckpt.core.storage.interface import Sinks

Owners = Callable[[bulk.I64], bulk.U16]
"""Returns the bucket of each id: int64 [n] -> uint16 [n]."""
_BATCH_BYTES: Final = 4 << 20
_MOST_PIECES: Final = 1 << 12
"""So many pieces of a table have counts for each bucket in memory."""


class Spread(NamedTuple):
    """How the rows of a table are spread."""

    buckets: int
    owners: Owners | None
    """None where all rows go to one bucket."""


@dataclass(frozen=True, slots=True, eq=False)
class CountedRows:
    """The rows of a table that go out: how many of each piece go to each bucket."""

    table: OutTable
    spread: Spread
    pieces: Sequence[IdPiece]
    rows: bulk.I64
    """int64 [pieces, buckets]"""
    id_bytes: bulk.I64
    """The same of the bytes of their ids as varints; zeros where nobody asks for them."""
    low: int
    high: int

    @property
    def of_bucket(self) -> bulk.I64:
        """Return the rows of each bucket, int64 [buckets]."""
        total: bulk.I64 = self.rows.sum(axis=0)
        return total

    @property
    def total(self) -> int:
        """Return the number of rows that go out."""
        return int(self.rows.sum())


class RowPlaces(NamedTuple):
    """Where the rows and the ids of a table begin in each bucket: numbers of files and offsets, int64 [buckets].

    Without `ids` nothing is written for them, since another table writes the same.
    """

    rows: tuple[bulk.I64, bulk.I64]
    ids: tuple[bulk.I64, bulk.I64] | None
    as_varints: bool = False


def id_places(checkpoint: Checkpoint, job: Job) -> dict[str, list[IdPiece]]:
    """Return all ids of a version in pieces with their rows numbered, by the names of tables."""
    total = sum(entry.values.size_bytes for shard in checkpoint.shards for entry in shard.tables)
    places: list[IdsAt] = count_rows(checkpoint, ids_at(checkpoint, total // _MOST_PIECES, values=True), job)
    pieces: dict[str, list[IdPiece]] = {name: [] for name in checkpoint.table_names}
    for position in places:
        piece = position.piece(checkpoint)
        pieces[piece.entry.name].append(piece)
    return pieces


def count_pieces(
    checkpoint: Checkpoint, table: OutTable, pieces: Sequence[IdPiece], spread: Spread, job: Job, *, varints: bool
) -> CountedRows:
    """Return a table with its rows counted for each bucket; `varints` says whether the bytes of ids count too."""

    def count(piece: IdPiece) -> tuple[bulk.I64, bulk.I64, int, int]:
        block = read_piece(checkpoint, piece)
        ids, kept = block.ids, _kept(checkpoint, table, piece, block.ids)
        ids = ids if kept is None else ids[kept]
        owner = _owners(spread, ids)
        lengths = bulk.varint_lengths(ids) if varints else np.zeros(len(ids), np.uint8)
        low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, -1)
        return *bulk.tally(owner, lengths, spread.buckets), low, high

    counts = list(run_parallel(count, pieces, job.workers))
    numbers = np.array([sums for *sums, _, _ in counts], np.int64).reshape(-1, 2, spread.buckets)
    filled = [(low, high) for _, _, low, high in counts if low <= high]
    low, high = min((low for low, _ in filled), default=0), max((high for _, high in filled), default=-1)
    return CountedRows(table, spread, pieces, numbers[:, 0], numbers[:, 1], low, high)


def _kept(checkpoint: Checkpoint, table: OutTable, piece: IdPiece, ids: bulk.I64) -> npt.NDArray[np.bool_] | None:
    """Return which rows of a piece stay, None for all."""
    if table.leaves_out is None:
        return None
    return table.leaves_out.keeps(checkpoint, piece.shard, table.source, piece.first_row, ids)


def _owners(spread: Spread, ids: bulk.I64) -> bulk.U16:
    return np.zeros(len(ids), np.uint16) if spread.owners is None else spread.owners(ids)


@dataclass(slots=True)
class RowWriter:
    """Writes the rows of tables to their places; `meant` has the sums of what was written, by the new names."""

    checkpoint: Checkpoint
    sinks: Sinks
    job: Job
    meant: ContentSketch = field(default_factory=ContentSketch)
    overflowed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, counted: CountedRows, places: RowPlaces) -> None:
        """Write all rows of a table, and its ids where they have places."""
        before = np.cumsum(counted.rows, axis=0) - counted.rows
        before_ids = np.cumsum(counted.id_bytes, axis=0) - counted.id_bytes if places.as_varints else before * 8
        numbered = zip(counted.pieces, before, before_ids, strict=True)
        run_all(lambda item: self._piece(counted, places, *item), numbered, self.job.workers)

    def _piece(
        self, counted: CountedRows, places: RowPlaces, piece: IdPiece, before: bulk.I64, before_ids: bulk.I64
    ) -> None:
        table, width = counted.table, counted.table.row_bytes
        block = read_piece(self.checkpoint, piece)
        kept = _kept(self.checkpoint, table, piece, block.ids)
        ids = block.ids if kept is None else block.ids[kept]
        owner = _owners(counted.spread, ids)
        if places.ids is not None:
            self._write_ids(places, ids, owner, before_ids, counted.spread.buckets)
        files, starts = places.rows
        offsets, sketch = starts + before * width, bulk.new_sketch(width)
        targets = [self.sinks[file] for file in files.tolist()]
        done = 0
        for some, values in row_batches(self.checkpoint, piece, len(block.ids), _BATCH_BYTES, wanted=kept):
            rows = values if kept is None else values[kept[some]]
            own = slice(done, done + len(rows))
            done = own.stop
            rows = self.cast(rows, piece.entry.dtype, table.dtype)
            self._write_rows(targets, offsets, sketch, ids[own], owner[own], rows)
            self.job.reporter.advance(rows.nbytes)
        if len(ids):
            self.meant.add_sketch(table.name, sketch)

    def _write_rows(
        self, targets: Sinks, offsets: bulk.I64, sketch: bulk.U32, ids: bulk.I64, owner: bulk.U16, rows: bulk.U8
    ) -> None:
        """Add rows to the sketch, and write them to their buckets; the places, int64 [buckets], move on."""
        width = rows.shape[1]
        if not width:
            bulk.sketch_rows(sketch, ids, rows)
            return
        sizes = np.bincount(owner, minlength=len(offsets)).astype(np.int64) * width
        grouped = np.empty(rows.nbytes, np.uint8)
        routing.move_rows(sketch, ids, owner, np.ascontiguousarray(rows), np.cumsum(sizes) - sizes, grouped)
        write_groups(targets, grouped, sizes, offsets)
        offsets += sizes

    def _write_ids(self, places: RowPlaces, ids: bulk.I64, owner: bulk.U16, before: bulk.I64, buckets: int) -> None:
        assert places.ids is not None  # noqa: S101 - the caller has looked
        files, starts = places.ids
        if places.as_varints:
            lengths = bulk.varint_lengths(ids)
            sizes = bulk.tally(owner, lengths, buckets)[1]
            grouped = bulk.group_varints(bulk.encode_varints(ids), lengths, owner, sizes)
        else:
            counts = np.bincount(owner, minlength=buckets).astype(np.int64)
            sizes, grouped = counts * 8, np.empty(ids.nbytes, np.uint8)
            bulk.group_rows(np.ascontiguousarray(ids).view(np.uint8).reshape(-1, 8), owner, counts, grouped)
        write_groups([self.sinks[file] for file in files.tolist()], grouped, sizes, starts + before)

    def cast(self, data: bulk.U8, dtype: DType | None, target: DType) -> bulk.U8:
        """Return bytes of values, or rows of them, in another dtype; those that become infinite are counted."""
        if dtype is None or dtype == target:
            return data
        cast, overflowed = cast_bytes(np.ascontiguousarray(data).reshape(-1), dtype, target)
        with self._lock:
            self.overflowed += overflowed
        return cast.reshape(*data.shape[:-1], data.shape[-1] // dtype.itemsize * target.itemsize)
