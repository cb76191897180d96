"""Which rows of a table are left out: `TABLE where freqs < 3 and versions < 100000`, parsed and never evaluated.

A column is what a table keeps for each row beside its vector: a companion with one element a row, by its slot, or `id`.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.tables import ShardIndex, TableEntry
from edl_ckpt.core.reading.blocks import read_vectors
from edl_ckpt.core.reading.reader import Checkpoint

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_TERM: Final = re.compile(
    rf"\s*([A-Za-z_]\w*)\s*({'|'.join(_OPERATORS)})\s*([-+]?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{{1,4}})?)\s*",
    re.ASCII,
)
_FORM: Final = "expected TABLE where COLUMN OPERATOR NUMBER, and more of these behind 'and' or 'or'"
_ID: Final = "id"


class Term(NamedTuple):
    """A comparison of a column with a number."""

    column: str
    operator: str
    number: float | int


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The rows that go: those for which all terms of one of the `ways` hold."""

    text: str
    table: str
    ways: tuple[tuple[Term, ...], ...]

    @property
    def columns(self) -> list[str]:
        """Return the columns that it reads, each once, without the ids."""
        return list(dict.fromkeys(t.column for way in self.ways for t in way if t.column != _ID))

    def goes(self, ids: bulk.I64, values: Mapping[str, npt.NDArray[np.generic]]) -> npt.NDArray[np.bool_]:
        """Return which rows go, bool [n], from their ids and the values of its columns."""
        wide = {c: v.astype(np.float64) if v.dtype.kind not in "iu" else v for c, v in values.items()}
        columns = {_ID: ids, **wide}  # a number is not rounded to a narrow float
        every = (
            np.logical_and.reduce([_OPERATORS[t.operator](columns[t.column], t.number) for t in way])
            for way in self.ways
        )
        gone: npt.NDArray[np.bool_] = np.logical_or.reduce(list(every))
        return gone


def parse_row_filter(text: str) -> RowFilter:
    """Return the filter that a text says; UsageError for any other text.

    >>> parse_row_filter("user where freqs < 3 or id >= 10 and versions<5").ways[1]
    (Term(column='id', operator='>=', number=10), Term(column='versions', operator='<', number=5))
    """
    table, where, condition = text.rpartition(" where ")
    if not table.strip() or not where:
        raise UsageError(f"{text!r} is not a row condition", hint=_FORM)
    ways = tuple(
        tuple(_term(text, term) for term in re.split(r"\band\b", way)) for way in re.split(r"\bor\b", condition)
    )
    return RowFilter(text, table.strip(), ways)


def _term(text: str, term: str) -> Term:
    match = _TERM.fullmatch(term)
    if match is None:
        raise UsageError(f"{text!r}: {term.strip()!r} is not COLUMN OPERATOR NUMBER", hint=_FORM)
    from decimal import Decimal  # nearly every command is without a filter

    number = Decimal(match[3].replace("_", ""))
    if number.adjusted() > sys.float_info.max_10_exp or abs(number) > sys.float_info.max:
        raise UsageError(f"{text!r}: {match[3]} is too large for any column", hint=_FORM)
    is_whole = number.adjusted() >= 0 and number == int(number)
    return Term(match[1], match[2], int(number) if is_whole or not number else float(number))


class BoundFilter(NamedTuple):
    """A filter of the rows of a table of a version: the companions that are its columns."""

    rows: RowFilter
    table: str
    companions: Mapping[str, str]

    def keeps(
        self, checkpoint: Checkpoint, shard: ShardIndex, table: str, first: int, ids: bulk.I64
    ) -> npt.NDArray[np.bool_]:
        """Return which rows of the opened version stay, bool [n], of those from `first` on in a shard, with these ids.

        `table` is the filter's own, or a companion of it with the same ids in the same order.
        """
        values = {
            column: read_vectors(checkpoint, shard, self._entry(shard, name, table), first, len(ids)).reshape(-1)
            for column, name in self.companions.items()
        }
        return ~self.rows.goes(ids, values)

    def _entry(self, shard: ShardIndex, companion: str, table: str) -> TableEntry:
        """Return the column in a shard, whose ids must be stored together with those of the table."""
        of_names = {entry.name: entry for entry in shard.tables}
        column, ids_column = of_names.get(companion), of_names[table]
        if column is None or column.rows != ids_column.rows or column.ids != of_names[self.table].ids:
            message = f"table {self.table!r}: {companion!r} has ids of its own, so it is no column of these rows"
            raise UnsupportedError(message, path=shard.file.path, offset=ids_column.offset)
        return column


def bind(checkpoint: Checkpoint, rows: RowFilter) -> BoundFilter:
    """Return a filter for a version; NotFoundError for an unknown table, UsageError for one without such a column."""
    table = checkpoint.table_name(rows.table)
    slots = {info.slot: name for name, info in checkpoint.infos.items() if info.companion_of == table and info.dim == 1}
    for column in rows.columns:
        if column not in slots:
            known = [*slots, _ID]
            message = f"table {table!r} keeps no {column!r} for its rows; it has {', '.join(known)}"
            raise UsageError(message, path=checkpoint.version.ref, hint=meant(column, known))
    return BoundFilter(rows, table, {column: slots[column] for column in rows.columns})
