"""The survey of arrays: everything that the plan of an import needs, with the ids counted for each target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.checks import check_ps_num, duplicate_id, repeated_ids
from edl_ckpt.core.format.model import TableInfo
from edl_ckpt.core.format.shard_layout import CountedTable, PlacedVariable
from edl_ckpt.core.operations.importing.arrays import ArraySource
from edl_ckpt.core.operations.importing.names import Assignment, ImportedTable, NameMap, assign_names

_IDS_AT_ONCE: Final = 1 << 17


@dataclass(frozen=True, slots=True, eq=False)
class ImportSurvey:
    """Arrays, counted for `to_ps` parameter servers; `arrays` are those that the execution reads."""

    to_ps: int
    variables: tuple[PlacedVariable, ...]
    tables: tuple[CountedTable, ...]
    arrays: Assignment


def survey_arrays(source: ArraySource, ps_num: int, *, names: NameMap | None = None) -> ImportSurvey:
    """Read all ids of a source and count those of each of `ps_num` servers; no vector is read.

    Raises UsageError for arrays that cannot be a table, CorruptError for an id that a table has twice, NotFoundError
    for an array that the map names in vain.
    """
    return survey_assigned(assign_names(source, names or NameMap()), ps_num)


def survey_assigned(arrays: Assignment, ps_num: int) -> ImportSurvey:
    """Do the work of `survey_arrays` for arrays whose variables and tables are known; errors as there."""
    check_ps_num(ps_num)
    return ImportSurvey(
        to_ps=ps_num,
        variables=tuple(
            PlacedVariable(name, array.dtype, array.shape, array.size_bytes) for name, array in arrays.variables.items()
        ),
        tables=tuple(_count(table, ps_num) for table in arrays.tables),
        arrays=arrays,
    )


def _count(table: ImportedTable, ps_num: int) -> CountedTable:
    """Count the rows and id bytes of each shard; CorruptError when an id occurs twice."""
    rows, id_bytes = np.zeros(ps_num, np.int64), np.zeros(ps_num, np.int64)
    ascending, last = True, -(1 << 63) - 1
    for start in range(0, table.rows, _IDS_AT_ONCE):
        ids = table.read_ids(start, min(_IDS_AT_ONCE, table.rows - start))
        more_rows, more_bytes = bulk.tally(bulk.owners(ids, ps_num), bulk.varint_lengths(ids), ps_num)
        rows, id_bytes = rows + more_rows, id_bytes + more_bytes
        ascending = ascending and int(ids[0]) > last and bool((ids[1:] > ids[:-1]).all())
        last = int(ids[-1])
    if not ascending:
        _check_unique(table)
    return CountedTable(TableInfo(table.name, table.dim, table.initializer), table.vectors.dtype, rows, id_bytes)


def _check_unique(table: ImportedTable) -> None:
    """Raise CorruptError when an id occurs twice; all ids of the table are in memory meanwhile."""
    again = repeated_ids(table.read_ids(0, table.rows))
    if len(again):
        raise duplicate_id(table.name, int(again[0]), len(again), path=table.ids.reader.path)
