"""The plan of a reshard: the size of every target shard, and the offset of every row and id, to the byte.

It is arithmetic on a survey: no file is read, and the same survey always gives the same plan. The order of rows in a
target is that of the source's shards and rows, so the result depends neither on workers nor on the sizes of batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from edl_ckpt.core.checkpoint.places import RowMarks
from edl_ckpt.core.checkpoint.target import Target, WritePlan, lay_out
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.shard_layout import CountedTable, VersionLayout
from edl_ckpt.core.moving.sparse import SparsePairs
from edl_ckpt.core.notebook import Bytes, card, table
from edl_ckpt.core.operations.reshard.survey import Survey
from edl_ckpt.core.words import counted, describe, escaped


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The offsets of the first row and the first id of one stretch of ids in each target: int64 [to_ps].

    It is 0 for a target that the stretch does not go to.
    """

    values_at: bulk.I64
    ids_at: bulk.I64


@dataclass(frozen=True, slots=True, eq=False)
class ReshardPlan(WritePlan):
    """All that a reshard will write, and where; `routes` are those of the survey's stretches, in the same order.

    There are as many stretches for ten thousand million rows as for a million: where each piece of a stretch goes is
    computed when it moves. Small tables need no route, for they move as a whole.
    """

    survey: Survey
    routes: Sequence[Route]

    @property
    def ref(self) -> str:
        """Return the reference of the version that is read."""
        return self.survey.source.ref

    @property
    def from_ps(self) -> int:
        """Return the number of parameter servers of the source."""
        return self.survey.source.ps_num or 0

    def __repr__(self) -> str:
        return describe(
            "ReshardPlan",
            escaped(self.survey.source.ref),
            f"{self.from_ps} to {counted(self.to_ps, 'shard')}",
            counted(self.rows, "row"),
            f"to {escaped(self.target.directory)}",
        )

    def _repr_html_(self) -> str:
        facts = (f"{self.from_ps} to {counted(self.to_ps, 'shard')}", counted(self.rows, "row"), self.target.directory)
        rows = ((str(k), Bytes(shard.size_bytes), shard.rows) for k, shard in enumerate(self.shards))
        warnings = ((warning,) for warning in self.warnings)
        tables = (
            table(("shard", "size", "rows"), rows, len(self.shards), "shard"),
            table(("warning",), warnings, len(self.warnings), "warning"),
        )
        return card("ReshardPlan", self.ref, facts, tables)


def plan_reshard(survey: Survey, target: Target, *, renumber: bool = False) -> ReshardPlan:
    """Return the plan to write a surveyed version to a target; nothing is read and nothing is written.

    With `renumber` the shards contain the number of the target, else that of the source.
    """
    number = target.number if renumber else survey.number
    tables = list(_count_tables(survey).values())
    layouts, shards, warnings = lay_out(target, number, survey.variables, tables, survey.to_ps)
    return ReshardPlan(target, layouts, shards, warnings, survey, _routes(survey, layouts))


def row_marks(plan: ReshardPlan) -> dict[str, RowMarks]:
    """Return where the rows of each stretch begin in the targets, by the names of the tables that have stretches."""
    found: dict[str, list[bulk.I64]] = {}
    for stretch in plan.survey.counts:
        targets = np.flatnonzero(stretch.id_bytes)
        some = np.stack((targets, stretch.id_bytes[targets], stretch.rows[targets]))
        found.setdefault(stretch.table, []).append(some)
    marks: dict[str, RowMarks] = {}
    for name, parts in found.items():
        targets, id_bytes, rows = np.concatenate(parts, axis=1)
        marks[name] = RowMarks.of(targets, id_bytes, rows, plan.layouts.ids_at(name))
    return marks


def _count_tables(survey: Survey) -> dict[str, CountedTable]:
    """Return every table with the sums of the counts of its pieces."""
    zero = np.zeros(survey.to_ps, np.int64)
    tables = {
        table.info.name: CountedTable(table.info, table.dtype, zero.copy(), zero.copy()) for table in survey.tables
    }
    for piece in chain(survey.counts, survey.small):
        tables[piece.table].rows[:] += piece.rows
        tables[piece.table].id_bytes[:] += piece.id_bytes
    return tables


def _routes(survey: Survey, layouts: VersionLayout) -> Sequence[Route]:
    """Return the route of each stretch: in each target it begins where the one before it, of the same table, ends."""
    row_bytes = {table.info.name: table.row_bytes for table in survey.tables}
    next_at: dict[str, tuple[bulk.I64, bulk.I64]] = {}
    routes = SparsePairs(survey.to_ps, Route)
    for stretch in survey.counts:
        name = stretch.table
        values_at, ids_at = next_at.get(name) or (layouts.values_at(name), layouts.ids_at(name))
        routes.append(values_at, ids_at, np.flatnonzero(stretch.id_bytes))
        next_at[name] = values_at + stretch.rows * row_bytes[name], ids_at + stretch.id_bytes
    return routes
