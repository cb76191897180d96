"""The rows of large tables in the order of their ids, found by many processes that share a file system.

Each piece of a table is read once, and written as a run: its ids ascending, and its rows in their order. The runs of a
table lie in one file, each where the rows of its piece are numbered. Behind them stands where each range of ids begins
in each run. So any rows of the whole order are read with little more than their own bytes, and neither the rows nor the
ids of a table are ever in one process. Who writes a run twice writes the same bytes to the same place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, NamedTuple, Self

import numpy as np

from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.checkpoint.places import IdsAt
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import read_piece, row_batches
from edl_ckpt.core.errors import LockedError
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.checks import duplicate_id
from edl_ckpt.core.format.model import DType
from edl_ckpt.core.format.routing import sketch_size
from edl_ckpt.core.ids import kernel_id
from edl_ckpt.core.operations.export.casts import cast_bytes
from edl_ckpt.core.parallel import Advance
from edl_ckpt.core.storage.files import PreallocatedFile

STEP_BYTES: Final = 4 << 20
"""Rows that are put in order at a time."""
_INDEX_BYTES: Final = 4 << 20
"""The size up to which the index of a table is read at once."""


@dataclass(frozen=True, slots=True)
class TableForm:
    """A table on its way out: the dtype of its rows as they are read, and as they are written."""

    name: str
    dim: int
    dtype: DType | None
    target: DType | None

    @property
    def width(self) -> int:
        """Return the bytes of a row that is written."""
        return self.dim * self.target.itemsize if self.target else 0

    @property
    def is_cast(self) -> bool:
        """Say whether rows change on their way."""
        return self.dtype != self.target

    @property
    def sums_bytes(self) -> int:
        """Return the bytes of the sums of some rows, as they are read and, if they are cast, as they are written."""
        read = 4 * sketch_size(self.dim * self.dtype.itemsize if self.dtype else 0)
        return read + (4 * sketch_size(self.width) if self.is_cast else 0)

    def written(self, rows: bulk.U8) -> tuple[bulk.U8, int]:
        """Return rows, uint8 [n, row_bytes], as they are written, and how many elements became infinite."""
        if not self.is_cast or self.dtype is None or self.target is None:
            return rows, 0
        data, overflowed = cast_bytes(rows.reshape(-1), self.dtype, self.target)
        return data.reshape(len(rows), -1), overflowed


@dataclass(slots=True)
class Found:
    """What a task found: the sums of what it read, those of what it cast, and how many casts overflowed."""

    source: ContentSketch = field(default_factory=ContentSketch)
    written: ContentSketch = field(default_factory=ContentSketch)
    overflowed: int = 0

    def add(self, other: Found) -> None:
        """Add what another task found."""
        self.source.add(other.source)
        self.written.add(other.written)
        self.overflowed += other.overflowed

    def take(self, form: TableForm, ids: bulk.I64, rows: bulk.U8) -> bulk.U8:
        """Add rows as they were read; return them as they are written."""
        self.source.add_rows(form.name, ids, rows)
        kept, overflowed = form.written(rows)
        if form.is_cast:
            self.written.add_rows(form.name, ids, kept)
            self.overflowed += overflowed
        return kept


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The runs of a table as a value: `firsts` are the numbers of their first rows, and behind them that of all rows.

    `cuts` are the first ids of all ranges but the first one. `starts` are the numbers of the first rows of the ranges
    in the whole order, and behind them that of all rows; they are known when all runs are written.
    """

    path: str
    form: TableForm
    firsts: bulk.I64
    cuts: bulk.I64
    starts: bulk.I64 | None = None
    checkpoint_path: str = ""
    hint: str = ""

    @property
    def rows(self) -> int:
        """Return the rows of the table."""
        return int(self.firsts[-1])

    @property
    def count(self) -> int:
        """Return the number of runs."""
        return len(self.firsts) - 1

    @property
    def ranges(self) -> int:
        """Return the number of ranges."""
        return len(self.cuts) + 1

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the file."""
        return self.index_at + 8 * self.count * (self.ranges + 1)

    @property
    def rows_at(self) -> int:
        """Return where the rows begin."""
        return 8 * self.rows

    @property
    def run_ids_at(self) -> bulk.I64:
        """Return where the ids of each run begin: int64 [count]."""
        offsets: bulk.I64 = 8 * self.firsts[:-1]
        return offsets

    @property
    def run_rows_at(self) -> bulk.I64:
        """Return where the rows of each run begin: int64 [count]."""
        offsets: bulk.I64 = self.rows_at + self.form.width * self.firsts[:-1]
        return offsets

    @property
    def index_at(self) -> int:
        """Return where the index begins: for each run, the numbers of the first ids of all ranges, and of all ids."""
        return self.rows * (8 + self.form.width)

    def starting(self, totals: bulk.I64) -> Self:
        """Return the runs with the numbers of rows in each range known."""
        return replace(self, starts=np.concatenate([[0], np.cumsum(totals)]))

    def opened(self) -> RunsReader:
        """Return a reader of the rows in order."""
        return RunsReader(self)

    def repeated(self, ids: bulk.I64, places: bulk.I64) -> Exception:
        """Return the error for ids, ascending, of which some are equal to the one before them."""
        return duplicate_id(self.form.name, int(ids[places[0]]), len(places), path=self.checkpoint_path, hint=self.hint)


class RunTask(NamedTuple):
    """A run to be written: the numbers of the table and of the run, and the ids of its rows."""

    table: int
    run: int
    ids: IdsAt


@dataclass(frozen=True, slots=True)
class RunWork:
    """The pass over large tables; a task is a run."""

    source: CheckpointValue
    runs: Sequence[Runs]
    kernel: str

    def open(self) -> Checkpoint:
        """Open the checkpoint in another process."""
        return self.source.open()

    def do(self, opened: Checkpoint, task: RunTask, advance: Advance) -> Found:
        """Read a piece, and write its run."""
        runs, found = self.runs[task.table], Found()
        width, first = runs.form.width, int(runs.firsts[task.run])
        ids, rows, order, begins = sorted_run(opened, runs, task.run, [task.ids], found, advance)
        file = PreallocatedFile(runs.path, None)
        try:
            file.write(8 * first, ids.data)
            for start, some_rows in in_order(rows, order):
                file.write(runs.rows_at + (first + start) * width, some_rows.reshape(-1).data)
            file.write(runs.index_at + 8 * task.run * (runs.ranges + 1), begins.data)
            if self.kernel != kernel_id():
                file.flush()
        finally:
            file.close()
        return found


def sorted_run(
    checkpoint: Checkpoint, runs: Runs, run: int, places: Sequence[IdsAt], found: Found, advance: Advance
) -> tuple[bulk.I64, bulk.U8, bulk.U32, bulk.I64]:
    """Read the pieces of a run; return its ids, ascending, its rows as they were read, their order, and its index.

    These are int64 [n], uint8 [n, width], uint32 [n] and int64 [ranges + 1]. What was read is added to `found`. Raises
    CorruptError for an id that occurs twice, LockedError when the ids are not those that were counted.
    """
    form, count = runs.form, int(runs.firsts[run + 1] - runs.firsts[run])
    ids, rows, at = np.empty(count, np.int64), np.empty((count, form.width), np.uint8), 0
    for piece in (place.piece(checkpoint) for place in places):
        own = read_piece(checkpoint, piece).ids
        if at + len(own) > count:
            break
        ids[at : at + len(own)] = own
        for some, values in row_batches(checkpoint, piece, len(own), VALUE_BATCH_BYTES):
            rows[at + some.start : at + some.stop] = found.take(form, own[some], values)
            advance(len(values) * (8 + form.width))
        at += len(own)
    if at != count:
        path = checkpoint.shards[places[0].shard].file.path
        raise LockedError("the ids of the shard have changed since they were counted", path=path)
    order = bulk.order_ids(ids)
    twice = np.flatnonzero(ids[1:] == ids[:-1])
    if len(twice):
        raise runs.repeated(ids, twice)
    begins = np.concatenate([[0], np.searchsorted(ids, runs.cuts), [count]]).astype(np.int64)
    return ids, rows, order, begins


def in_order(rows: bulk.U8, order: bulk.U32) -> Iterator[tuple[int, bulk.U8]]:
    """Yield (first row, rows) in an order, some at a time, in memory that the next ones take; rows may be empty."""
    step = max(STEP_BYTES // max(rows.shape[1], 1), 1)
    buffer = np.empty((min(step, len(order)), rows.shape[1]), np.uint8)
    for start in range(0, len(order) if rows.shape[1] else 0, step):
        some = order[start : start + step]
        yield start, bulk.take_rows(rows, some, buffer[: len(some)])


class RangesAt(NamedTuple):
    """Ranges [first, last) of a table, by its number."""

    table: int
    first: int
    last: int


class NothingOpened:
    """What tasks use that open files of runs themselves."""

    bytes_read = 0

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class TotalsWork:
    """How many rows each range has in all runs; a task is some ranges."""

    runs: Sequence[Runs]

    def open(self) -> NothingOpened:
        """Open nothing."""
        return NothingOpened()

    def do(self, opened: NothingOpened, task: RangesAt, advance: Advance) -> bulk.I64:  # noqa: ARG002
        """Return the rows of each range, int64 [last - first]."""
        with self.runs[task.table].opened() as reader:
            return reader.totals(task.first, task.last)


class RunsReader:
    """The runs of a table, opened to read rows of the whole order; a context manager."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._file = PreallocatedFile(runs.path, None)
        self._index: bulk.I64 | None = None
        if 8 * runs.count * (runs.ranges + 1) <= _INDEX_BYTES:
            self._index = self._read(runs.index_at, runs.count * (runs.ranges + 1)).reshape(runs.count, -1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _read(self, at: int, count: int) -> bulk.I64:
        data = np.empty(count, np.int64)
        self._file.read_into(at, data.view(np.uint8).data)
        return data

    def _read_all(self, wanted: Sequence[tuple[int, memoryview]]) -> None:
        """Fill memory from the (offset, memory) of the file."""
        for at, data in wanted:
            self._file.read_into(at, data)

    def _begins(self, first: int, last: int) -> bulk.I64:
        """Return where the ranges [first, last) and the one behind them begin in each run, int64 [runs, n + 1]."""
        if self._index is not None:
            return self._index[:, first : last + 1]
        runs = self._runs
        ends = runs.index_at + 8 * (runs.ranges + 1) * np.arange(runs.count) + 8 * first
        return np.stack([self._read(at, last - first + 1) for at in ends.tolist()])

    def totals(self, first: int, last: int) -> bulk.I64:
        """Return how many rows each of the ranges [first, last) has, int64 [n]."""
        totals: bulk.I64 = np.diff(self._begins(first, last), axis=1).sum(axis=0)
        return totals

    def rows(self, first: int, last: int) -> tuple[bulk.I64, bulk.U8, bulk.U32]:
        """Return rows [first, last) of the order: their ids, int64 [n]; rows uint8 [n, width]; the place of each row.

        Raises CorruptError for an id that occurs twice.
        """
        count = last - first
        ids, places = np.empty(count, np.int64), np.empty(count, np.uint32)
        rows = np.empty((count, self._runs.form.width), np.uint8)
        for number, some, out in self._ranges(first, last):
            ids[out], own = self._range(number, some, rows[out])
            places[out] = own + np.uint32(out.start)
        return ids, rows, places

    def ids(self, first: int, last: int) -> bulk.I64:
        """Return the ids of rows [first, last) of the order, int64 [n]; errors as `rows`."""
        ids = np.empty(last - first, np.int64)
        for number, some, out in self._ranges(first, last):
            ids[out] = self._sorted(number)[0][some]
        return ids

    def _ranges(self, first: int, last: int) -> Iterator[tuple[int, slice, slice]]:
        """Yield (range, its rows, their places) for rows [first, last) of the order."""
        runs, done = self._runs, 0
        assert runs.starts is not None  # noqa: S101 - the caller has waited for the totals
        number = int(np.searchsorted(runs.starts, first, "right")) - 1
        while done < last - first:
            start = int(runs.starts[number])
            some = slice(max(first - start, 0), min(last, int(runs.starts[number + 1])) - start)
            if some.stop > some.start:
                yield number, some, slice(done, done + some.stop - some.start)
                done += some.stop - some.start
            number += 1

    def _sorted(self, number: int) -> tuple[bulk.I64, bulk.U32, bulk.I64, bulk.I64]:
        """Return the ids of a range, ascending; their order in runs; where each run begins, here and there."""
        begins, ends = self._begins(number, number + 1).T
        sizes = ends - begins
        edges = np.concatenate([[0], np.cumsum(sizes)])
        ids = np.empty(int(edges[-1]), np.int64)
        at = self._runs.run_ids_at + 8 * begins
        self._read_all(
            [
                (int(at[run]), ids[edges[run] : edges[run + 1]].view(np.uint8).data)
                for run in np.flatnonzero(sizes).tolist()
            ]
        )
        order = bulk.order_ids(ids)
        twice = np.flatnonzero(ids[1:] == ids[:-1])
        if len(twice):
            raise self._runs.repeated(ids, twice)
        return ids, order, edges, begins

    def _range(self, number: int, some: slice, out: bulk.U8) -> tuple[bulk.I64, bulk.U32]:
        """Fill `out` with some rows of a range; return their ids, ascending, and where the row of each is in `out`."""
        runs = self._runs
        ids, order, edges, begins = self._sorted(number)
        wanted = order[some]
        by_place = np.sort(wanted)  # those of one run follow each other, there and in the file
        inside = np.searchsorted(by_place, edges)
        width, flat = runs.form.width, out.reshape(-1)
        rows_at, asked = runs.run_rows_at + width * begins, list[tuple[int, memoryview]]()
        for run in np.flatnonzero(np.diff(inside) if width else 0).tolist():
            at, end = int(inside[run]), int(inside[run + 1])
            first = int(rows_at[run]) + width * (int(by_place[at]) - int(edges[run]))
            asked.append((first, flat[at * width : end * width].data))
        self._read_all(asked)
        return ids[some], np.searchsorted(by_place, wanted).astype(np.uint32)
