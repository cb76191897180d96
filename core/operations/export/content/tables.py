"""The rows of a table on their way out: to their places in an output, or as batches for a library.

They are in the order of their ids, for which the table is cut into parts that fit into memory, or as they are stored:
shard after shard, each row where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock
from typing import Final

import numpy as np

from edl_ckpt.core.base.parallel import default_workers, run_all, run_parallel
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.reading.blocks import VALUE_BATCH_BYTES, IdPiece, read_piece
from edl_ckpt.core.reading.pieces import row_batches
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sorting.partition import (
    Areas,
    PartitionedTable,
    TablePart,
    TakeRows,
    Wanted,
    ranges_of_sample,
)

_MOST_WORKERS: Final = 4
_COPY_BYTES: Final = 4 << 20

Done = Callable[[int, int], None]
"""Is called with the first row and the number of rows that are written for good."""


@dataclass(frozen=True, slots=True, eq=False)
class TableIds:
    """The rows of a table that go out: its pieces, numbered, and a sample of their ids if they need several parts.

    With `wanted`, only these rows of the pieces go out. Tensors have the table's `title` in their names.
    """

    title: str
    pieces: Sequence[IdPiece]
    rows: int
    sample: bulk.I64
    wanted: Wanted | None = None


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table of a checkpoint: the rows that go out, cut into parts.

    `take` gets each batch as it was read, and returns what is written, of `dtype`; several threads call it.
    """

    checkpoint: Checkpoint
    name: str
    ids: TableIds
    parts: int
    dtype: DType | None
    take: TakeRows
    is_stored_order: bool = False
    reporter: Reporter = WARNINGS

    def fill(self, areas: Areas, done: Done) -> None:
        """Write all ids and rows; several threads call `done`."""
        if self.is_stored_order:
            self._copy(areas, done)
            return
        with self._cut(areas=areas) as cut:
            cut.sort_in_place(done)

    def batches(self, directory: str) -> Iterator[TablePart]:
        """Yield all rows in parts; when they are sorted, a temporary file in a directory has them meanwhile."""
        if self.is_stored_order:
            yield from self._stored_parts()
            return
        with self._cut(directory=directory) as cut:
            yield from cut.all_parts()

    def _cut(self, *, areas: Areas | None = None, directory: str | None = None) -> PartitionedTable:
        return PartitionedTable(
            self.checkpoint,
            self.name,
            self.ids.pieces,
            parts=self.parts,
            assign=ranges_of_sample(self.ids.sample, self.parts),
            directory=directory,
            areas=areas,
            take=self.take,
            dtype=self.dtype,
            wanted=self.ids.wanted,
            reporter=self.reporter,
        )

    @property
    def _workers(self) -> int:
        remote = self.checkpoint.is_far
        most = default_workers(remote=True) if remote else min(default_workers(), _MOST_WORKERS)
        return max(min(most, len(self.ids.pieces)), 1)

    def _copy(self, areas: Areas, done: Done) -> None:
        """Write every piece after those before it."""
        firsts = accumulate((piece.rows for piece in self.ids.pieces), initial=0)
        writing = Lock()

        def copy(numbered: tuple[int, IdPiece]) -> None:
            start, piece = numbered
            ids = read_piece(self.checkpoint, piece).ids
            areas.ids.write(8 * start, ids.view(np.uint8))
            for some, values in row_batches(self.checkpoint, piece, len(ids), VALUE_BATCH_BYTES):
                kept = self.take(ids[some], values)
                with writing:  # or two threads would spin for the kernel's lock of the file
                    areas.rows.write((start + some.start) * kept.shape[1], kept.reshape(-1))
                self.reporter.advance(len(kept) * (8 + kept.shape[1]))
            done(start, len(ids))

        run_all(copy, zip(firsts, self.ids.pieces, strict=False), self._workers)

    def _stored_parts(self) -> Iterator[TablePart]:
        def read(piece: IdPiece) -> list[TablePart]:
            ids = read_piece(self.checkpoint, piece).ids
            batches = row_batches(self.checkpoint, piece, len(ids), _COPY_BYTES)
            return [
                TablePart(ids[some], self.take(ids[some], values).copy(), self.dtype, piece.entry.dim)
                for some, values in batches
            ]

        for parts in run_parallel(read, self.ids.pieces, min(self._workers, _MOST_WORKERS)):
            for part in parts:
                self.reporter.advance(part.values.nbytes + part.ids.nbytes)
                yield part
