"""The survey of a version: everything that the plan of a reshard needs, from headers and ids, without a value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from edl_ckpt.core.checkpoint.blocks import raise_bad_ids
from edl_ckpt.core.checkpoint.duplicates import NO_IDS, IdOrder, check_unique, order_of
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import (
    PIECE_BYTES,
    IdPiece,
    cut_piece,
    id_pieces,
    is_small,
    number_rows,
    read_piece,
)
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.checks import check_ps_num
from edl_ckpt.core.format.model import DType, ShardIndex, TableEntry, TableInfo, Version
from edl_ckpt.core.format.routing import PART_NUMBERS, Part, tally_parts
from edl_ckpt.core.format.shard_layout import PlacedVariable
from edl_ckpt.core.parallel import default_workers, run_parallel
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import RangeReader
from edl_ckpt.core.words import counted, describe, escaped

_MAX_STRETCHES: Final = 256
"""About how many stretches all ids are counted in, however many they are: a plan does not grow with the rows."""
_LEAST_STRETCH_BYTES: Final = 8 << 20
_SMALL_TABLE_BYTES: Final = 1 << 20
"""The most bytes of a table whose parts move together with those of others."""


@dataclass(frozen=True, slots=True)
class SurveyedTable:
    """A table of the source; `dtype` is None when it has no rows."""

    info: TableInfo
    dtype: DType | None

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row, 0 without rows."""
        return self.info.dim * self.dtype.itemsize if self.dtype else 0


@dataclass(frozen=True, slots=True, eq=False)
class PieceCounts:
    """The rows of one piece of ids that go to each target shard, and the bytes of their ids: int64 [to_ps]."""

    table: str
    rows: bulk.I64
    id_bytes: bulk.I64


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """A version, counted for `to_ps` parameter servers. A plan needs nothing else of it."""

    source: Version
    to_ps: int
    number: int
    """The version number that its shards contain."""
    variables: tuple[PlacedVariable, ...]
    tables: tuple[SurveyedTable, ...]
    counts: tuple[PieceCounts, ...]
    """Of each stretch, in the order of the rows in the target: by table, source shard and row."""
    pieces: tuple[IdPiece, ...]
    """The stretches: ids of one table in one shard. There are few of them; the execution cuts them into pieces."""
    small: tuple[PieceCounts, ...]
    """Of each small table as a whole, in the order of the target: their rows are counted again when they move."""
    bytes_read: int
    kept: Mapping[int, RangeReader] = field(default_factory=dict)
    """Readers that have the ids of far shards on the local disk: the execution takes them over."""

    @property
    def id_bytes(self) -> int:
        """Return the bytes of all ids."""
        return sum(int(piece.id_bytes.sum()) for piece in (*self.counts, *self.small))

    @property
    def widest_row_bytes(self) -> int:
        """Return the bytes of the widest row of all tables."""
        return max((table.row_bytes for table in self.tables), default=0)

    def __repr__(self) -> str:
        return describe(
            "Survey",
            escaped(self.source.ref),
            f"for {counted(self.to_ps, 'server')}",
            counted(len(self.variables), "variable"),
            counted(len(self.tables), "table"),
        )


