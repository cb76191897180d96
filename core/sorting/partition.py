"""The rows of one table in parts that fit into memory: by a hash of the id, or by ranges of ids, which sorts them.

A first pass over the ids counts the rows of each part, so the place of every row is known before a value moves, and
values are read once. The parts lie one after the other, their ids in one area of a file and their rows in another: of a
temporary file, or of an output. Parts of ranges can be sorted there, and then both areas are in the order of the ids.

Memory has one part for each worker. A part is never much larger than planned, whatever the ids are: where a sample led
to bad ranges, they are cut again, and ids that repeat are found before a part of them is read.

Small tables, read whole and many at a time: parts of tables that lie near each other take one read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import reduce
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.packing import near
from edl_ckpt.core.base.parallel import default_workers, run_all, run_parallel
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.thread_memory import ThreadMemory
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.tables import Encoding, ShardIndex, TableEntry
from edl_ckpt.core.proof.duplicates import check_reads, reads_of
from edl_ckpt.core.proof.id_order import NO_IDS, IdOrder, order_of
from edl_ckpt.core.proof.repeated_ids import SORTED_AT_ONCE
from edl_ckpt.core.reading.blocks import IdPiece, as_dtype, check_row_count, id_blocks, read_piece, read_rows
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.row_batches import row_batches
from edl_ckpt.core.storage.files import PreallocatedFile, ScratchFile

PART_BYTES: Final = 16 << 20
"""Ids and rows of a part. A table that needs more than MAX_PARTS of them has larger ones."""
MAX_PARTS: Final = 1 << 14
_AT_ONCE_BYTES: Final = 160 << 20
"""Memory for the parts that are read and sorted at a time, all together."""
_MOST_WORKERS: Final = 4
_FILL_BYTES: Final = 16 << 20
"""Rows that are grouped by part at a time: what goes to one part is written in one piece."""
_REMOTE_FILL_BYTES: Final = 4 << 20
"""The same for remote storage, where many are read at a time."""
_SAMPLES: Final = 256
"""Ids of a sample for each part: parts then differ by a few percent."""
_TOO_LARGE: Final = 2
"""A part of so many times its planned rows is cut again."""
_LEAST_ROWS: Final = 1024
"""Smaller parts are as they are: samples of a few ids say little."""
_ATTEMPTS: Final = 4


Wanted = Callable[[bulk.I64], npt.NDArray[np.bool_]]
"""Returns whether the row of each id is wanted: int64 [n] -> bool [n]."""


TakeRows = Callable[[bulk.I64, bulk.U8], bulk.U8]
"""Returns the rows that are written for rows that were read: int64 [n] ids, uint8 [n, row_bytes] -> uint8 [n, m]."""


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


class RowArea(Protocol):
    """Where the ids or the rows of a table are written: offsets are those from its first byte."""

    def write(self, at: int, data: bulk.U8) -> None:
        """Write bytes, uint8 [n], at an offset."""

    def read_into(self, at: int, data: bulk.U8) -> None:
        """Fill uint8 [n] with the bytes that were written at an offset."""

    def start_flush(self, at: int, size_bytes: int) -> None:
        """Let the kernel begin to write some bytes that are final."""


@dataclass(frozen=True, slots=True)
class Area:
    """A place in a file that is being written."""

    file: PreallocatedFile
    offset: int

    def write(self, at: int, data: bulk.U8) -> None:
        """Write bytes, uint8 [n], at an offset."""
        self.file.write(self.offset + at, data.data)

    def read_into(self, at: int, data: bulk.U8) -> None:
        """Fill uint8 [n] with the bytes that were written at an offset."""
        self.file.read_into(self.offset + at, data.data)

    def start_flush(self, at: int, size_bytes: int) -> None:
        """Let the kernel begin to write some bytes that are final."""
        self.file.start_flush(self.offset + at, size_bytes)


@dataclass(frozen=True, slots=True)
class Areas:
    """Where the ids (8 bytes each) and the rows of a table are written."""

    ids: RowArea
    rows: RowArea


def by_hash(parts: int) -> Assign:
    """Return the assignment to parts by a hash of the id: the ids of one shard share their low digits."""

    def assign(ids: bulk.I64) -> bulk.U16:
        word = ids.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        word ^= word >> np.uint64(32)
        return (word % np.uint64(parts)).astype(np.uint16)

    return assign


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """The assignment to ascending ranges of ids; `cuts`, int64 ascending, are the first ids of all but the first."""

    cuts: bulk.I64

    def __call__(self, ids: bulk.I64) -> bulk.U16:
        """Return the part of each id."""
        return bulk.ranges_of(ids, self.cuts)

    def cut_again(self, samples: bulk.I64, pieces: int) -> Ranges:
        """Return more ranges: those of the samples, int64 ascending, are cut into so many of equal count."""
        more = samples[np.arange(1, pieces) * len(samples) // pieces] if len(samples) else samples
        return Ranges(np.unique(np.concatenate([self.cuts, more])))


def ranges_of_sample(sample: bulk.I64, parts: int) -> Ranges:
    """Return ranges of about equal count, estimated from a sample of the ids."""
    return Ranges(np.empty(0, np.int64)).cut_again(np.sort(sample), parts)


def sample_step(rows: int, parts: int) -> int:
    """Return which ids are a sample for so many parts: every such one; 0 for none."""
    return max(rows // (_SAMPLES * parts), 1) if parts > 1 else 0


def parts_needed(size_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """Return the number of parts for so many bytes.

    >>> parts_needed(0), parts_needed(100, 30)
    (1, 4)
    """
    return max(min(-(-size_bytes // part_bytes), MAX_PARTS), 1)


def readers_of(checkpoint: Checkpoint, pieces: Sequence[IdPiece]) -> int:
    """Return how many of some pieces are read at a time."""
    most = default_workers(remote=True) if checkpoint.reads_blocks else min(default_workers(), _MOST_WORKERS)
    return max(min(most, len(pieces)), 1)


@dataclass(eq=False)
class PartitionedTable:
    """A table in parts; a context manager. `pieces` are the numbered pieces of the table.

    Rows go to `areas`, or to a temporary file in `directory`. With `wanted`, only those rows are kept. Each batch of
    them is given to `take` as it was read, which returns what is kept in its place: rows of the `form`, which is a
    dtype and a number of elements.
    """

    checkpoint: Checkpoint
    name: str
    pieces: Sequence[IdPiece]
    _: KW_ONLY
    parts: int
    assign: Assign
    directory: str | None = None
    areas: Areas | None = None
    take: TakeRows | None = None
    form: tuple[DType | None, int] | None = None
    wanted: Wanted | None = None
    reporter: Reporter = WARNINGS

    def __post_init__(self) -> None:
        dim = max((e.dim for _, e in self.checkpoint.entries(self.name)), default=0)
        self.dtype, self.dim = self.form or (self.checkpoint.table_dtype(self.name), dim)
        self._row_bytes = self.dim * (self.dtype.itemsize if self.dtype else 0)
        self._rows = np.zeros(self.parts, np.int64)
        self._scratch_file: ScratchFile | None = None
        self._lock = threading.Lock()
        self._memory = ThreadMemory()

    @property
    def rows(self) -> int:
        """Return the number of rows that are kept."""
        return int(self._rows.sum())

    def __enter__(self) -> Self:
        self._count_parts()
        self._starts = np.cumsum(self._rows) - self._rows
        self._next = self._starts.copy()
        if self.areas is None:
            self._scratch_file = file = ScratchFile(self.rows * (8 + self._row_bytes), self.directory)
            self.areas = Areas(Area(file, 0), Area(file, self.rows * 8))
        try:
            run_all(self._write_piece, self.pieces, readers_of(self.checkpoint, self.pieces))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._scratch_file is not None:
            self._scratch_file.close()

    def _at_once(self, bytes_per_row: int) -> int:
        part = max(int(self._rows.max(initial=0)) * bytes_per_row, 1)
        return max(min(default_workers(), _MOST_WORKERS, self.parts, _AT_ONCE_BYTES // part), 1)

    def _count_parts(self) -> None:
        """Count the rows of each part, and cut again those ranges that are too large."""
        if self.parts == 1 and self.wanted is None:
            self._rows = np.array([sum(piece.rows for piece in self.pieces)], np.int64)
            return
        limit = _LEAST_ROWS
        for attempt in range(_ATTEMPTS):
            counted = run_parallel(self._count, self.pieces, readers_of(self.checkpoint, self.pieces))
            self._rows = sum(counted, np.zeros(self.parts, np.int64))
            limit = limit if attempt else max(_TOO_LARGE * self.rows // self.parts, limit)
            large = self._rows > limit
            if not large.any():
                return
            if not attempt:
                self._check_repeated()
            if isinstance(self.assign, Ranges):
                self._cut_again(self.assign, large, limit)

    def _count(self, piece: IdPiece) -> bulk.I64:
        return np.bincount(self.assign(self._ids(piece)), minlength=self.parts).astype(np.int64)

    def _ids(self, piece: IdPiece) -> bulk.I64:
        """Return the ids of a piece whose rows are kept."""
        ids = read_piece(self.checkpoint, piece).ids
        return ids if self.wanted is None else ids[self.wanted(ids)]

    def _cut_again(self, ranges: Ranges, large: npt.NDArray[np.bool_], limit: int) -> None:
        """Cut ranges that are too large by a sample of their ids alone, drawn at random: no order of rows misleads."""
        rows = int(self._rows[large].sum())
        more = -(-2 * rows // limit) + 1
        share = min(_SAMPLES * more / rows, 1.0)

        def sample(numbered: tuple[int, IdPiece]) -> bulk.I64:
            ids = self._ids(numbered[1])
            drawn = np.random.default_rng(numbered[0]).random(len(ids)) < share
            return ids[large[ranges(ids)] & drawn]

        found = list(run_parallel(sample, enumerate(self.pieces), readers_of(self.checkpoint, self.pieces)))
        self.assign = ranges.cut_again(np.sort(np.concatenate(found)), more)
        self.parts = len(self.assign.cuts) + 1

    def _check_repeated(self) -> None:
        """Raise CorruptError when ids repeat, without reading a part: one may be as large as the table."""
        orders = (order_of(read_piece(self.checkpoint, piece).ids) for piece in self.pieces)
        reads = reads_of(self.checkpoint, self.pieces)
        order = reduce(IdOrder.followed_by, orders, NO_IDS)
        check_reads(self.name, reads, order, at_once=SORTED_AT_ONCE, version=self.checkpoint.version)

    def _write_piece(self, piece: IdPiece) -> None:
        """Write the ids and rows of a piece; the rows of a part may lie in any order."""
        ids = read_piece(self.checkpoint, piece).ids
        wanted = None if self.wanted is None else self.wanted(ids)
        batch_bytes = _REMOTE_FILL_BYTES if self.checkpoint.reads_blocks else _FILL_BYTES
        for some, values in row_batches(self.checkpoint, piece, len(ids), batch_bytes, wanted=wanted):
            kept, rows = (ids[some], values) if wanted is None else (ids[some][wanted[some]], values[wanted[some]])
            self._write_rows(kept, rows if self.take is None else self.take(kept, rows))
            self.reporter.advance(len(kept) * (8 + self._row_bytes))

    def _write_rows(self, ids: bulk.I64, values: bulk.U8) -> None:
        """Write some ids and rows, at the next places of their parts."""
        if not len(ids):
            return
        assert self.areas is not None  # noqa: S101 - `__enter__` has set them
        owner = self.assign(ids) if self.parts > 1 else np.zeros(len(ids), np.uint16)
        rows = np.bincount(owner, minlength=self.parts).astype(np.int64)
        with self._lock:
            place = self._next.copy()
            self._next += rows
        keys = np.ascontiguousarray(ids).view(np.uint8).reshape(-1, 8)
        self._write(self.areas.ids, keys, owner, rows, place)
        if self._row_bytes:
            self._write(self.areas.rows, values, owner, rows, place)

    def _write(self, area: RowArea, data: bulk.U8, owner: bulk.U16, rows: bulk.I64, place: bulk.I64) -> None:
        """Write rows ordered by part, each part's at its place: the number of a row."""
        if self.parts > 1:
            grouped = self._memory.take(data.nbytes, "grouped").reshape(data.shape)
            bulk.group_rows(data, owner, rows, grouped)
            data = grouped
        width, start = data.shape[1], 0
        for part in np.flatnonzero(rows).tolist():
            size = int(rows[part]) * width
            area.write(int(place[part]) * width, data.reshape(-1)[start : start + size])
            start += size

    def part(self, number: int) -> TablePart:
        """Return one part; CorruptError for an id that occurs twice."""
        rows = int(self._rows[number])
        return self._sorted(number, np.empty(rows, np.int64), np.empty((rows, self._row_bytes), np.uint8))

    def all_parts(self) -> Iterator[TablePart]:
        """Yield every part, in order; up to three for each worker wait to be taken."""
        yield from run_parallel(self.part, range(self.parts), self._at_once(5 * self._row_bytes + 64))

    def sort_in_place(self, done: Callable[[int, int], None]) -> None:
        """Sort every part where it lies; `done` is then called with its first row and the number of its rows."""
        assert self.areas is not None  # noqa: S101 - `__enter__` has set them
        areas, width = self.areas, self._row_bytes

        def sort(number: int) -> None:
            rows, start = int(self._rows[number]), int(self._starts[number])
            ids = self._memory.take(rows * 8, "ids").view(np.int64)
            values = self._memory.take(rows * width, "sorted").reshape(rows, width)
            self._sorted(number, ids, values)
            areas.ids.write(start * 8, ids.view(np.uint8))
            areas.rows.write(start * width, values.reshape(-1))
            done(start, rows)

        # Each part as it was, sorted, and with what sorting takes.
        run_all(sort, range(self.parts), self._at_once(2 * width + 40))

    def _sorted(self, number: int, ids: bulk.I64, out: bulk.U8) -> TablePart:
        """Fill int64 [n] and uint8 [n, row_bytes] with the ids of a part, ascending, and with their rows."""
        assert self.areas is not None  # noqa: S101 - `__enter__` has set them
        start, width = int(self._starts[number]), self._row_bytes
        self.areas.ids.read_into(start * 8, ids.view(np.uint8))
        order = bulk.order_ids(ids)
        check_reads(self.name, [lambda: ids], order_of(ids), at_once=len(ids), version=self.checkpoint.version)
        if width:
            data = self._memory.take(len(ids) * width, "values")
            self.areas.rows.read_into(start * width, data)
            bulk.take_rows(data.reshape(len(ids), width), order, out)
        return TablePart(ids, out, self.dtype, self.dim)


