"""The differences between two versions, across shard counts, generations and locations.

Fingerprints answer first: variables and tables with equal digests are equal, and only the others are compared by value.
The rows of a table have another order on each side. So each side is cut into parts by a hash of the id, in a temporary
file at offsets that a first pass over the ids gives; then each part is compared with its counterpart. Values are read
once for the fingerprint and once for the parts; one part of both sides is in memory, whatever the size of the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.checkpoint.blocks import as_dtype
from edl_ckpt.core.checkpoint.catalog import VersionLike, as_version
from edl_ckpt.core.checkpoint.fingerprint import fingerprint_checkpoint, value_bytes
from edl_ckpt.core.checkpoint.partition import PART_BYTES, PartitionedTable, TablePart, by_hash, parts_needed
from edl_ckpt.core.checkpoint.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.checkpoint.scan import IdPiece, count_rows, id_pieces, read_piece
from edl_ckpt.core.format.model import DenseEntry, ShardIndex
from edl_ckpt.core.parallel import default_workers
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.words import counted, describe, escaped

F64 = npt.NDArray[np.float64]


_DENSE_BYTES: Final = 4 << 20


_ROWS_AT_ONCE: Final = 16_384


HISTOGRAM_EDGES: Final = tuple(10.0**k for k in range(-8, 5))
"""The histogram counts row changes (L2) below the first edge, between each two edges, and from the last edge on."""


@dataclass(frozen=True, slots=True)
class DenseDiff:
    """The change of a dense variable. Measures are None where values cannot be compared.

    `max_abs` and `l2` are of b - a, `relative` is l2 over the L2 norm of a (None when that is 0), `cosine` is between
    both.
    """

    name: str
    status: str
    """'equal', 'changed', 'added' (only in b) or 'removed' (only in a)."""
    max_abs: float | None = None
    l2: float | None = None
    relative: float | None = None
    cosine: float | None = None
    what: str = ""
    """The other changes: of dtype or shape, from -> to."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A changed row: the L2 norm of its change, and the largest absolute element."""

    id: int
    l2: float
    max_abs: float


@dataclass(frozen=True, slots=True)
class TableDiff:
    """The change of a table: counts of ids, measures over the rows of both sides, the rows that changed most.

    `histogram` counts changed rows by their L2 change, between HISTOGRAM_EDGES.
    """

    name: str
    status: str
    added: int = 0
    removed: int = 0
    changed: int = 0
    unchanged: int = 0
    max_abs: float | None = None
    l2: float | None = None
    relative: float | None = None
    top: tuple[RowChange, ...] = ()
    histogram: tuple[int, ...] = ()
    what: str = ""
    """The other changes: of dim, dtype or initializer, from -> to."""
    rows: tuple[tuple[int, str, float | None], ...] = ()
    """(id, status, L2 change) of every row that differs; empty unless `rows` is set."""


@dataclass(frozen=True, slots=True)
class DiffResult:
    """The differences between two versions; `equal` within the tolerance."""

    a: str
    b: str
    equal: bool
    tolerance: float
    variables: tuple[DenseDiff, ...]
    tables: tuple[TableDiff, ...]
    fingerprint_a: str
    fingerprint_b: str

    def __repr__(self) -> str:
        return describe(
            "DiffResult",
            f"{escaped(self.a)} and {escaped(self.b)}",
            "equal" if self.equal else "different",
            counted(len(self.variables), "variable"),
            counted(len(self.tables), "table"),
        )


def diff_versions(
    a: VersionLike,
    b: VersionLike,
    *,
    tolerance: float = 0.0,
    top: int = 0,
    rows: bool = False,
    workers: int | None = None,
    part_bytes: int = PART_BYTES,
    reporter: Reporter = SILENT,
) -> DiffResult:
    """Compare two versions by value: elements are equal when they differ by at most `tolerance`, or are both NaN.

    For each table the result has the `top` rows that changed most; with `rows`, every row that differs. Tables that
    differ need temporary files of their size, in the system's directory for them. Raises the errors of reading,
    CorruptError for an id that occurs twice, NoSpaceError when there is no space for the temporary files.
    """
    a, b = as_version(a), as_version(b)
    remote = any(open_store(v.location).properties.round_trips for v in (a, b))
    count = default_workers(remote=remote) if workers is None else workers
    with (
        open_checkpoint(a) as one,
        open_checkpoint(b) as two,
    ):
        reporter.start("fingerprints", value_bytes(one) + value_bytes(two))
        first = fingerprint_checkpoint(one, workers=count, reporter=reporter)
        second = fingerprint_checkpoint(two, workers=count, reporter=reporter)
        variables = tuple(
            DenseDiff(name, "equal", 0.0, 0.0, 0.0)
            if first.variables.get(name) == second.variables.get(name)
            else _diff_dense(one, two, name, tolerance)
            for name in sorted({*one.variable_names, *two.variable_names})
        )
        names = sorted({*one.table_names, *two.table_names})
        reporter.start("comparing rows", sum(_table_bytes(c, n) for n in names for c in (one, two)))
        options = _Options(tolerance, top, rows, part_bytes)
        sides = (_Side(one), _Side(two))
        tables = tuple(
            _equal_table(one, name)
            if first.tables.get(name) == second.tables.get(name)
            else _diff_table(*sides, name, options, reporter)
            for name in names
        )
        one.check_unchanged()
        two.check_unchanged()
    equal = all(v.status == "equal" for v in variables) and all(t.status == "equal" for t in tables)
    return DiffResult(a.ref, b.ref, equal, tolerance, variables, tables, first.text, second.text)


