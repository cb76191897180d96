"""Rows of a table, and the part of a version that one parameter server has after a restore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.arrays import Ids, as_array, as_ids, dtype_name
from edl_ckpt.core.base.errors import NameNotFoundError, UsageError
from edl_ckpt.core.base.words import counted, describe, meant
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.sources.elasticdl.initial_rows import initial_rows

Shape = tuple[tuple[int, ...], np.dtype[Any]]


class Rows(NamedTuple):
    """Rows of one table: int64 [n] ids and [n, dim] vectors."""

    ids: npt.NDArray[np.int64]
    vectors: npt.NDArray[np.generic]

    def __repr__(self) -> str:
        return describe("Rows", f"{' x '.join(map(str, self.vectors.shape))} {dtype_name(self.vectors)}")


@dataclass(frozen=True, slots=True)
class Part:
    """The content of one parameter server after a restore."""

    version: int
    variables: Mapping[str, npt.NDArray[np.generic]]
    tables: Mapping[str, Rows]
    infos: Mapping[str, TableInfo]
    _orders: dict[str, npt.NDArray[np.intp]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The places of each table's rows by ascending id, once rows of it were asked for."""

    def __repr__(self) -> str:
        rows = sum(len(table.ids) for table in self.tables.values())
        variables, tables = counted(len(self.variables), "variable"), counted(len(self.tables), "table")
        return describe("Part", f"of version {self.version}", variables, tables, counted(rows, "row"))

    def rows_for(self, table: str, ids: Ids, *, seed: int = 0) -> npt.NDArray[np.generic]:
        """Return the rows of int64 [n] ids of a table, [n, dim]: trained ones, and initial ones for all other ids.

        An initial row depends on (seed, table, id) alone, so an id gets the same one whatever the number of servers. An
        id of another server is not known here, so it gets its initial row too. Raises NameNotFoundError for an unknown
        table, and the errors of `initial_rows`.
        """
        if table not in self.tables:
            hint = meant(table, self.tables, "tables") or "tables there: none"
            raise NameNotFoundError(f"no table {table!r} in the part of a server", hint=hint)
        known, vectors = self.tables[table]
        wanted = as_ids(ids)
        result = np.empty((len(wanted), vectors.shape[1]), vectors.dtype)
        trained = np.zeros(len(wanted), np.bool_)
        if len(known):
            order = self._orders.get(table)
            if order is None:
                order = self._orders[table] = np.argsort(known, kind="stable")
            place = np.searchsorted(known, wanted, "right", sorter=order) - 1
            row = order[np.maximum(place, 0)]
            trained = known[row] == wanted
            result[trained] = vectors[row[trained]]
        if not trained.all():
            result[~trained] = initial_rows(self.infos[table], wanted[~trained], seed=seed, dtype=vectors.dtype)
        return result


class PartLike(Protocol):
    """Arrays to restore into: variables by name, and vectors by table, alone or as `Rows` whose ids are filled too."""

    @property
    def variables(self) -> Mapping[str, Any]:
        """Return arrays by the names of variables."""

    @property
    def tables(self) -> Mapping[str, Any]:
        """Return arrays [n, dim], or `Rows`, by the names of tables."""


Given: TypeAlias = tuple[dict[str, npt.NDArray[Any]], ...]
"""What `check_fits` found good: the arrays of variables, of the vectors of tables, and of their ids, by name."""


def check_fits(out: PartLike | None, variables: Mapping[str, Shape], tables: Mapping[str, Shape]) -> Given:
    """Return the arrays to restore into; UsageError with all mismatches unless each has the right shape and dtype.

    What `out` lacks, the result lacks. What it has and the part has not is a mismatch.
    """
    if out is None:
        return {}, {}, {}
    if not (isinstance(getattr(out, "variables", None), Mapping) and isinstance(getattr(out, "tables", None), Mapping)):
        raise UsageError(f"out is {type(out).__name__}, expected an object with mappings `variables` and `tables`")
    rows = {name: value for name, value in out.tables.items() if isinstance(value, Rows)}
    vectors = {**out.tables, **{name: value.vectors for name, value in rows.items()}}
    counts = {name: (shape[:1], np.dtype(np.int64)) for name, (shape, _) in tables.items()}
    faults: list[str] = []
    ids = {name: value.ids for name, value in rows.items() if name in tables}
    given = (
        dict(_fitting("variable", out.variables, variables, faults)),
        dict(_fitting("table", vectors, tables, faults)),
        dict(_fitting("ids of table", ids, counts, faults)),
    )
    if faults:
        raise UsageError(f"cannot restore into these arrays, and nothing was filled: {'; '.join(faults)}")
    return given


def _fitting(
    kind: str, given: Mapping[str, Any], expected: Mapping[str, Shape], faults: list[str]
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield the arrays that fit, by name, as numpy arrays of the same memory; append what is wrong with the others."""
    for name, value in given.items():
        if name not in expected:
            faults.append(f"{kind} {name!r} is not in the part")
            continue
        array = as_array(value, f"{kind} {name!r}")
        shape, dtype = expected[name]
        if (array.shape, array.dtype) != (shape, dtype):
            got = f"{dtype_name(array)} {list(array.shape)}"
            faults.append(f"{kind} {name!r} is {got}, expected {dtype.name} {list(shape)}")
        elif not (array.flags.c_contiguous and array.flags.writeable):
            faults.append(f"{kind} {name!r} is read-only, or not in C order")
        elif array.size and not np.may_share_memory(array, as_array(value)):
            faults.append(f"{kind} {name!r} has memory that numpy can only copy")
        else:
            yield name, array
