"""The changes of tables. The rows of a table have another order on each side, so equal ids are brought together.

Small tables are read whole, many at a time. Each side of a large table is cut into parts by a hash of the id, in a
temporary file, and each part is compared with its counterpart: one part of both sides is in memory for each worker,
whatever the size of the table. Where one side has far fewer rows, those of the other side that have no counterpart are
known from their ids, and their values are not read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.partition import PartitionedTable, by_hash, parts_needed
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import IdPiece, count_rows, id_pieces, read_piece
from edl_ckpt.core.checkpoint.small import read_tables
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.placement import row_owners
from edl_ckpt.core.operations.diff.comparison import RowOptions, TableComparison
from edl_ckpt.core.operations.diff.results import TableDiff
from edl_ckpt.core.packing import together
from edl_ckpt.core.parallel import Advance, Executor, Threads, run_parallel
from edl_ckpt.core.progress import Counted, Reporter

PART_BYTES: Final = 8 << 20
"""Values and ids of a part."""
_SMALL_BYTES: Final = 4 << 20
"""The size of both sides together up to which a table is small."""
_TOGETHER: Final = 64
"""Small tables that are read at a time, with at most about _SMALL_BYTES."""
_AT_ONCE_BYTES: Final = 160 << 20
"""Memory for the parts that are compared at a time, all together."""
_MOST_TOP: Final = 1000
"""Changed rows that a result may name when it travels between processes."""
_MOST_SLOTS: Final = 32 << 20
_LOOKED_UP: Final = 4 << 20
"""Ids of the smaller side that are kept in memory: 32 MiB."""


@dataclass(frozen=True, slots=True)
class TableOptions(RowOptions):
    """The caller's options for the comparison of tables."""

    part_bytes: int
    workers: int


class BothOpened:
    """The two versions, opened."""

    def __init__(self, one: Checkpoint, two: Checkpoint) -> None:
        self.one, self.two = one, two

    @property
    def bytes_read(self) -> int:
        """Return how many bytes were read of both."""
        return self.one.bytes_read + self.two.bytes_read

    def close(self) -> None:
        """Close both."""
        self.one.close()
        self.two.close()


@dataclass(frozen=True, slots=True)
class BothWork:
    """Two versions to be compared, as a value."""

    one: CheckpointValue
    two: CheckpointValue
    options: TableOptions

    def open(self) -> BothOpened:
        """Open both versions in another process."""
        return BothOpened(self.one.open(), self.two.open())


@dataclass(frozen=True, slots=True)
class _SmallWork(BothWork):
    """The changes of small tables; a task is the names of some."""

    def do(self, opened: BothOpened, task: list[str], advance: Advance) -> list[TableDiff]:
        parts = [read_tables(checkpoint, task) for checkpoint in (opened.one, opened.two)]
        results = []
        for name in task:
            comparison = TableComparison(self.options)
            comparison.add(*(part.pop(name) for part in parts))
            results.append(comparison.result(name, _table_changes(opened.one, opened.two, name)))
            advance(_table_bytes(opened.one, name) + _table_bytes(opened.two, name))
        return results


@dataclass(frozen=True, slots=True)
class _LargeWork(BothWork):
    """The changes of the rows of large tables; a task is (name, remainder, modulus): those of some shards.

    The result is None where rows are misplaced, for then their counterparts may be in other shards.
    """

    def do(self, opened: BothOpened, task: tuple[str, int, int], advance: Advance) -> TableComparison | None:
        some = [_shards_of(checkpoint, *task) for checkpoint in (opened.one, opened.two)]
        if not all(map(_is_placed, some)):
            return None
        counted = Counted(advance)
        one, two = (_Side(checkpoint, 1) for checkpoint in some)
        return _compare_large(one, two, task[0], self.options, counted)


def _shards_of(checkpoint: Checkpoint, name: str, remainder: int, modulus: int) -> Checkpoint:
    """Return the part of a checkpoint with one table, in the shards of one remainder."""
    some = [shard for shard in checkpoint.shards if shard.file.ps_id % modulus == remainder]
    readers = {shard.file.ps_id: checkpoint.reader(shard) for shard in some}
    only = [replace(s, variables=(), tables=tuple(t for t in s.tables if t.name == name)) for s in some]
    return Checkpoint(checkpoint.version, only, readers)


def _is_placed(checkpoint: Checkpoint) -> bool:
    """Say whether every row is in its shard."""
    for piece in id_pieces(checkpoint):
        shard = piece.shard.file
        if not (row_owners(read_piece(checkpoint, piece).ids, shard.ps_num) == shard.ps_id).all():
            return False
    return True


