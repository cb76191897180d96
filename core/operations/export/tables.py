"""The rows of a table on their way out: to their places in an output, or as batches for a library.

They are in the order of their ids, for which the table is cut into parts that fit into memory, or as they are stored:
shard after shard, each row where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

import numpy as np

from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.checkpoint.partition import (
    Areas,
    PartitionedTable,
    TablePart,
    ranges_of_sample,
)
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import IdPiece, read_piece, row_batches
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.model import DType
from edl_ckpt.core.parallel import default_workers, run_parallel
from edl_ckpt.core.progress import WARNINGS, Reporter
from edl_ckpt.core.storage import open_store

_MOST_WORKERS: Final = 4
_COPY_BYTES: Final = 4 << 20

Seen = Callable[[bulk.I64, bulk.U8], None]
"""Takes each batch as it was read: int64 [n] ids, uint8 [n, row_bytes] values."""
Done = Callable[[int, int], None]
"""Is called with the first row and the number of rows that are written for good."""


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table of a checkpoint: its pieces, numbered, with a sample of its ids if it needs several parts.

    `convert` changes values to those that are written, uint8 [n, row_bytes], of `dtype`.
    """

    checkpoint: Checkpoint
    name: str
    pieces: Sequence[IdPiece]
    sample: bulk.I64
    parts: int
    dtype: DType | None
    convert: Callable[[bulk.U8], bulk.U8] | None = None
    is_stored_order: bool = False
    reporter: Reporter = WARNINGS

    def fill(self, areas: Areas, seen: Seen | None, done: Done) -> None:
        """Write all ids and rows; several threads call `seen` and `done`."""
        if self.is_stored_order:
            self._copy(areas, seen, done)
            return
        with self._cut(seen, areas=areas) as cut:
            cut.sort_in_place(done)

    def batches(self, seen: Seen | None, directory: str) -> Iterator[TablePart]:
        """Yield all rows in parts; when they are sorted, a temporary file in a directory has them meanwhile."""
        if self.is_stored_order:
            yield from self._stored_parts(seen)
            return
        with self._cut(seen, directory=directory) as cut:
            yield from cut.all_parts()

    def _cut(self, seen: Seen | None, *, areas: Areas | None = None, directory: str | None = None) -> PartitionedTable:
        return PartitionedTable(
            self.checkpoint,
            self.name,
            self.pieces,
            parts=self.parts,
            assign=ranges_of_sample(self.sample, self.parts),
            directory=directory,
            areas=areas,
            seen=seen,
            convert=self.convert,
            dtype=self.dtype,
            reporter=self.reporter,
        )

    @property
    def _workers(self) -> int:
        remote = open_store(self.checkpoint.version.location).properties.round_trips
        most = default_workers(remote=True) if remote else min(default_workers(), _MOST_WORKERS)
        return max(min(most, len(self.pieces)), 1)

    def _copy(self, areas: Areas, seen: Seen | None, done: Done) -> None:
        """Write every piece where its first row belongs: after the shards before its own."""
        first: dict[int, int] = {}
        rows = 0
        for shard, entry in self.checkpoint.entries(self.name):
            first[shard.file.ps_id] = rows
            rows += entry.rows

        writing = Lock()

        def copy(piece: IdPiece) -> None:
            start = first[piece.shard.file.ps_id] + piece.first_row
            ids = read_piece(self.checkpoint, piece).ids
            areas.ids.write(8 * start, ids.view(np.uint8))
            for some, values in row_batches(self.checkpoint, piece, len(ids), VALUE_BATCH_BYTES):
                kept = self._kept(ids[some], values, seen)
                with writing:  # or two threads would spin for the kernel's lock of the file
                    areas.rows.write((start + some.start) * kept.shape[1], kept.reshape(-1))
                self.reporter.advance(len(kept) * (8 + kept.shape[1]))
            done(start, len(ids))

        for _ in run_parallel(copy, self.pieces, self._workers):
            pass

    def _kept(self, ids: bulk.I64, values: bulk.U8, seen: Seen | None) -> bulk.U8:
        if seen is not None:
            seen(ids, values)
        return values if self.convert is None else self.convert(values)

    def _stored_parts(self, seen: Seen | None) -> Iterator[TablePart]:
        def read(piece: IdPiece) -> list[TablePart]:
            ids = read_piece(self.checkpoint, piece).ids
            batches = row_batches(self.checkpoint, piece, len(ids), _COPY_BYTES)
            return [
                TablePart(ids[some], self._kept(ids[some], values, seen).copy(), self.dtype, piece.entry.dim)
                for some, values in batches
            ]

        for parts in run_parallel(read, self.pieces, min(self._workers, _MOST_WORKERS)):
            for part in parts:
                self.reporter.advance(part.values.nbytes + part.ids.nbytes)
                yield part
