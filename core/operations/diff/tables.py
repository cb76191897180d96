"""The changes of tables. The rows of a table have another order on each side, so equal ids are brought together.

Small tables are read whole, many at a time. Each side of a large table is cut into parts by a hash of the id, in a
temporary file, and each part is compared with its counterpart: one part of both sides is in memory for each worker,
whatever the size of the table. Where one side has far fewer rows, those of the other side that have no counterpart are
known from their ids, and their values are not read.

Arrays compared element by element: the sums from which measures follow, the rows of a table, and a variable.

Rows are compared part by part: what was counted, the largest changes, and the rows that differ. Both sides of a dense
variable are read a few megabytes at a time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base import words
from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.packing import together
from edl_ckpt.core.base.parallel import Advance, run_parallel
from edl_ckpt.core.base.progress import Counted
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.placement import misplaced
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.tables import ShardIndex
from edl_ckpt.core.operations.diff.results import HISTOGRAM_EDGES, DenseDiff, RowChange, TableDiff
from edl_ckpt.core.reading.blocks import IdPiece, read_elements, read_piece
from edl_ckpt.core.reading.picklable import CheckpointValue
from edl_ckpt.core.reading.pieces import count_rows, ids_at
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sorting.partition import PartitionedTable, TablePart, by_hash, parts_needed, read_tables

_ELEMENTS_AT_ONCE: Final = 1 << 15
"""Elements that are compared at a time: the arrays that are made of them stay in the cache."""
_DENSE_BYTES: Final = 4 << 20
F64 = npt.NDArray[np.float64]


@dataclass(slots=True)
class DifferenceSums:
    """Sums over the elements of both sides, from which all measures follow."""

    max_abs: float = 0.0
    change: float = 0.0
    before: float = 0.0
    after: float = 0.0
    product: float = 0.0

    def add(self, other: DifferenceSums) -> None:
        """Add the sums over other elements."""
        self.max_abs = float(np.maximum(self.max_abs, other.max_abs))  # NaN if one of them is
        self.change += other.change
        self.before += other.before
        self.after += other.after
        self.product += other.product

    @property
    def l2(self) -> float:
        """Return the L2 norm of b - a."""
        return math.sqrt(self.change)

    @property
    def relative(self) -> float | None:
        """Return the L2 norm of b - a over that of a; None when that is 0."""
        return math.sqrt(self.change / self.before) if self.before > 0 else None

    @property
    def cosine(self) -> float | None:
        """Return the cosine between a and b; None when one of them is 0."""
        norm = math.sqrt(self.before) * math.sqrt(self.after)
        return self.product / norm if norm > 0 else None


class Change(NamedTuple):
    """b - a in float64, its absolute value, and where a and b differ by more than the tolerance."""

    change: F64
    size: F64
    differ: npt.NDArray[np.bool_]


def compare(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic], tolerance: float, sums: DifferenceSums) -> Change:
    """Return the change from a to b, of one shape, and add it to `sums`; NaN equals NaN."""
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        change = y - x
        size = np.abs(change)
        largest = float(size.max(initial=0.0))
        if a.dtype.kind == "f" and b.dtype.kind == "f" and not math.isnan(largest):
            differ = size > tolerance
        else:  # whole numbers, where float64 may be too short; NaN, and infinities less infinities
            same = (a == b) | (np.isnan(x) & np.isnan(y))
            if a.dtype == b.dtype and a.dtype.kind in "iu":
                change = _whole_change(a, b)
            change = np.where(same, 0.0, change)
            size = np.abs(change)
            largest = float(size.max(initial=0.0))
            differ = ~same & ~(size <= tolerance)
        found = (float(np.vdot(*pair)) for pair in ((change, change), (x, x), (y, y), (x, y)))
        sums.add(DifferenceSums(largest, *found))
    return Change(change, size, differ)


def _whole_change(a: Any, b: Any) -> F64:
    """Return b - a of whole numbers of one dtype, subtracted before the cast: float64 has only 53 bits for them."""
    apart = np.where(a > b, a - b, b - a).view(f"<u{a.dtype.itemsize}").astype(np.float64)
    change: F64 = np.where(a > b, -apart, apart)
    return change


@dataclass(frozen=True, slots=True)
class RowOptions:
    """The caller's options for the comparison of rows."""

    tolerance: float
    top: int
    rows: bool
    part_bytes: int