@dataclass(frozen=True, slots=True)
class _Options:
    """The caller's options for the comparison of a table."""

    tolerance: float
    top: int
    rows: bool
    part_bytes: int


@dataclass(slots=True)
class _Sums:
    """Sums over the elements of both sides, from which all measures follow."""

    max_abs: float = 0.0
    change: float = 0.0
    before: float = 0.0
    after: float = 0.0
    product: float = 0.0

    def add(self, a: F64, b: F64, change: F64) -> None:
        with np.errstate(all="ignore"):
            self.max_abs = _worse(self.max_abs, float(np.abs(change).max(initial=0.0)))
            self.change += float(np.vdot(change, change))
            self.before += float(np.vdot(a, a))
            self.after += float(np.vdot(b, b))
            self.product += float(np.vdot(a, b))

    @property
    def l2(self) -> float:
        return math.sqrt(self.change)

    @property
    def relative(self) -> float | None:
        return math.sqrt(self.change / self.before) if self.before > 0 else None

    @property
    def cosine(self) -> float | None:
        norm = math.sqrt(self.before) * math.sqrt(self.after)
        return self.product / norm if norm > 0 else None


def _worse(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def _change(
    a: npt.NDArray[np.generic], b: npt.NDArray[np.generic], tolerance: float
) -> tuple[F64, F64, F64, npt.NDArray[np.bool_]]:
    """Return (a, b, b - a) in float64, and where a and b differ by more than the tolerance; NaN equals NaN."""
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        same = (a == b) | (np.isnan(x) & np.isnan(y))
        change = np.where(same, 0.0, y - x)
        if a.dtype == b.dtype and a.dtype.kind in "iu":
            change = _whole_change(a, b)
        differ = ~same & ~(np.abs(change) <= tolerance)
    return x, y, change, differ


def _whole_change(a: Any, b: Any) -> F64:
    """Return b - a of whole numbers of one dtype, subtracted before the cast: float64 has only 53 bits for them."""
    apart = np.where(a > b, a - b, b - a).view(f"<u{a.dtype.itemsize}").astype(np.float64)
    change: F64 = np.where(a > b, -apart, apart)
    return change


def _diff_dense(one: Checkpoint, two: Checkpoint, name: str, tolerance: float) -> DenseDiff:
    if name not in one or name not in two:
        return DenseDiff(name, "removed" if name in one else "added")
    first, second = one.find_variable(name), two.find_variable(name)
    a, b = first[1], second[1]
    changes = [f"dtype {a.dtype.name} -> {b.dtype.name}"] if a.dtype != b.dtype else []
    if a.shape != b.shape:
        changes.append(f"shape {_shape(a.shape)} -> {_shape(b.shape)}")
        return DenseDiff(name, "changed", what=", ".join(changes))
    sums, differs = _Sums(), False
    step = _DENSE_BYTES // 8
    for start in range(0, a.elements, step):
        stop = min(start + step, a.elements)
        x, y, change, differ = _change(
            _elements(one, *first, start, stop), _elements(two, *second, start, stop), tolerance
        )
        sums.add(x, y, change)
        differs |= bool(differ.any())
    status = "changed" if differs or changes else "equal"
    return DenseDiff(name, status, sums.max_abs, sums.l2, sums.relative, sums.cosine, ", ".join(changes))


def _elements(
    checkpoint: Checkpoint, shard: ShardIndex, entry: DenseEntry, start: int, stop: int
) -> npt.NDArray[np.generic]:
    data = np.empty((stop - start) * entry.dtype.itemsize, np.uint8)
    checkpoint.reader(shard).read_into(entry.values.start + start * entry.dtype.itemsize, data.data)
    return as_dtype(data, entry.dtype)


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _row_count(checkpoint: Checkpoint, name: str) -> int:
    return sum(e.rows for _, e in checkpoint.entries(name)) if name in checkpoint.table_names else 0


def _table_bytes(checkpoint: Checkpoint, name: str) -> int:
    return sum(e.size_bytes for _, e in checkpoint.entries(name)) if name in checkpoint.table_names else 0


def _equal_table(checkpoint: Checkpoint, name: str) -> TableDiff:
    return TableDiff(name, "equal", unchanged=_row_count(checkpoint, name), max_abs=0.0, l2=0.0, relative=0.0)


class _Side:
    """One of the two checkpoints; its rows are counted when the first of its tables needs them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    @cached_property
    def pieces(self) -> Mapping[str, Sequence[IdPiece]]:
        """The pieces of each table, with their rows numbered."""
        by_table: dict[str, list[IdPiece]] = {}
        for piece in count_rows(self.checkpoint, id_pieces(self.checkpoint), default_workers()):
            by_table.setdefault(piece.entry.name, []).append(piece)
        return by_table

    def ids(self, name: str) -> list[int]:
        """Return the ids of a table, ascending."""
        blocks = [read_piece(self.checkpoint, piece).ids for piece in self.pieces.get(name, ())]
        return np.sort(np.concatenate(blocks)).tolist() if blocks else []

    def cut(self, name: str, parts: int, reporter: Reporter) -> PartitionedTable:
        """Return a table in parts by a hash of the id."""
        return PartitionedTable(
            self.checkpoint,
            name,
            self.pieces.get(name, ()),
            parts=parts,
            assign=by_hash(parts),
            reporter=reporter,
        )


def _diff_table(first: _Side, second: _Side, name: str, options: _Options, reporter: Reporter) -> TableDiff:
    one, two = first.checkpoint, second.checkpoint
    if name not in one.table_names:
        rows = tuple((i, "added", None) for i in second.ids(name)) if options.rows else ()
        return TableDiff(name, "added", added=_row_count(two, name), rows=rows)
    if name not in two.table_names:
        rows = tuple((i, "removed", None) for i in first.ids(name)) if options.rows else ()
        return TableDiff(name, "removed", removed=_row_count(one, name), rows=rows)
    changes = list(_table_changes(one, two, name))
    size = max(_table_bytes(one, name), _table_bytes(two, name)) + 16 * _row_count(one, name)
    parts = parts_needed(size, options.part_bytes)
    comparison = _TableComparison(options)
    with first.cut(name, parts, reporter) as left, second.cut(name, parts, reporter) as right:
        for one_part, other in zip(left.all_parts(), right.all_parts(), strict=True):
            comparison.add(one_part, other)
    return comparison.result(name, ", ".join(changes))


def _table_changes(one: Checkpoint, two: Checkpoint, name: str) -> Iterator[str]:
    """Yield the differences of two tables apart from their rows."""
    a, b = one.infos.get(name), two.infos.get(name)
    if a and b and a.dim != b.dim:
        yield f"dim {a.dim} -> {b.dim}"
    if a and b and a.initializer != b.initializer:
        yield f"initializer {a.initializer!r} -> {b.initializer!r}"
    x, y = one.table_dtype(name), two.table_dtype(name)
    if x and y and x != y:
        yield f"dtype {x.name} -> {y.name}"


@dataclass(slots=True)
class _TableComparison:
    """The differences counted so far, over the parts of a table."""

    options: _Options
    added: int = 0
    removed: int = 0
    changed: int = 0
    unchanged: int = 0
    sums: _Sums = field(default_factory=_Sums)
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
        gone = a.ids[~both]
        new = np.setdiff1d(b.ids, a.ids[both], assume_unique=True)
        self.removed += len(gone)
        self.added += len(new)
        if self.options.rows:
            self.rows += [(i, "removed", None) for i in gone.tolist()]
            self.rows += [(i, "added", None) for i in new.tolist()]
        places = np.flatnonzero(both)
        if len(places) and (a.dim != b.dim or a.dtype is None or b.dtype is None):
            self.comparable = False
            self.changed += len(places)
            return
        for start in range(0, len(places), _ROWS_AT_ONCE):
            place = places[start : start + _ROWS_AT_ONCE]
            self._compare_rows(a.ids[place], a.rows(place), b.rows(at[place]))

    def _compare_rows(self, ids: npt.NDArray[np.int64], a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> None:
        x, y, change, differ = _change(a, b, self.options.tolerance)
        self.sums.add(x, y, change)
        differing = np.flatnonzero(differ.any(axis=1))
        self.changed += len(differing)
        self.unchanged += len(ids) - len(differing)
        if not len(differing):
            return
        with np.errstate(all="ignore"):
            l2 = np.sqrt((change[differing] ** 2).sum(axis=1))
            largest = np.abs(change[differing]).max(axis=1)
        self.histogram += np.bincount(np.searchsorted(HISTOGRAM_EDGES, l2, "right"), minlength=len(self.histogram))
        if self.options.rows:
            self.rows += [(i, "changed", c) for i, c in zip(ids[differing].tolist(), l2.tolist(), strict=True)]
        if self.options.top:
            order = np.lexsort((ids[differing], -np.where(np.isnan(l2), np.inf, l2)))[: self.options.top]
            self.top += [RowChange(int(ids[differing[k]]), float(l2[k]), float(largest[k])) for k in order.tolist()]
            self.top.sort(key=lambda r: (-(math.inf if math.isnan(r.l2) else r.l2), r.id))
            del self.top[self.options.top :]

    def result(self, name: str, what: str) -> TableDiff:
        """Return the counted differences as a result."""
        same = not (self.added or self.removed or self.changed or what)
        return TableDiff(
            name,
            "equal" if same else "changed",
            self.added,
            self.removed,
            self.changed,
            self.unchanged,
            self.sums.max_abs if self.comparable else None,
            self.sums.l2 if self.comparable else None,
            self.sums.relative if self.comparable else None,
            tuple(self.top),
            tuple(self.histogram.tolist()),
            what,
            tuple(sorted(self.rows, key=lambda row: row[0])),
        )
