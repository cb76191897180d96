"""A whole model cut into what each server saves: variables by the hash of their names, rows by their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.arrays import Array, as_array, as_ids
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.words import counted, describe
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.operations.save import Table, rows_of
from edl_ckpt.core.sources.elasticdl.target import check_ps_num, check_texts, row_owners, variable_owner
from edl_ckpt.core.training.content import (
    AnyTable,
    Batch,
    TableBatches,
    check_names,
    known_table,
)


@dataclass(frozen=True, slots=True, eq=False)
class ServerPart:
    """What one server saves of a model: dense variables and tables by their names; every server has every table."""

    dense: dict[str, Array] = field(default_factory=dict)
    tables: dict[str, Table | TableBatches] = field(default_factory=dict)

    def __repr__(self) -> str:
        return describe("ServerPart", "", counted(len(self.dense), "variable"), counted(len(self.tables), "table"))


def partition(dense: Mapping[str, Array], tables: Mapping[str, AnyTable], ps_num: int) -> tuple[ServerPart, ...]:
    """Return the part of each of `ps_num` servers, for those who have the whole model; parts[i] is that of ps_id i.

    Variables are the arrays themselves. The rows of a table in memory are copied once, grouped by their server, and the
    parts are slices of that. Batches must come from a function: each server takes all of them, and keeps its own rows.
    Raises UsageError for arrays that are no table, and for batches that come only once.
    """
    count = whole_number("ps_num", ps_num)
    check_ps_num(count)
    check_names(dense, tables)
    check_texts(dense, [TableInfo(name, 0, "") for name in tables])
    parts = tuple(ServerPart() for _ in range(count))
    for name, value in dense.items():
        parts[variable_owner(name, count)].dense[name] = value
    for name, table in tables.items():
        for part, own in zip(parts, _partitioned(name, table, count), strict=True):
            part.tables[name] = own
    return parts


def _partitioned(name: str, given: AnyTable, ps_num: int) -> Iterator[Table | TableBatches]:
    table = known_table(name, given)
    if isinstance(table, TableBatches):
        if not callable(table.batches):
            raise UsageError(
                f"table {name!r}: its batches come only once, and each server needs all of them",
                hint="give a function that returns them anew each time",
            )
        for ps_id in range(ps_num):
            own = _filtered(name, table.batches, ps_id, ps_num)
            yield TableBatches(own, table.dim, table.dtype, table.initializer)
        return
    (ids, vectors), initializer = rows_of(name, table), table.initializer
    if ps_num == 1:
        yield Table(ids, vectors, initializer)
        return
    owner = row_owners(ids, ps_num)
    rows = np.bincount(owner, minlength=ps_num).astype(np.int64)
    grouped_ids, grouped = _grouped(ids, owner, rows), _grouped(vectors, owner, rows)
    ends = np.cumsum(rows)
    for start, end in zip((ends - rows).tolist(), ends.tolist(), strict=True):
        yield Table(grouped_ids[start:end], grouped[start:end], initializer)


def _grouped(array: npt.NDArray[np.generic], owner: bulk.U16, rows: bulk.I64) -> npt.NDArray[np.generic]:
    """Return the rows of an array ordered by their server, and in their old order within one."""
    if not array.size:
        return array
    ordered = np.ascontiguousarray(array)
    out = np.empty_like(ordered)
    values, target = (each.reshape(len(array), -1).view(np.uint8).reshape(len(array), -1) for each in (ordered, out))
    bulk.group_rows(values, owner, rows, target)
    return out


def _filtered(
    name: str, batches: Callable[[], Iterable[Batch]], ps_id: int, ps_num: int
) -> Callable[[], Iterable[Batch]]:
    def own() -> Iterator[Batch]:
        for some_ids, some_vectors in batches():
            ids = as_ids(some_ids, f"ids of table {name!r}")
            mine = row_owners(ids, ps_num) == ps_id
            yield ids[mine], as_array(some_vectors, what=f"vectors of table {name!r}")[mine]

    return own