def diff_tables(
    one: Checkpoint,
    two: Checkpoint,
    same: Collection[str],
    options: TableOptions,
    executor: Executor,
    reporter: Reporter,
) -> tuple[TableDiff, ...]:
    """Return the changes of all tables, by name; those that are the `same` are not read."""
    names = sorted({*one.table_names, *two.table_names})
    sizes = {name: _table_bytes(one, name) + _table_bytes(two, name) for name in names if name not in same}
    reporter.start("comparing rows", sum(sizes.values()))
    sides = _Side(one, options.workers), _Side(two, options.workers)
    found = {name: _equal_table(one, name) for name in same}
    if options.rows or options.top > _MOST_TOP:  # too much to travel
        executor = executor if not executor.elsewhere else Threads(options.workers)
    both, opened = (CheckpointValue.of(one), CheckpointValue.of(two), options), BothOpened(one, two)
    most = min(_SMALL_BYTES, options.part_bytes)
    small = [name for name, size in sizes.items() if name in sides[0] and name in sides[1] and size <= most]
    some = together(((name, sizes[name]) for name in small), _SMALL_BYTES, most=_TOGETHER)
    with closing(executor.run(_SmallWork(*both), opened, some, reporter.advance)) as done:
        found |= {result.name: result for results in done for result in results}
    large = [name for name in sizes if name not in found]
    if executor.elsewhere:
        modulus = math.gcd(one.version.ps_num or 1, two.version.ps_num or 1)
        common = [name for name in large if name in sides[0] and name in sides[1]]
        tasks = [(name, remainder, modulus) for name in common for remainder in range(modulus)]
        totals = {name: TableComparison(options) for name in common}
        largest = max((sizes[name] // modulus for name in common), default=0)
        executor.check_temporary(largest if largest > options.part_bytes else 0, len(tasks))
        with closing(executor.run(_LargeWork(*both), opened, tasks, reporter.advance)) as parts:
            for (name, _, _), part in zip(tasks, parts, strict=True):
                if part is None:
                    totals.pop(name, None)
                elif name in totals:
                    totals[name].merge(part)
        found |= {name: total.result(name, _table_changes(one, two, name)) for name, total in totals.items()}
    for name in large:
        if name not in found:
            found[name] = _diff_large(*sides, name, options, reporter)
    return tuple(found[name] for name in names)


def _row_count(checkpoint: Checkpoint, name: str) -> int:
    return sum(e.rows for _, e in checkpoint.entries(name)) if checkpoint.has_table(name) else 0


def _table_bytes(checkpoint: Checkpoint, name: str) -> int:
    return sum(e.size_bytes for _, e in checkpoint.entries(name)) if checkpoint.has_table(name) else 0


def _equal_table(checkpoint: Checkpoint, name: str) -> TableDiff:
    return TableDiff(name, "equal", unchanged=_row_count(checkpoint, name), max_abs=0.0, l2=0.0, relative=0.0)


class _Side:
    """One of the two checkpoints; its rows are counted when the first of its large tables needs them."""

    def __init__(self, checkpoint: Checkpoint, workers: int) -> None:
        self.checkpoint = checkpoint
        self._workers = workers

    def __contains__(self, name: str) -> bool:
        return self.checkpoint.has_table(name)

    @cached_property
    def pieces(self) -> Mapping[str, Sequence[IdPiece]]:
        """The pieces of each table, with their rows numbered."""
        by_table: dict[str, list[IdPiece]] = {}
        for piece in count_rows(self.checkpoint, id_pieces(self.checkpoint), self._workers):
            by_table.setdefault(piece.entry.name, []).append(piece)
        return by_table

    def ids(self, name: str) -> bulk.I64:
        """Return the ids of a table, ascending: int64 [rows]."""
        pieces = self.pieces.get(name, ())
        ids = np.empty(sum(piece.rows for piece in pieces), np.int64)
        at = 0
        for piece in pieces:
            ids[at : at + piece.rows] = read_piece(self.checkpoint, piece).ids
            at += piece.rows
        bulk.sort_ids(ids)
        return ids

    def cut(self, name: str, parts: int, reporter: Reporter, wanted: _Among | None) -> PartitionedTable:
        """Return a table in parts by a hash of the id; of the rows that are wanted, if not all are."""
        pieces = self.pieces.get(name, ())
        assign = by_hash(parts)
        return PartitionedTable(
            self.checkpoint, name, pieces, parts=parts, assign=assign, wanted=wanted, reporter=reporter
        )


class _Among:
    """Says which ids are among the few of the other side: by a mark at a hash, and those that have one by a search."""

    def __init__(self, ids: bulk.I64) -> None:
        self._ids = ids
        slots = min(1 << (64 * len(ids)).bit_length(), _MOST_SLOTS)
        self._shift = np.uint64(64 - slots.bit_length() + 1)
        self._marks = np.zeros(slots, np.bool_)
        self._marks[self._slots(ids)] = True

    def _slots(self, ids: bulk.I64) -> npt.NDArray[np.uint64]:
        slots: npt.NDArray[np.uint64] = (ids.view(np.uint64) * np.uint64(bulk.CHUNK_STEP)) >> self._shift
        return slots

    def __call__(self, ids: bulk.I64) -> npt.NDArray[np.bool_]:
        """Return a bool for each id."""
        found: npt.NDArray[np.bool_] = self._marks[self._slots(ids)]
        some = np.flatnonzero(found)
        at = np.minimum(np.searchsorted(self._ids, ids[some]), len(self._ids) - 1)
        found[some] = self._ids[at] == ids[some]
        return found


def _diff_large(first: _Side, second: _Side, name: str, options: TableOptions, reporter: Reporter) -> TableDiff:
    if name not in first:
        rows = tuple((i, "added", None) for i in second.ids(name).tolist()) if options.rows else ()
        return TableDiff(name, "added", added=_row_count(second.checkpoint, name), rows=rows)
    if name not in second:
        rows = tuple((i, "removed", None) for i in first.ids(name).tolist()) if options.rows else ()
        return TableDiff(name, "removed", removed=_row_count(first.checkpoint, name), rows=rows)
    total = _compare_large(first, second, name, options, reporter)
    return total.result(name, _table_changes(first.checkpoint, second.checkpoint, name))


def _compare_large(
    first: _Side, second: _Side, name: str, options: TableOptions, reporter: Reporter
) -> TableComparison:
    one, two = first.checkpoint, second.checkpoint
    total = TableComparison(options)
    if not _row_count(one, name) or not _row_count(two, name):
        total.removed, total.added = _row_count(one, name), _row_count(two, name)
        if options.rows:
            total.rows += [(i, "removed", None) for i in first.ids(name).tolist()]
            total.rows += [(i, "added", None) for i in second.ids(name).tolist()]
        return total
    among = _counterparts(first, second, name, options), _counterparts(second, first, name, options)
    sizes = [_table_bytes(side, name) + 8 * _row_count(side, name) for side in (one, two)]
    parts = parts_needed(min(sizes) if any(among) else max(sizes), options.part_bytes)
    with (
        first.cut(name, parts, reporter, among[0]) as left,
        second.cut(name, parts, reporter, among[1]) as right,
    ):
        total.removed += _row_count(one, name) - left.rows
        total.added += _row_count(two, name) - right.rows

        def compare(number: int) -> TableComparison:
            comparison = TableComparison(options)
            comparison.add(left.part(number), right.part(number))
            return comparison

        # Each part of both sides as it was, and sorted.
        at_once = _AT_ONCE_BYTES // max(5 * max(sizes) // parts, 1)
        for some in run_parallel(compare, range(parts), max(min(options.workers, at_once), 1)):
            total.merge(some)
    return total


def _counterparts(side: _Side, other: _Side, name: str, options: TableOptions) -> _Among | None:
    """Return which rows of a side are worth reading; None where most may have a counterpart, or each is listed."""
    few, many = _row_count(other.checkpoint, name), _row_count(side.checkpoint, name)
    if options.rows or not 0 < few <= min(many // 4, _LOOKED_UP):
        return None
    return _Among(other.ids(name))


def _table_changes(one: Checkpoint, two: Checkpoint, name: str) -> str:
    """Return the differences of two tables apart from their rows, in words."""
    changes: list[str] = []
    a, b = one.infos.get(name), two.infos.get(name)
    if a and b and a.dim != b.dim:
        changes.append(f"dim {a.dim} -> {b.dim}")
    if a and b and a.initializer != b.initializer:
        changes.append(f"initializer {a.initializer!r} -> {b.initializer!r}")
    x, y = one.table_dtype(name), two.table_dtype(name)
    if x and y and x != y:
        changes.append(f"dtype {x.name} -> {y.name}")
    return ", ".join(changes)
