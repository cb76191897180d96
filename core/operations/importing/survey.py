"""The survey of arrays: everything that the plan of an import needs, with the ids counted for each target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edl_ckpt.core.checkpoint.duplicates import IdOrder, order_of, repeated_among
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.checks import check_ps_num, duplicate_id
from edl_ckpt.core.format.model import TableInfo
from edl_ckpt.core.format.shard_layout import CountedTable, PlacedVariable
from edl_ckpt.core.operations.importing.archives import check_members
from edl_ckpt.core.operations.importing.arrays import ArraySource
from edl_ckpt.core.operations.importing.names import Assignment, ImportedTable, NameMap, assign_names
from edl_ckpt.core.operations.importing.spread import IDS_AT_ONCE, Spread, count_elsewhere
from edl_ckpt.core.parallel import Executor, default_workers, run_parallel
from edl_ckpt.core.progress import WARNINGS, Reporter


@dataclass(frozen=True, slots=True, eq=False)
class ImportSurvey:
    """Arrays, counted for `to_ps` parameter servers; `arrays` are those that the execution reads."""

    to_ps: int
    variables: tuple[PlacedVariable, ...]
    tables: tuple[CountedTable, ...]
    arrays: Assignment
    spread: Spread | None = None
    """What other processes know of the arrays, where they read them."""
    bytes_read: int = 0
    """The bytes that they have read for the survey."""


def survey_arrays(
    source: ArraySource,
    ps_num: int,
    *,
    names: NameMap | None = None,
    executor: Executor | None = None,
    reporter: Reporter = WARNINGS,
) -> ImportSurvey:
    """Read all ids of a source and count those of each of `ps_num` servers; no vector is read.

    Of an archive that other processes read, they read everything here, for its checksums.
    Raises UsageError for arrays that cannot be a table, CorruptError for an id that a table has twice, NotFoundError
    for an array that the map names in vain.
    """
    arrays = assign_names(source, names or NameMap())
    if executor is None or not executor.elsewhere:
        return survey_assigned(arrays, ps_num)
    check_ps_num(ps_num)
    if source.members:
        check_members(source.members, source.value_of(source.members[0].base), executor, reporter)
    spread = count_elsewhere(arrays, source, ps_num, executor, reporter)
    tables = []
    for number, table in enumerate(arrays.tables):
        rows, id_bytes, order = spread.counts(number, ps_num)
        if not order.ascending:
            _check_unique(table, order)
        tables.append(_counted(table, rows, id_bytes))
    return ImportSurvey(ps_num, _variables(arrays), tuple(tables), arrays, spread)


def survey_assigned(arrays: Assignment, ps_num: int) -> ImportSurvey:
    """Do the work of `survey_arrays` for arrays whose variables and tables are known; errors as there."""
    check_ps_num(ps_num)
    return ImportSurvey(
        to_ps=ps_num,
        variables=_variables(arrays),
        tables=tuple(_count(table, ps_num) for table in arrays.tables),
        arrays=arrays,
    )


def _variables(arrays: Assignment) -> tuple[PlacedVariable, ...]:
    return tuple(
        PlacedVariable(name, array.dtype, array.shape, array.size_bytes) for name, array in arrays.variables.items()
    )


def _counted(table: ImportedTable, rows: bulk.I64, id_bytes: bulk.I64) -> CountedTable:
    return CountedTable(TableInfo(table.name, table.dim, table.initializer), table.vectors.dtype, rows, id_bytes)


def _count(table: ImportedTable, ps_num: int) -> CountedTable:
    """Count the rows and id bytes of each shard; CorruptError when an id occurs twice."""
    rows, id_bytes = np.zeros(ps_num, np.int64), np.zeros(ps_num, np.int64)

    def look(start: int) -> tuple[IdOrder, bulk.I64, bulk.I64]:
        ids = table.read_ids(start, min(IDS_AT_ONCE, table.rows - start))
        return order_of(ids), *bulk.tally(bulk.owners(ids, ps_num), bulk.varint_lengths(ids), ps_num)

    seen: IdOrder | None = None
    for order, more_rows, more_bytes in run_parallel(look, range(0, table.rows, IDS_AT_ONCE), default_workers()):
        rows, id_bytes = rows + more_rows, id_bytes + more_bytes
        seen = order if seen is None else seen.followed_by(order)
    if seen is not None and not seen.ascending:
        _check_unique(table, seen)
    return _counted(table, rows, id_bytes)


def _check_unique(table: ImportedTable, order: IdOrder) -> None:
    """Raise CorruptError when an id occurs twice."""

    def blocks() -> Iterator[bulk.I64]:
        for start in range(0, table.rows, IDS_AT_ONCE):
            yield table.read_ids(start, min(IDS_AT_ONCE, table.rows - start))

    count, some = repeated_among(blocks, table.rows, lowest=order.lowest, highest=order.highest)
    if count:
        raise duplicate_id(table.name, some[0], count, path=table.ids.reader.path)