_GAP_BYTES: Final = 16 << 10
"""The most bytes between two parts that are read along with them."""


def read_tables(checkpoint: Checkpoint, names: Collection[str]) -> Iterator[TablePart]:
    """Yield some tables whole, in the order of their names here; CorruptError for an id that occurs twice.

    All of them are read before the first one is put in order.
    """
    ids: dict[str, list[bulk.I64]] = {name: [] for name in names}
    rows: dict[str, list[bulk.U8]] = {name: [] for name in names}
    wanted: dict[int, list[TableEntry]] = {}
    for name in names:
        for shard, entry in checkpoint.entries(name):
            if entry.rows:
                wanted.setdefault(shard.file.ps_id, []).append(entry)
    for shard in checkpoint.shards:
        own = wanted.get(shard.file.ps_id, [])
        for entry in own:
            if not _is_in_first_file(entry):
                ids[entry.name] += [block for _, block in id_blocks(checkpoint, shard, entry)]
                out = np.empty((entry.rows, entry.row_bytes), np.uint8)
                rows[entry.name].append(read_rows(checkpoint, shard, entry, 0, out))
        for start, end, entries in near(sorted(filter(_is_in_first_file, own), key=_extent), _extent, _GAP_BYTES):
            data = np.empty(end - start, np.uint8)
            checkpoint.reader(shard).read_into(start, data.data)
            for entry in entries:
                ids[entry.name].append(_ids(checkpoint, shard, entry, start, data))
                at = entry.values.start - start
                rows[entry.name].append(data[at : at + entry.rows * entry.row_bytes].reshape(entry.rows, -1))
    yield from (_table(checkpoint, name, ids.pop(name), rows.pop(name)) for name in names)


