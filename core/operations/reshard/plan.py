"""The plan of a reshard: the size of every target shard, and the offset of every row and id, to the byte.

It is arithmetic on a survey: no file is read, and the same survey always gives the same plan. The order of rows in a
target is that of the source's shards and rows, so the result depends neither on workers nor on the sizes of batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import overload

import numpy as np

from edl_ckpt.core.checkpoint.places import RowMarks
from edl_ckpt.core.checkpoint.target import Target, TargetShard, target_shards
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.shard_layout import CountedTable, VersionLayout, lay_out_shards, layout_warnings
from edl_ckpt.core.notebook import Bytes, card, table
from edl_ckpt.core.operations.reshard.sparse import SparsePairs
from edl_ckpt.core.operations.reshard.survey import Survey
from edl_ckpt.core.words import counted, describe, escaped


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The offsets of the first row and the first id of one stretch of ids in each target: int64 [to_ps].

    It is 0 for a target that the stretch does not go to.
    """

    values_at: bulk.I64
    ids_at: bulk.I64


class Routes(Sequence[Route]):
    """The routes of stretches; one takes memory for the targets that it goes to, until somebody looks at it."""

    def __init__(self, to_ps: int) -> None:
        self._pairs = SparsePairs(to_ps)

    def __repr__(self) -> str:
        return f"<Routes of {counted(len(self), 'stretch')}>"

    def append(self, route: Route, targets: bulk.I64) -> None:
        """Keep the route of the next stretch, which goes to these targets."""
        self._pairs.append(route.values_at, route.ids_at, targets)

    def __len__(self) -> int:
        return len(self._pairs)

    @overload
    def __getitem__(self, index: int) -> Route: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Route]: ...
    def __getitem__(self, index: int | slice) -> Route | Sequence[Route]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        return Route(*self._pairs.pair(index))


@dataclass(frozen=True, slots=True, eq=False)
class ReshardPlan:
    """All that a reshard will write, and where; `routes` are those of the survey's stretches, in the same order.

    There are as many stretches for ten thousand million rows as for a million: where each piece of a stretch goes is
    computed when it moves. Small tables need no route, for they move as a whole.
    """

    survey: Survey
    target: Target
    layouts: VersionLayout
    routes: Sequence[Route]
    shards: tuple[TargetShard, ...]
    warnings: tuple[str, ...]

    @property
    def ref(self) -> str:
        """Return the reference of the version that is read."""
        return self.survey.source.ref

    @property
    def from_ps(self) -> int:
        """Return the number of parameter servers of the source."""
        return self.survey.source.ps_num or 0

    @property
    def to_ps(self) -> int:
        """Return the number of parameter servers of the target."""
        return self.survey.to_ps

    @property
    def rows(self) -> int:
        """Return the rows of all tables."""
        return sum(shard.rows for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all target shards."""
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def skew(self) -> float:
        """Return the size of the largest target shard over the mean: 1.0 is balanced."""
        return max(shard.size_bytes for shard in self.shards) * self.to_ps / max(self.size_bytes, 1)

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
    tables = _count_tables(survey)
    number = target.number if renumber else survey.number
    layouts = lay_out_shards(number, survey.variables, tables.values(), survey.to_ps)
    rows = sum((table.rows for table in tables.values()), np.zeros(survey.to_ps, np.int64))
    shards = target_shards(target, layouts, rows)
    return ReshardPlan(
        survey=survey,
        target=target,
        layouts=layouts,
        routes=_routes(survey, layouts),
        shards=shards,
        warnings=(*target.warnings, *layout_warnings(layouts, survey.variables, list(tables.values()))),
    )


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


def _routes(survey: Survey, layouts: VersionLayout) -> Routes:
    """Return the route of each stretch: in each target it begins where the one before it, of the same table, ends."""
    row_bytes = {table.info.name: table.row_bytes for table in survey.tables}
    next_at: dict[str, tuple[bulk.I64, bulk.I64]] = {}
    routes = Routes(survey.to_ps)
    for stretch in survey.counts:
        name = stretch.table
        values_at, ids_at = next_at.get(name) or (layouts.values_at(name), layouts.ids_at(name))
        routes.append(Route(values_at, ids_at), np.flatnonzero(stretch.id_bytes))
        next_at[name] = values_at + stretch.rows * row_bytes[name], ids_at + stretch.id_bytes
    return routes
