"""The rows of one table in parts that fit into memory: by a hash of the id, or by ranges of ids, which sorts them.

A first pass over the ids counts the rows of each part, so the place of every row in a temporary file is known before a
value moves; values are read once. The file has no name: whatever happens, nothing of it remains. It has three areas:
the ids of all parts, the order of the rows of each part, and the values. Who reads the ids of a part first sorts them,
and leaves ids and order in the file for who reads the values.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.checkpoint.blocks import as_dtype
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import IdPiece, read_piece, row_batches
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.checks import duplicate_id
from edl_ckpt.core.format.model import DType
from edl_ckpt.core.parallel import default_workers, run_parallel
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import allocate

PART_BYTES: Final = 8 << 20
"""Values and ids of a part, unless a table needs more than MAX_PARTS of them: rows are gathered in the cache."""


_AT_ONCE_BYTES: Final = 256 << 20
"""Parts that are in memory at a time, all together."""


_MOST_WORKERS: Final = 4


_FILL_BYTES: Final = 8 << 20
"""Values that are grouped by part at a time: what goes to one part is written in one piece."""


MAX_PARTS: Final = 4096


_SAMPLES: Final = 64


_LEAST_SAMPLES: Final = 1 << 16


Assign = Callable[[bulk.I64], bulk.U16]
"""Returns the part of each id: int64 [n] -> uint16 [n]."""


@dataclass(frozen=True, slots=True, eq=False)
class TablePart:
    """Some rows of a table: int64 [n] ids, ascending and unique; uint8 [n, row_bytes] values."""

    ids: bulk.I64
    values: bulk.U8
    dtype: DType | None
    dim: int

    def rows(self, place: npt.NDArray[np.intp] | slice = slice(None)) -> npt.NDArray[np.generic]:
        """Return the rows at some places as [k, dim] elements."""
        data = self.values[place]
        return as_dtype(np.ascontiguousarray(data).reshape(-1), self.dtype).reshape(len(data), self.dim)


def by_hash(parts: int) -> Assign:
    """Return the assignment to parts by a hash of the id: the ids of one shard share their low digits."""

    def assign(ids: bulk.I64) -> bulk.U16:
        word = ids.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        word ^= word >> np.uint64(32)
        return (word % np.uint64(parts)).astype(np.uint16)

    return assign


def by_range(checkpoint: Checkpoint, pieces: Sequence[IdPiece], parts: int) -> Assign:
    """Return the assignment to ascending ranges of ids of about equal count, estimated from a sample of all pieces."""
    step = max(sum(p.rows for p in pieces) // max(_SAMPLES * parts, _LEAST_SAMPLES), 1)
    # Copies: a view would keep every id of its piece in memory.
    sampled = [read_piece(checkpoint, piece).ids[::step].copy() for piece in pieces] if parts > 1 else []
    sample = np.sort(np.concatenate(sampled)) if sampled else np.empty(0, np.int64)
    cuts = sample[np.arange(1, parts) * len(sample) // parts] if len(sample) else sample

    def assign(ids: bulk.I64) -> bulk.U16:
        return bulk.ranges_of(ids, cuts)

    return assign


def parts_needed(size_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """Return the number of parts for so many bytes.

    >>> parts_needed(0), parts_needed(100, 30)
    (1, 4)
    """
    return max(min(-(-size_bytes // part_bytes), MAX_PARTS), 1)


class PartitionedTable:
    """A table in parts, in a temporary file; a context manager. `pieces` are the numbered pieces of the table."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        name: str,
        pieces: Sequence[IdPiece],
        *,
        parts: int,
        assign: Assign,
        directory: str | None = None,
        reporter: Reporter = SILENT,
    ) -> None:
        self.parts = parts
        self._checkpoint = checkpoint
        self._name = name
        self._pieces = pieces
        self._assign = assign
        self._directory = directory or tempfile.gettempdir()
        self._reporter = reporter
        self.dtype = checkpoint.table_dtype(name)
        self.dim = max((e.dim for _, e in checkpoint.entries(name)), default=0)
        self._row_bytes = self.dim * (self.dtype.itemsize if self.dtype else 0)
        self._rows = np.zeros(parts, np.int64)
        self._sorted = np.zeros(parts, np.bool_)
        self._lock = threading.Lock()
        self._local = threading.local()

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return int(self._rows.sum())

    def __enter__(self) -> Self:
        with storage_errors(self._directory):
            self._file = tempfile.TemporaryFile(dir=self._directory)
        try:
            self._fill()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def _workers(self) -> int:
        """Return how many parts are read at a time; of three more for each, the results may wait."""
        part = max(self.rows * (self._row_bytes + 12) // self.parts, 1)
        return max(min(default_workers(), _MOST_WORKERS, _AT_ONCE_BYTES // (4 * part)), 1)

    def _fill(self) -> None:
        """Count the rows of each part, then write ids and rows at their offsets."""
        for rows in run_parallel(self._count, self._pieces, self._workers):
            self._rows += rows
        self._starts = np.cumsum(self._rows) - self._rows
        self._order_at = self.rows * 8
        self._values_at = self._order_at + self.rows * 4
        self._next = self._starts.copy()
        with storage_errors(self._directory):
            allocate(self._file.fileno(), self._values_at + self.rows * self._row_bytes)
        for piece in run_parallel(self._write_piece, self._pieces, min(default_workers(), _MOST_WORKERS)):
            self._reporter.advance(piece.end - piece.start + piece.rows * self._row_bytes)

    def _count(self, piece: IdPiece) -> bulk.I64:
        owner = self._assign(read_piece(self._checkpoint, piece).ids)
        return np.bincount(owner, minlength=self.parts).astype(np.int64)

    def _write_piece(self, piece: IdPiece) -> IdPiece:
        """Write the ids and rows of a piece; the rows of a part may lie in any order."""
        block = read_piece(self._checkpoint, piece)
        owner = self._assign(block.ids)
        for some, values in row_batches(self._checkpoint, piece, len(block.ids), _FILL_BYTES):
            rows = np.bincount(owner[some], minlength=self.parts).astype(np.int64)
            with self._lock:
                place = self._next.copy()
                self._next += rows
            ids = np.ascontiguousarray(block.ids[some]).view(np.uint8).reshape(-1, 8)
            self._write(ids, owner[some], rows, place * 8)
            if self._row_bytes:
                self._write(values, owner[some], rows, self._values_at + place * self._row_bytes)
        return piece

    def _write(self, data: bulk.U8, owner: bulk.U16, rows: bulk.I64, at: bulk.I64) -> None:
        """Write rows ordered by part, each at the offset of its part."""
        grouped = self._scratch("grouped", data.nbytes).reshape(data.shape)
        bulk.group_rows(data, owner, rows, grouped)
        width, start = data.shape[1], 0
        for part in np.flatnonzero(rows).tolist():
            size = int(rows[part]) * width
            self._put(grouped.reshape(-1)[start : start + size], int(at[part]))
            start += size

    def _put(self, data: bulk.U8, offset: int) -> None:
        done, view = 0, data.data
        while done < len(data):
            with storage_errors(self._directory):
                done += os.pwrite(self._file.fileno(), view[done:], offset + done)

    def _scratch(self, name: str, size: int) -> bulk.U8:
        """Return memory that this thread uses again the next time: fresh memory costs more than a read into it."""
        memory = getattr(self._local, name, None)
        if memory is None or len(memory) < size:
            memory = np.empty(size, np.uint8)
            setattr(self._local, name, memory)
        some: bulk.U8 = memory[:size]
        return some

    def part(self, number: int, *, values: bool = True) -> TablePart:
        """Return one part; without `values` only its ids. CorruptError for an id that occurs twice."""
        ids, order = self._ordered(number, keep=not values)
        rows, width = len(ids), self._row_bytes
        if not values or not width:
            return TablePart(ids, np.empty((rows, 0), np.uint8), self.dtype, self.dim)
        data = self._scratch("values", rows * width)
        self._read(self._values_at + int(self._starts[number]) * width, data)
        return TablePart(ids, bulk.take_rows(data.reshape(rows, width), order), self.dtype, self.dim)

    def _ordered(self, number: int, *, keep: bool) -> tuple[bulk.I64, bulk.U32]:
        """Return the ids of a part, ascending, and where the row of each lies; `keep` leaves both in the file."""
        rows, start = int(self._rows[number]), int(self._starts[number])
        ids, order = np.empty(rows, np.int64), np.empty(rows, np.uint32)
        self._read(start * 8, ids.view(np.uint8))
        if self._sorted[number]:
            self._read(self._order_at + start * 4, order.view(np.uint8))
            return ids, order
        order = bulk.order_ids(ids)
        twice = np.flatnonzero(ids[1:] == ids[:-1])
        if len(twice):
            version = self._checkpoint.version
            hint = f"try: edl-ckpt verify {version.ref}"
            raise duplicate_id(self._name, int(ids[twice[0]]), len(twice), path=version.path, hint=hint)
        if keep:
            self._put(ids.view(np.uint8), start * 8)
            self._put(order.view(np.uint8), self._order_at + start * 4)
            self._sorted[number] = True
        return ids, order

    def all_parts(self, *, values: bool = True) -> Iterator[TablePart]:
        """Yield every part, in order."""
        yield from run_parallel(partial(self.part, values=values), range(self.parts), self._workers)

    def _read(self, offset: int, data: bulk.U8) -> None:
        done, view = 0, data.data
        while done < len(data):
            with storage_errors(self._directory):
                count = os.preadv(self._file.fileno(), [view[done:]], offset + done)
            if count == 0:
                raise EOFError(offset)
            done += count
