"""The plan of a reshard: the size of every target shard, and the offset of every row and id, to the byte.

It is arithmetic on a survey: no file is read, and the same survey always gives the same plan. The order of rows in a
target is that of the source's shards and rows, so the result depends neither on workers nor on the sizes of batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edl_ckpt.core.checkpoint.target import Target, TargetShard, target_shards
from edl_ckpt.core.format import bulk, placement
from edl_ckpt.core.format.initializers import KERAS_INITIALIZERS
from edl_ckpt.core.format.shard_layout import (
    LARGE_SHARD_BYTES,
    CountedTable,
    ShardLayout,
    lay_out_shards,
)
from edl_ckpt.core.operations.reshard.survey import Survey
from edl_ckpt.core.words import counted


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The offsets of the first row and the first id of one piece of ids in each target: int64 [to_ps]."""

    values_at: bulk.I64
    ids_at: bulk.I64


@dataclass(frozen=True, slots=True, eq=False)
class ReshardPlan:
    """All that a reshard will write, and where; `routes` are those of the survey's pieces, in the same order."""

    survey: Survey
    target: Target
    layouts: tuple[ShardLayout, ...]
    routes: tuple[Route, ...]
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
        warnings=(*target.warnings, *_warnings(survey, shards)),
    )


def _count_tables(survey: Survey) -> dict[str, CountedTable]:
    """Return every table with the sums of the counts of its pieces."""
    zero = np.zeros(survey.to_ps, np.int64)
    tables = {
        table.info.name: CountedTable(table.info, table.dtype, zero.copy(), zero.copy()) for table in survey.tables
    }
    for piece in survey.counts:
        tables[piece.table].rows[:] += piece.rows
        tables[piece.table].id_bytes[:] += piece.id_bytes
    return tables


def _routes(survey: Survey, layouts: Sequence[ShardLayout]) -> tuple[Route, ...]:
    """Return the route of each piece: in each target it begins where the one before it, of the same table, ends."""
    row_bytes = {table.info.name: table.row_bytes for table in survey.tables}
    values_at = {name: np.array([layout.values_at[name] for layout in layouts], np.int64) for name in row_bytes}
    ids_at = {name: np.array([layout.ids_at[name] for layout in layouts], np.int64) for name in row_bytes}
    routes: list[Route] = []
    for piece in survey.counts:
        name = piece.table
        routes.append(Route(values_at[name], ids_at[name]))
        values_at[name] = values_at[name] + piece.rows * row_bytes[name]
        ids_at[name] = ids_at[name] + piece.id_bytes
    return tuple(routes)


def _warnings(survey: Survey, shards: Sequence[TargetShard]) -> Iterator[str]:
    """Yield a warning for everything in the result that ElasticDL cannot read or does not use."""
    to_ps = survey.to_ps
    large = [shard.ps_id for shard in shards if shard.size_bytes > LARGE_SHARD_BYTES]
    if large:
        verb, first = ("is", "") if len(large) == 1 else ("are", "the first is ")
        yield (
            f"{len(large)} of {counted(to_ps, 'target shard')} {verb} larger than 2 GiB ({first}shard {large[0]}):"
            " Python parameter servers and ElasticDL's exporter cannot read such shards"
        )
    usable = placement.crowded_shards(to_ps)
    if usable < to_ps and len(survey.variables) > 1:
        yield f"with {to_ps} servers only {usable} can have dense variables: the hash of a name never gives the others"
    dtypes = {variable.dtype for variable in survey.variables} | {table.dtype for table in survey.tables}
    odd = {dtype.name for dtype in dtypes if dtype and not dtype.elasticdl}
    if odd:
        yield f"ElasticDL cannot read values of {', '.join(sorted(odd))}: its restore fails"
    unknown = [table.info for table in survey.tables if table.info.initializer not in KERAS_INITIALIZERS]
    if unknown:
        named = ", ".join(f"{info.name!r} ({info.initializer!r})" for info in unknown[:3])
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        yield f"ElasticDL does not know the initializer of {named}{more}: its restore fails"
