"""The plan of a move: the size of every target shard, and the offset of every row and id, to the byte.

It is arithmetic on a survey: no file is read, and the same survey always gives the same plan. The order of rows in a
target is that of the source's shards and rows, so the result depends neither on workers nor on the sizes of batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import gcd
from typing import TypeVar

import numpy as np

from edl_ckpt.core.catalog.target import Target, WritePlan, lay_out
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.tables import ShardSummary
from edl_ckpt.core.moving.sparse import SparsePairs
from edl_ckpt.core.moving.survey import SourceSurvey
from edl_ckpt.core.reading.places import RowMarks
from edl_ckpt.core.sources.elasticdl.target import CountedTable, VersionLayout

SurveyOf = TypeVar("SurveyOf", bound=SourceSurvey)


@dataclass(frozen=True, slots=True, eq=False)
class StretchRoute:
    """The offsets of the first row and the first id of one stretch of ids in each target: int64 [to_ps].

    It is 0 for a target that the stretch does not go to.
    """

    values_at: bulk.I64
    ids_at: bulk.I64


@dataclass(frozen=True, slots=True, eq=False)
class MovePlan(WritePlan):
    """All that a move will write, and where; `routes` are those of the survey's stretches, in the same order.

    There are as many stretches for ten thousand million rows as for a million: where each piece of a stretch goes is
    computed when it moves. Small tables need no route, for they move as a whole.
    """

    survey: SourceSurvey
    routes: Sequence[StretchRoute]

    @property
    def groups(self) -> int:
        """Return how many groups of shards have nothing to do with each other: the remainders of their numbers.

        A source of one file has one group.
        """
        return gcd(self.from_ps or 1, self.to_ps)

    @property
    def row_bytes(self) -> Mapping[str, int]:
        """Return the bytes of a row of each table."""
        return {table.info.name: table.row_bytes for table in self.survey.tables}


def lay_out_survey(
    survey: SurveyOf, target: Target
) -> tuple[VersionLayout, tuple[ShardSummary, ...], tuple[str, ...], SurveyOf, Sequence[StretchRoute]]:
    """Return the layouts of the shards of a surveyed source, the shards, all warnings, the survey, and all routes."""
    layouts, shards, warnings = lay_out(target, survey.number, survey.variables, _count_tables(survey), survey.to_ps)
    return layouts, shards, warnings, survey, _routes(survey, layouts)


def row_marks(plan: MovePlan) -> dict[str, RowMarks]:
    """Return where the rows of each stretch begin in the targets, by the names of the tables that have stretches."""
    columns: dict[str, list[bulk.I64]] = {}
    for stretch in plan.survey.counts:
        targets = np.flatnonzero(stretch.id_bytes)
        column = np.stack((targets, stretch.id_bytes[targets], stretch.rows[targets]))
        columns.setdefault(stretch.table, []).append(column)
    marks: dict[str, RowMarks] = {}
    for name, of_table in columns.items():
        targets, id_bytes, rows = np.concatenate(of_table, axis=1)
        marks[name] = RowMarks.of(targets, id_bytes, rows, plan.layouts.ids_at(name))
    return marks


def _count_tables(survey: SourceSurvey) -> list[CountedTable]:
    """Return every table with the sums of the counts of its pieces."""
    zero = np.zeros(survey.to_ps, np.int64)
    tables = {
        table.info.name: CountedTable(table.info, table.dtype, zero.copy(), zero.copy()) for table in survey.tables
    }
    for piece in chain(survey.counts, survey.small):
        tables[piece.table].rows[:] += piece.rows
        tables[piece.table].id_bytes[:] += piece.id_bytes
    return list(tables.values())


def _routes(survey: SourceSurvey, layouts: VersionLayout) -> Sequence[StretchRoute]:
    """Return the route of each stretch: in each target it begins where the one before it, of the same table, ends."""
    row_bytes = {table.info.name: table.row_bytes for table in survey.tables}
    next_at: dict[str, tuple[bulk.I64, bulk.I64]] = {}
    routes = SparsePairs(survey.to_ps, StretchRoute)
    for stretch in survey.counts:
        name = stretch.table
        values_at, ids_at = next_at.get(name) or (layouts.values_at(name), layouts.ids_at(name))
        routes.append(values_at, ids_at, np.flatnonzero(stretch.id_bytes))
        next_at[name] = values_at + stretch.rows * row_bytes[name], ids_at + stretch.id_bytes
    return routes
