"""Arrays compared element by element: the sums from which measures follow, the rows of a table, and a variable.

Rows are compared part by part: what was counted, the largest changes, and the rows that differ. Both sides of a dense
variable are read a few megabytes at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base import words
from edl_ckpt.core.operations.diff.results import HISTOGRAM_EDGES, DenseDiff, RowChange, TableDiff
from edl_ckpt.core.reading.blocks import read_elements
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sorting.partition import TablePart

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
    if name not in one or name not in two:
        return DenseDiff(name, "removed" if name in one else "added")
    first, second = one.find_variable(name), two.find_variable(name)
    a, b = first[1], second[1]
    changes = [f"dtype {a.dtype.name} -> {b.dtype.name}"] if a.dtype != b.dtype else []
    if a.shape != b.shape:
        changes.append(f"shape {words.shape(a.shape)} -> {words.shape(b.shape)}")
        return DenseDiff(name, "changed", what=", ".join(changes))
    sums, differs = DifferenceSums(), False
    step = _DENSE_BYTES // 8
    for start in range(0, a.elements, step):
        count = min(step, a.elements - start)
        x, y = read_elements(one, *first, start, count), read_elements(two, *second, start, count)
        differs |= bool(compare(x, y, tolerance, sums).differ.any())
    status = "changed" if differs or changes else "equal"
    return DenseDiff(name, status, sums.max_abs, sums.l2, sums.relative, sums.cosine, ", ".join(changes))
