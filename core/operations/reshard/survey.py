"""The survey of a version: everything that the plan of a reshard needs, from headers and ids, without a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, groupby
from math import gcd
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.checkpoint.blocks import raise_bad_ids
from edl_ckpt.core.checkpoint.duplicates import NO_IDS, IdOrder, check_unique, order_of
from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.fingerprint import value_bytes
from edl_ckpt.core.checkpoint.places import IdsAt, ids_at
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import (
    PIECE_BYTES,
    IdPiece,
    cut_piece,
    is_small,
    number_rows,
    read_piece,
)
from edl_ckpt.core.checkpoint.unique import check_unique_at
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.checks import check_ps_num
from edl_ckpt.core.format.model import DType, ShardIndex, TableEntry, TableInfo, Version
from edl_ckpt.core.format.routing import PART_NUMBERS, Part, tally_parts
from edl_ckpt.core.format.shard_layout import PlacedVariable
from edl_ckpt.core.moving.sparse import PieceCounts, SparsePair, SparsePairs
from edl_ckpt.core.packing import together
from edl_ckpt.core.parallel import RESULT_BYTES, Advance, Executor, Threads, default_workers
from edl_ckpt.core.progress import WARNINGS, Reporter
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import RangeReader
from edl_ckpt.core.words import counted, describe, escaped

_MAX_STRETCHES: Final = 256
"""About how many stretches all ids are counted in, however many they are: a plan does not grow with the rows."""
_LEAST_STRETCH_BYTES: Final = 8 << 20
_COUNTED_BYTES: Final = 512
"""About the bytes of the counts of a stretch as a result, without targets."""
_TARGET_BYTES: Final = 24
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
class Survey:
    """A version, counted for `to_ps` parameter servers. A plan needs nothing else of it."""

    source: Version
    to_ps: int
    number: int
    """The version number that its shards contain."""
    variables: tuple[PlacedVariable, ...]
    tables: tuple[SurveyedTable, ...]
    counts: Sequence[PieceCounts]
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
        return sum(int(piece.id_bytes.sum()) for piece in chain(self.counts, self.small))

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
    executor: Executor | None = None,
    piece_bytes: int | None = None,
    max_memory_bytes: int | None = None,
    reporter: Reporter = WARNINGS,
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
    executor = executor or Threads(workers)
    kept = {} if executor.elsewhere else checkpoint.keep_ids(workers)
    counting = _Counting(checkpoint, ps_num, executor, piece_bytes or PIECE_BYTES // 2, reporter)
    reporter.start("reading ids", total_id_bytes(checkpoint))
    small = counting.small_tables()
    stretches, counts, orders = counting.large_tables()
    if executor.elsewhere:
        counting.check_unique(orders)
    else:  # sorting takes memory and a core, and waits for no request
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
        counts=counts,
        pieces=tuple(stretches),
        small=small,
        bytes_read=checkpoint.bytes_read,
        kept=kept,
    )


@dataclass(frozen=True, slots=True)
class _SmallWork:
    """The counts of small tables; a task is the names of some."""

    source: CheckpointValue
    ps_num: int

    def open(self) -> Checkpoint:
        return self.source.open()

    def do(self, opened: Checkpoint, task: Sequence[str], advance: Advance) -> list[PieceCounts]:
        parts = [(number, shard, entry) for number, name in enumerate(task) for shard, entry in _filled(opened, name)]
        sizes = np.array([entry.ids[0].end - entry.ids[0].start for _, _, entry in parts], np.int64)
        numbers = np.zeros((len(parts), PART_NUMBERS), np.int64)
        numbers[:, Part.IDS] = np.cumsum(sizes) - sizes
        numbers[:, Part.ID_BYTES] = sizes
        numbers[:, Part.ROWS] = [entry.rows for _, _, entry in parts]
        numbers[:, Part.TABLE] = [number for number, _, _ in parts]
        data = np.empty(int(sizes.sum()), np.uint8)
        for (_, shard, entry), at, size in zip(parts, numbers[:, Part.IDS].tolist(), sizes.tolist(), strict=True):
            opened.reader(shard).read_into(entry.ids[0].start, data[at : at + size].data)
        rows, id_bytes = (np.zeros((len(task), self.ps_num), np.int64) for _ in range(2))
        ids = np.empty(int(numbers[:, Part.ROWS].sum()), np.int64)
        bad = tally_parts(data, numbers, self.ps_num, rows, id_bytes, ids)
        if bad >= 0:
            raise_bad_ids(opened.reader(parts[bad][1]), parts[bad][2])
        _check_small(opened, task, ids, rows.sum(axis=1))
        advance(len(data))
        return [PieceCounts(name, *both) for name, *both in zip(task, rows, id_bytes, strict=True)]


def _filled(checkpoint: Checkpoint, table: str) -> list[tuple[ShardIndex, TableEntry]]:
    return [(shard, entry) for shard, entry in checkpoint.entries(table) if entry.ids]


def _check_small(checkpoint: Checkpoint, names: Sequence[str], ids: bulk.I64, rows: bulk.I64) -> None:
    """Raise CorruptError when a table has an id twice; `ids` are those of all tables, one after the other."""
    for name, start, count in zip(names, (np.cumsum(rows) - rows).tolist(), rows.tolist(), strict=True):
        own = ids[start : start + count]
        own.sort()
        if (own[1:] == own[:-1]).any():  # the ordinary way names the rows
            pieces = [
                IdPiece(shard, entry, run, run.start, run.end)
                for shard, entry in _filled(checkpoint, name)
                for run in entry.ids
            ]
            orders = [order_of(read_piece(checkpoint, p).ids, p.shard.file) for p in pieces]
            check_unique(checkpoint, pieces, orders, workers=1)


class _Counted(NamedTuple):
    """The counts and the order of some ids."""

    counts: SparsePair
    """Rows, and bytes of ids."""
    order: IdOrder


@dataclass(frozen=True, slots=True)
class _StretchWork:
    """The counts of large tables; a task is some stretches, or pieces of stretches."""

    source: CheckpointValue
    ps_num: int
    piece_bytes: int

    def open(self) -> Checkpoint:
        return self.source.open()

    def do(self, opened: Checkpoint, task: Sequence[IdsAt], advance: Advance) -> list[_Counted]:
        return [self._count(opened, place, advance) for place in task]

    def _count(self, opened: Checkpoint, place: IdsAt, advance: Advance) -> _Counted:
        rows, id_bytes = (np.zeros(self.ps_num, np.int64) for _ in range(2))
        order = NO_IDS
        for piece in cut_piece(opened, place.piece(opened), self.piece_bytes):
            block = read_piece(opened, piece)
            found = bulk.tally(bulk.owners(block.ids, self.ps_num), block.lengths, self.ps_num)
            rows += found[0]
            id_bytes += found[1]
            order = order.followed_by(order_of(block.ids, piece.shard.file))
            advance(piece.end - piece.start)
        return _Counted(SparsePair.of(rows, id_bytes, np.flatnonzero(id_bytes)), order)


class _Counting:
    """The pass over all ids."""

    def __init__(
        self, checkpoint: Checkpoint, ps_num: int, executor: Executor, piece_bytes: int, reporter: Reporter
    ) -> None:
        self._checkpoint = checkpoint
        self._source = CheckpointValue.of(checkpoint)
        self._ps_num = ps_num
        self._executor = executor
        self._piece_bytes = piece_bytes
        self._reporter = reporter
        self._small = {name for name in checkpoint.table_names if is_small_table(checkpoint, name)}
        self._places: list[IdsAt] = []

    def small_tables(self) -> tuple[PieceCounts, ...]:
        """Count the small tables, many at a time."""
        names = [name for name in self._checkpoint.table_names if name in self._small]
        sizes = [sum(e.ids[0].end - e.ids[0].start for _, e in _filled(self._checkpoint, name)) for name in names]
        if self._executor.elsewhere:  # a result has the counts of each server
            sizes = [max(size, self._piece_bytes * 16 * self._ps_num // RESULT_BYTES) for size in sizes]
        some = together(zip(names, sizes, strict=True), self._piece_bytes)
        work = _SmallWork(self._source, self._ps_num)
        with closing(self._executor.run(work, self._checkpoint, some, self._reporter.advance)) as found:
            return tuple(count for counts in found for count in counts)

    def large_tables(self) -> tuple[list[IdPiece], Sequence[PieceCounts], list[IdOrder]]:
        """Return the stretches of all other tables, with their counts and orders."""
        checkpoint = self._checkpoint
        self._places = stretches = self.stretches()
        counts, orders = SparsePairs(self._ps_num, PieceCounts), [NO_IDS] * len(stretches)
        tasks = list(self._tasks(stretches))
        work = _StretchWork(self._source, self._ps_num, self._piece_bytes)
        places = ([place for _, place in task] for task in tasks)
        with closing(self._executor.run(work, checkpoint, places, self._reporter.advance)) as results:
            found_of = (zip(task, found, strict=True) for task, found in zip(tasks, results, strict=True))
            counted_of = ((number, found) for pairs in found_of for (number, _), found in pairs)
            of_stretches = groupby(counted_of, key=lambda done: done[0])
            for stretch, (number, done) in zip(stretches, of_stretches, strict=True):
                own = np.zeros((2, self._ps_num), np.int64)
                for _, found in done:
                    own[:, found.counts.targets] += found.counts.numbers
                    orders[number] = orders[number].followed_by(found.order)
                counts.append(own[0], own[1], np.flatnonzero(own[1]), stretch.piece(checkpoint).entry.name)
        pieces = [place.piece(checkpoint) for place in stretches]
        numbered = number_rows(checkpoint, pieces, [order.rows for order in orders], without=self._small)
        return numbered, counts, orders

    def _tasks(self, stretches: Sequence[IdsAt]) -> Iterator[list[tuple[int, IdsAt]]]:
        """Yield stretches with their numbers, some in a task; where tasks cost nothing, their pieces one by one."""
        if self._executor.elsewhere:
            shard_targets = max(self._ps_num // gcd(max(len(self._checkpoint.shards), 1), self._ps_num), 1)
            most = max(RESULT_BYTES // (_COUNTED_BYTES + _TARGET_BYTES * shard_targets), 1)
            limit = self._executor.task_bytes(total_id_bytes(self._checkpoint))
            sized = ((each, each[1].end - each[1].start) for each in enumerate(stretches))
            yield from together(sized, limit, most=most)
            return
        for number, stretch in enumerate(stretches):
            for piece in cut_piece(self._checkpoint, stretch.piece(self._checkpoint), self._piece_bytes):
                yield [(number, stretch._replace(start=piece.start, end=piece.end))]

    def stretches(self) -> list[IdsAt]:
        """Cut the ids of large tables into stretches, whose number does not grow with that of the rows.

        Elsewhere a stretch is moved by one task, and has as many values as a task should have.
        """
        total = total_id_bytes(self._checkpoint)
        stretch_bytes = max(_LEAST_STRETCH_BYTES, total // _MAX_STRETCHES)
        stretch_bytes += -stretch_bytes % self._piece_bytes
        task_bytes = self._executor.task_bytes(total + value_bytes(self._checkpoint))
        places = ids_at(self._checkpoint, task_bytes or stretch_bytes, values=bool(task_bytes))
        return [place for place in places if place.piece(self._checkpoint).entry.name not in self._small]

    def check_unique(self, orders: Sequence[IdOrder]) -> None:
        """Let other processes find ids that a table has twice."""
        check_unique_at(self._checkpoint, self._executor, self._places, orders)


def is_small_table(checkpoint: Checkpoint, name: str) -> bool:
    """Say whether all parts of a table are small, and together too, so that it moves together with others."""
    filled = [entry for _, entry in checkpoint.entries(name) if entry.rows or entry.ids]
    return all(map(is_small, filled)) and sum(e.ids[0].end - e.offset for e in filled) <= _SMALL_TABLE_BYTES


def total_id_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of all ids in the source's files."""
    return sum(run.end - run.start for s in checkpoint.shards for t in s.tables for run in t.ids)


def widest_row_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the widest row of all tables."""
    return max((table.row_bytes for shard in checkpoint.shards for table in shard.tables), default=0)