def _is_in_first_file(entry: TableEntry) -> bool:
    """Say whether values and ids of a table are all in the first file of its shard."""
    return not entry.values.file and all(run.is_stored and not run.file for run in entry.ids)


def _extent(entry: TableEntry) -> tuple[int, int]:
    """Return where the values and ids of a table begin and end in a shard."""
    starts = [entry.values.start, *(run.start for run in entry.ids)]
    return min(starts), max([entry.values.end, *(run.end for run in entry.ids)])


def _ids(checkpoint: Checkpoint, shard: ShardIndex, entry: TableEntry, start: int, data: bulk.U8) -> bulk.I64:
    """Return the ids of a table in a shard; CorruptError when they are not as many as its rows."""
    if len(entry.ids) == 1 and entry.ids[0].encoding is Encoding.VARINT:
        try:
            ids, _ = bulk.decode_varints(data[entry.ids[0].start - start : entry.ids[0].end - start])
        except bulk.VarintError:
            pass  # `id_blocks` names the fault and its place
        else:
            check_row_count(shard, entry, len(ids))
            return ids
    return np.concatenate([ids for _, ids in id_blocks(checkpoint, shard, entry)])


def _table(checkpoint: Checkpoint, name: str, ids: list[bulk.I64], rows: list[bulk.U8]) -> TablePart:
    """Return a table whose ids and rows come shard by shard."""
    dim = max((e.dim for _, e in checkpoint.entries(name)), default=0)
    all_ids = np.concatenate([np.empty(0, np.int64), *ids])
    values = np.concatenate(rows) if rows else np.empty((0, 0), np.uint8)
    order = bulk.order_ids(all_ids)
    check_reads(name, [lambda: all_ids], order_of(all_ids), at_once=len(all_ids), version=checkpoint.version)
    in_order = bulk.take_rows(values, order) if values.shape[1] else values
    return TablePart(all_ids, in_order, checkpoint.table_dtype(name), dim)