def survey_ids(
    checkpoint: Checkpoint,
    ps_num: int,
    *,
    workers: int | None = None,
    piece_bytes: int | None = None,
    max_memory_bytes: int | None = None,
    reporter: Reporter = SILENT,
) -> Survey:
    """Read all ids of a checkpoint and count those of each of `ps_num` servers; no value is read.

    `piece_bytes` is how many bytes of ids are one task, here and when the rows are moved. `max_memory_bytes` bounds the
    ids that are sorted to find duplicates. Raises UsageError for a
    number of servers that cannot be, CorruptError for ids that cannot be decoded, are not as many as rows, or that a
    table has twice.
    """
    check_ps_num(ps_num)
    if workers is None:
        workers = default_workers(remote=open_store(checkpoint.version.location).properties.round_trips)
    kept = checkpoint.keep_ids(workers)
    counting = _Counting(checkpoint, ps_num, workers, piece_bytes or PIECE_BYTES // 2, reporter)
    reporter.start("reading ids", total_id_bytes(checkpoint))
    small = counting.small_tables()
    stretches, counts, orders = counting.large_tables()
    # Sorting takes memory and a core, and waits for no request.
    sorters = min(workers, default_workers())
    check_unique(checkpoint, stretches, orders, workers=sorters, max_memory_bytes=max_memory_bytes)
    variables = {v.name: v for shard in checkpoint.shards for v in shard.variables}
    return Survey(
        source=checkpoint.version,
        to_ps=ps_num,
        number=checkpoint.shards[0].version if checkpoint.shards else 0,
        variables=tuple(PlacedVariable(v.name, v.dtype, v.shape, v.size_bytes) for v in variables.values()),
        tables=tuple(
            SurveyedTable(checkpoint.infos[name], checkpoint.table_dtype(name)) for name in checkpoint.table_names
        ),
        counts=tuple(counts),
        pieces=tuple(stretches),
        small=small,
        bytes_read=checkpoint.bytes_read,
        kept=kept,
    )


class _Counting:
    """The pass over all ids."""

    def __init__(self, checkpoint: Checkpoint, ps_num: int, workers: int, piece_bytes: int, reporter: Reporter) -> None:
        self._checkpoint = checkpoint
        self._ps_num = ps_num
        self._workers = workers
        self._piece_bytes = piece_bytes
        self._reporter = reporter
        self._small = {name for name in checkpoint.table_names if is_small_table(checkpoint, name)}

    def small_tables(self) -> tuple[PieceCounts, ...]:
        """Count the small tables, many at a time."""
        names = [name for name in self._checkpoint.table_names if name in self._small]
        sizes = [sum(entry.ids[0].end - entry.ids[0].start for _, entry in self._filled(name)) for name in names]
        some = together(zip(names, sizes, strict=True), self._piece_bytes)
        return tuple(count for counts in run_parallel(self._count_tables, some, self._workers) for count in counts)

    def _count_tables(self, names: Sequence[str]) -> list[PieceCounts]:
        parts = [(number, shard, entry) for number, name in enumerate(names) for shard, entry in self._filled(name)]
        sizes = np.array([entry.ids[0].end - entry.ids[0].start for _, _, entry in parts], np.int64)
        numbers = np.zeros((len(parts), PART_NUMBERS), np.int64)
        numbers[:, Part.IDS] = np.cumsum(sizes) - sizes
        numbers[:, Part.ID_BYTES] = sizes
        numbers[:, Part.ROWS] = [entry.rows for _, _, entry in parts]
        numbers[:, Part.TABLE] = [number for number, _, _ in parts]
        data = np.empty(int(sizes.sum()), np.uint8)
        for (_, shard, entry), at, size in zip(parts, numbers[:, Part.IDS].tolist(), sizes.tolist(), strict=True):
            self._checkpoint.reader(shard).read_into(entry.ids[0].start, data[at : at + size].data)
        rows, id_bytes = (np.zeros((len(names), self._ps_num), np.int64) for _ in range(2))
        ids = np.empty(int(numbers[:, Part.ROWS].sum()), np.int64)
        bad = tally_parts(data, numbers, self._ps_num, rows, id_bytes, ids)
        if bad >= 0:
            raise_bad_ids(self._checkpoint.reader(parts[bad][1]), parts[bad][2])
        self._check_unique(names, ids, rows.sum(axis=1))
        self._reporter.advance(len(data))
        return [PieceCounts(name, *both) for name, *both in zip(names, rows, id_bytes, strict=True)]

    def _filled(self, table: str) -> list[tuple[ShardIndex, TableEntry]]:
        return [(shard, entry) for shard, entry in self._checkpoint.entries(table) if entry.ids]

    def _check_unique(self, names: Sequence[str], ids: bulk.I64, rows: bulk.I64) -> None:
        """Raise CorruptError when a table has an id twice; `ids` are those of all tables, one after the other."""
        for name, start, count in zip(names, (np.cumsum(rows) - rows).tolist(), rows.tolist(), strict=True):
            own = ids[start : start + count]
            own.sort()
            if (own[1:] == own[:-1]).any():  # the ordinary way names the rows
                pieces = [
                    IdPiece(shard, entry, run, run.start, run.end)
                    for shard, entry in self._filled(name)
                    for run in entry.ids
                ]
                orders = [order_of(read_piece(self._checkpoint, p).ids, p.shard.file) for p in pieces]
                check_unique(self._checkpoint, pieces, orders, workers=1)

    def large_tables(self) -> tuple[list[IdPiece], list[PieceCounts], list[IdOrder]]:
        """Return the stretches of all other tables, with their counts and orders."""
        stretches = self.stretches()
        counts = [
            PieceCounts(s.entry.name, np.zeros(self._ps_num, np.int64), np.zeros(self._ps_num, np.int64))
            for s in stretches
        ]
        orders = [NO_IDS] * len(stretches)
        cuts = (
            (number, piece)
            for number, stretch in enumerate(stretches)
            for piece in cut_piece(self._checkpoint, stretch, self._piece_bytes)
        )
        for number, rows, id_bytes, order in run_parallel(self._count_piece, cuts, self._workers):
            counts[number].rows[:] += rows
            counts[number].id_bytes[:] += id_bytes
            orders[number] = orders[number].followed_by(order)
        found = [order.rows for order in orders]
        numbered = number_rows(self._checkpoint, stretches, found, without=self._small)
        return numbered, counts, orders

    def stretches(self) -> list[IdPiece]:
        """Cut the ids of large tables into stretches, whose number does not grow with that of the rows."""
        stretch_bytes = max(_LEAST_STRETCH_BYTES, total_id_bytes(self._checkpoint) // _MAX_STRETCHES)
        stretch_bytes += -stretch_bytes % self._piece_bytes
        pieces = id_pieces(self._checkpoint, stretch_bytes)
        return [piece for piece in pieces if piece.entry.name not in self._small]

    def _count_piece(self, task: tuple[int, IdPiece]) -> tuple[int, bulk.I64, bulk.I64, IdOrder]:
        number, piece = task
        block = read_piece(self._checkpoint, piece)
        rows, id_bytes = bulk.tally(bulk.owners(block.ids, self._ps_num), block.lengths, self._ps_num)
        self._reporter.advance(piece.end - piece.start)
        return number, rows, id_bytes, order_of(block.ids, piece.shard.file)


def is_small_table(checkpoint: Checkpoint, name: str) -> bool:
    """Say whether all parts of a table are small, and together too, so that it moves together with others."""
    filled = [entry for _, entry in checkpoint.entries(name) if entry.rows or entry.ids]
    return all(map(is_small, filled)) and sum(e.ids[0].end - e.offset for e in filled) <= _SMALL_TABLE_BYTES


def together(sizes: Iterable[tuple[str, int]], limit: int) -> Iterator[list[str]]:
    """Yield names that follow each other, so many that their sizes add up to a limit at most, but one at least.

    >>> list(together([("a", 2), ("b", 2), ("c", 9), ("d", 0)], 4))
    [['a', 'b'], ['c'], ['d']]
    """
    some: list[str] = []
    total = 0
    for name, size in sizes:
        if some and total + size > limit:
            yield some
            some, total = [], 0
        some.append(name)
        total += size
    if some:
        yield some


def total_id_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of all ids in the source's files."""
    return sum(run.end - run.start for s in checkpoint.shards for t in s.tables for run in t.ids)


def widest_row_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the widest row of all tables."""
    return max((table.row_bytes for shard in checkpoint.shards for table in shard.tables), default=0)
