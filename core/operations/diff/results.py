"""The results of a comparison: what changed in each variable and in each table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edl_ckpt.core.base.notebook import card, table
from edl_ckpt.core.base.words import counted, describe, escaped

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
class ItemDiff:
    """The change of an item: texts, a value of Python and the like, which are compared as bytes."""

    name: str
    status: str
    """As that of a variable."""
    kind: str
    """What it is, from -> to."""


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
    items: tuple[ItemDiff, ...] = ()
    metadata: tuple[str, ...] = ()
    """The keys under which files of two versions of safetensors say something else of themselves; `equal` is of
    content."""
    not_compared: tuple[str, ...] = ()
    """Variables of TensorFlow that describe the parts of tables, which the other version cuts in another way."""

    def __repr__(self) -> str:
        content = counted(len(self.variables), "variable"), counted(len(self.tables), "table")
        return describe("DiffResult", f"{escaped(self.a)} and {escaped(self.b)}", self._state, *content)

    @property
    def _state(self) -> str:
        return "equal" if self.equal else "different"

    def _repr_html_(self) -> str:
        """Return what differs first."""
        tables = sorted(self.tables, key=lambda t: t.status == "equal")
        variables = sorted(self.variables, key=lambda v: v.status == "equal")
        counts = ("added", "removed", "changed", "unchanged")
        columns = ("table", "status", *counts, "largest", "relative", "other changes")
        rows = ((t.name, t.status, *(getattr(t, c) for c in counts), t.max_abs, t.relative, t.what) for t in tables)
        dense_columns = ("variable", "status", "largest", "relative", "cosine", "other changes")
        dense_rows = ((v.name, v.status, v.max_abs, v.relative, v.cosine, v.what) for v in variables)
        shown = [table(columns, rows, len(tables), "table")]
        shown.append(table(dense_columns, dense_rows, len(variables), "variable"))
        return card("DiffResult", f"{self.a} and {self.b}", (self._state,), shown)