@dataclass(slots=True)
class TableComparison:
    """The differences counted so far, over the parts of a table."""

    options: RowOptions
    added: int = 0
    removed: int = 0
    changed: int = 0
    unchanged: int = 0
    sums: DifferenceSums = field(default_factory=DifferenceSums)
    comparable: bool = True
    histogram: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(HISTOGRAM_EDGES) + 1, np.int64))
    top: list[RowChange] = field(default_factory=list)
    rows: list[tuple[int, str, float | None]] = field(default_factory=list)

    def add(self, a: TablePart, b: TablePart) -> None:
        """Compare one part of both sides."""
        at = np.searchsorted(b.ids, a.ids)
        both = np.zeros(len(a.ids), np.bool_)
        inside = at < len(b.ids)
        both[inside] = b.ids[at[inside]] == a.ids[inside]
        places = np.flatnonzero(both)
        self.removed += len(a.ids) - len(places)
        self.added += len(b.ids) - len(places)
        if self.options.rows:
            self.rows += [(i, "removed", None) for i in a.ids[~both].tolist()]
            self.rows += [(i, "added", None) for i in np.setdiff1d(b.ids, a.ids, assume_unique=True).tolist()]
        if len(places) and (a.dim != b.dim or a.dtype is None or b.dtype is None):
            self.comparable = False
            self.changed += len(places)
            return
        step, matches = max(_ELEMENTS_AT_ONCE // max(a.dim, 1), 1), at[places]
        for start in range(0, len(places), step):
            mine, theirs = (_as_slice(rows[start : start + step]) for rows in (places, matches))
            self._compare_rows(a.ids[mine], a.rows(mine), b.rows(theirs))

    def _compare_rows(self, ids: npt.NDArray[np.int64], a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> None:
        found = compare(a, b, self.options.tolerance, self.sums)
        differing = np.flatnonzero(found.differ.any(axis=1))
        self.changed += len(differing)
        self.unchanged += len(ids) - len(differing)
        if not len(differing):
            return
        whole = len(differing) == len(ids)
        change, size = (x if whole else x[differing] for x in (found.change, found.size))
        with np.errstate(all="ignore"):
            l2 = np.sqrt(np.einsum("ij,ij->i", change, change))
        self.histogram += np.bincount(np.searchsorted(HISTOGRAM_EDGES, l2, "right"), minlength=len(self.histogram))
        if self.options.rows:
            self.rows += [(i, "changed", c) for i, c in zip(ids[differing].tolist(), l2.tolist(), strict=True)]
        if self.options.top:
            order = np.lexsort((ids[differing], -np.where(np.isnan(l2), np.inf, l2)))[: self.options.top]
            largest = size[order].max(axis=1)
            named = zip(ids[differing][order].tolist(), l2[order].tolist(), largest.tolist(), strict=True)
            self._keep([RowChange(*each) for each in named])

    def _keep(self, more: list[RowChange]) -> None:
        """Keep the largest changes, of equal ones the lowest ids."""
        self.top += more
        self.top.sort(key=lambda r: (-(math.inf if math.isnan(r.l2) else r.l2), r.id))
        del self.top[self.options.top :]

    def merge(self, other: TableComparison) -> None:
        """Add what was counted over other parts."""
        self.added += other.added
        self.removed += other.removed
        self.changed += other.changed
        self.unchanged += other.unchanged
        self.sums.add(other.sums)
        self.comparable &= other.comparable
        self.histogram += other.histogram
        self._keep(other.top)
        self.rows += other.rows

    def result(self, name: str, what: str) -> TableDiff:
        """Return the counted differences as a result; `what` changed besides the rows."""
        status = "changed" if self.added or self.removed or self.changed or what else "equal"
        counts = self.added, self.removed, self.changed, self.unchanged
        measures: tuple[float | None, float | None, float | None] = None, None, None
        if self.comparable:
            measures = self.sums.max_abs, self.sums.l2, self.sums.relative
        rows = tuple(sorted(self.rows, key=lambda row: row[0]))
        return TableDiff(name, status, *counts, *measures, tuple(self.top), tuple(self.histogram.tolist()), what, rows)


Places = npt.NDArray[np.intp] | slice


def _as_slice(places: npt.NDArray[np.intp]) -> Places:
    """Return ascending places as a slice if none is left out: it takes no copy."""
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first == len(places) - 1 else places


def diff_dense(one: Checkpoint, two: Checkpoint, name: str, tolerance: float) -> DenseDiff:
    """Return the change of a variable, which at least one of the checkpoints has."""
    if not (one.has_entry(name) and two.has_entry(name)):
        return DenseDiff(name, "removed" if one.has_entry(name) else "added")
    first, second = one.find_variable(name), two.find_variable(name)
    a, b = first[1], second[1]
    changes = [f"dtype {a.dtype.name} -> {b.dtype.name}"] if a.dtype != b.dtype else []
    if a.shape != b.shape:
        changes.append(f"shape {words.shape(a.shape)} -> {words.shape(b.shape)}")
        return DenseDiff(name, "changed", what=", ".join(changes))
    if not (a.dtype.is_ours and b.dtype.is_ours):  # nothing computes with them: their bytes differ
        return DenseDiff(name, "changed", what=", ".join(changes) or "bytes")
    sums, differs = DifferenceSums(), False
    step = _DENSE_BYTES // 8
    for start in range(0, a.elements, step):
        count = min(step, a.elements - start)
        x, y = read_elements(one, *first, start, count), read_elements(two, *second, start, count)
        differs |= bool(compare(x, y, tolerance, sums).differ.any())
    status = "changed" if differs or changes else "equal"
    return DenseDiff(name, status, sums.max_abs, sums.l2, sums.relative, sums.cosine, ", ".join(changes))


PART_BYTES: Final = 8 << 20
"""Values and ids of a part."""
SMALL_BYTES: Final = 4 << 20
"""The size of both sides together up to which a table is small."""
_TOGETHER: Final = 64
"""Small tables that are read at a time, with at most about SMALL_BYTES."""
_AT_ONCE_BYTES: Final = 160 << 20
"""Memory for the parts that are compared at a time, all together."""
_MOST_TOP: Final = 1000
"""Changed rows that a result may name when it travels between processes."""
_MOST_SLOTS: Final = 32 << 20
_LOOKED_UP: Final = 4 << 20
"""Ids of the smaller side that are kept in memory: 32 MiB."""


class BothOpened(NamedTuple):
    """The two versions, opened."""

    one: Checkpoint
    two: Checkpoint

    @property
    def bytes_read(self) -> int:
        """Return how many bytes were read of both."""
        return self.one.bytes_read + self.two.bytes_read

    def close(self) -> None:
        """Close both."""
        self.one.close()
        self.two.close()


class BothValue(NamedTuple):
    """The two versions as a value."""

    one: CheckpointValue
    two: CheckpointValue

    @classmethod
    def of(cls, both: BothOpened) -> BothValue:
        """Return the value of two opened versions."""
        return cls(*map(CheckpointValue.of, both))

    def open(self) -> BothOpened:
        """Open both versions in another process."""
        return BothOpened(self.one.open(), self.two.open())


def _diff_small(both: BothOpened, names: Sequence[str], advance: Advance, *, options: RowOptions) -> list[TableDiff]:
    """Return the changes of small tables."""
    results = []
    for name, *parts in zip(names, *(read_tables(checkpoint, names) for checkpoint in both), strict=True):
        comparison = TableComparison(options)
        comparison.add(*parts)
        results.append(comparison.result(name, _table_changes(*both, name)))
        advance(_table_bytes(both.one, name) + _table_bytes(both.two, name))
    return results


class _Rows(NamedTuple):
    """The rows of a large table in the shards of one remainder."""

    table: str
    remainder: int = 0
    modulus: int = 1


def _diff_rows(
    both: BothOpened, task: _Rows, advance: Advance, *, options: RowOptions, workers: int
) -> TableComparison | None:
    """Return the changes of rows; None where rows are misplaced, for then their counterparts may be in other shards."""
    some = [_shards_of(checkpoint, *task) for checkpoint in both]
    if task.modulus > 1 and not all(map(_is_placed, some)):
        return None
    job = Job.here(workers, reporter=Counted(advance))
    first, second = (_Side(checkpoint, task.table, job) for checkpoint in some)
    return _compare_large(first, second, options)


def _shards_of(checkpoint: Checkpoint, name: str, remainder: int = 0, modulus: int = 1) -> Checkpoint:
    """Return the part of a checkpoint with one table, in the shards of one remainder."""
    shards: list[ShardIndex] = []
    for shard in checkpoint.shards:
        if shard.file.ps_id % modulus == remainder:
            tables = tuple(table for table in shard.tables if table.name == name)
            shards.append(replace(shard, variables=(), tables=tables))
    return Checkpoint(checkpoint.version, shards, checkpoint.files, checkpoint.store)


def _is_placed(checkpoint: Checkpoint) -> bool:
    """Say whether every row is in its shard, by the rule that gives shards of one remainder the same ids."""
    if any(checkpoint.placement(name) is not Placement.MOD for name in checkpoint.table_names):
        return False
    pieces = (place.piece(checkpoint) for place in ids_at(checkpoint, 0, values=False))
    read = ((piece.shard.file, read_piece(checkpoint, piece).ids) for piece in pieces)
    return not any(len(misplaced(Placement.MOD, ids, file.ps_num, file.ps_id)) for file, ids in read)


def diff_tables(both: BothOpened, same: Collection[str], options: RowOptions, job: Job) -> tuple[TableDiff, ...]:
    """Return the changes of all tables, by name; those that are the `same` are not read."""
    one, two = both
    names = sorted({*one.table_names, *two.table_names})
    sizes = {name: _table_bytes(one, name) + _table_bytes(two, name) for name in names if name not in same}
    job.reporter.start("comparing rows", sum(sizes.values()))
    if options.rows or options.top > _MOST_TOP:  # too much to travel
        job = Job.here(job.workers, reporter=job.reporter)
    found: dict[str, TableDiff] = {}
    for name in same:
        found[name] = TableDiff(name, "equal", unchanged=_row_count(one, name), max_abs=0.0, l2=0.0, relative=0.0)
    common = [name for name in sizes if one.has_table(name) and two.has_table(name)]
    found |= _diff_all_small(both, {name: sizes[name] for name in common}, options, job)
    found |= _diff_all_large(both, {name: sizes[name] for name in common if name not in found}, options, job)
    for name in sizes.keys() - found.keys():
        found[name] = _diff_alone(both, name, options, job)
    return tuple(found[name] for name in names)


def _diff_all_small(both: BothOpened, sizes: Mapping[str, int], options: RowOptions, job: Job) -> dict[str, TableDiff]:
    """Return the changes of those of the tables that are small, many in a task; some may be left for the large ones.

    `sizes` are the bytes of each table in both versions together.
    """
    most = min(SMALL_BYTES, options.part_bytes)
    small = ((name, size_bytes) for name, size_bytes in sizes.items() if size_bytes <= most)
    tasks = together(small, SMALL_BYTES, most=_TOGETHER)
    with job.run(FunctionWork(BothValue.of(both), partial(_diff_small, options=options)), both, tasks) as results:
        return {result.name: result for done in results for result in done}


def _diff_all_large(both: BothOpened, sizes: Mapping[str, int], options: RowOptions, job: Job) -> dict[str, TableDiff]:
    """Return the changes of tables that both versions have; a cluster compares shards of one remainder together.

    A table with misplaced rows is compared once more, here and as a whole.
    """
    modulus = 1
    if job.executor.is_cluster:
        modulus = math.gcd(both[0].version.ps_num or 1, both[1].version.ps_num or 1)
    tasks = [_Rows(name, remainder, modulus) for name in sizes for remainder in range(modulus)]
    largest = max(sizes.values(), default=0) // modulus
    job.executor.check_temporary(largest if largest > options.part_bytes else 0, len(tasks))
    totals = _compare_rows(both, tasks, options, job)
    misplaced = [_Rows(name) for name, total in totals.items() if total is None]
    totals |= _compare_rows(both, misplaced, options, Job.here(job.workers, reporter=job.reporter))
    return {name: total.result(name, _table_changes(*both, name)) for name, total in totals.items() if total}


def _diff_alone(both: BothOpened, name: str, options: RowOptions, job: Job) -> TableDiff:
    """Return the rows of a table that one version alone has, as added or removed."""
    first, second = (_Side(_shards_of(checkpoint, name), name, job) for checkpoint in both)
    total = _compare_large(first, second, options)
    status = "removed" if both[0].has_table(name) else "added"
    return TableDiff(name, status, total.added, total.removed, rows=tuple(total.rows))


def _compare_rows(
    both: BothOpened, tasks: Sequence[_Rows], options: RowOptions, job: Job
) -> dict[str, TableComparison | None]:
    """Return the changes of the rows of large tables; None for a table where rows of some task are misplaced."""
    totals: dict[str, TableComparison | None] = {task.table: TableComparison(options) for task in tasks}
    work = FunctionWork(BothValue.of(both), partial(_diff_rows, options=options, workers=job.executor.task_threads))
    with job.run(work, both, tasks, in_turn=True) as results:
        for task, part in zip(tasks, results, strict=True):
            total = totals[task.table]
            if part is None or total is None:
                totals[task.table] = None
            else:
                total.merge(part)
    return totals


def _row_count(checkpoint: Checkpoint, name: str) -> int:
    return sum(e.rows for _, e in checkpoint.entries(name)) if checkpoint.has_table(name) else 0


def _table_bytes(checkpoint: Checkpoint, name: str) -> int:
    return sum(e.size_bytes for _, e in checkpoint.entries(name)) if checkpoint.has_table(name) else 0


class _Side:
    """A table in one of the two versions; its rows are counted when they are needed."""

    def __init__(self, checkpoint: Checkpoint, name: str, job: Job) -> None:
        self.checkpoint, self.name, self.job = checkpoint, name, job
        self.rows = _row_count(checkpoint, name)

    @cached_property
    def pieces(self) -> Sequence[IdPiece]:
        """The pieces of the table, with their rows numbered."""
        places = count_rows(self.checkpoint, ids_at(self.checkpoint, 0, values=True), self.job)
        return [place.piece(self.checkpoint) for place in places]

    def ids(self) -> bulk.I64:
        """Return the ids of the table, ascending: int64 [rows]."""
        ids = np.empty(sum(piece.rows for piece in self.pieces), np.int64)
        end = 0
        for piece in self.pieces:
            start, end = end, end + piece.rows
            ids[start:end] = read_piece(self.checkpoint, piece).ids
        bulk.sort_ids(ids)
        return ids

    def cut(self, parts: int, wanted: _Among | None) -> PartitionedTable:
        """Return the table in parts by a hash of the id; of the rows that are wanted, if not all are."""
        return PartitionedTable(
            self.checkpoint,
            self.name,
            self.pieces,
            parts=parts,
            assign=by_hash(parts),
            wanted=wanted,
            reporter=self.job.reporter,
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


def _compare_large(first: _Side, second: _Side, options: RowOptions) -> TableComparison:
    total = TableComparison(options)
    if not first.rows or not second.rows:
        total.removed, total.added = first.rows, second.rows
        if options.rows:
            total.rows += [(i, "removed", None) for i in first.ids().tolist()]
            total.rows += [(i, "added", None) for i in second.ids().tolist()]
        return total
    among = _counterparts(first, second, options), _counterparts(second, first, options)
    sizes = [_table_bytes(side.checkpoint, side.name) + 8 * side.rows for side in (first, second)]
    parts = parts_needed(min(sizes) if any(among) else max(sizes), options.part_bytes)
    with first.cut(parts, among[0]) as left, second.cut(parts, among[1]) as right:
        total.removed += first.rows - left.rows
        total.added += second.rows - right.rows

        def compare(number: int) -> TableComparison:
            comparison = TableComparison(options)
            comparison.add(left.part(number), right.part(number))
            return comparison

        # Each part of both sides as it was, and sorted.
        at_once = _AT_ONCE_BYTES // max(5 * max(sizes) // parts, 1)
        for some in run_parallel(compare, range(parts), max(min(first.job.workers, at_once), 1)):
            total.merge(some)
    return total


def _counterparts(side: _Side, other: _Side, options: RowOptions) -> _Among | None:
    """Return which rows of a side are worth reading; None where most may have a counterpart, or each is listed."""
    if options.rows or not 0 < other.rows <= min(side.rows // 4, _LOOKED_UP):
        return None
    return _Among(other.ids())


def _table_changes(one: Checkpoint, two: Checkpoint, name: str) -> str:
    """Return the differences of two tables apart from their rows, in words."""
    changes: list[str] = []
    a, b = one.infos.get(name), two.infos.get(name)
    if a and b and a.dim != b.dim:
        changes.append(f"dim {a.dim} -> {b.dim}")
    if a and b and a.initializer != b.initializer and a.initializer and b.initializer:
        changes.append(f"initializer {a.initializer!r} -> {b.initializer!r}")
    x, y = one.table_dtype(name), two.table_dtype(name)
    if x and y and x != y:
        changes.append(f"dtype {x.name} -> {y.name}")
    return ", ".join(changes)
