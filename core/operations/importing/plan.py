"""The plan of an import: the shards of the new version and the offset of everything in them; nothing is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edl_ckpt.core.checkpoint.target import Target, TargetShard, target_shards
from edl_ckpt.core.commit.part_plan import Moved, PartsPlan
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.shard_layout import VersionLayout, lay_out_shards, layout_warnings
from edl_ckpt.core.operations.importing.survey import ImportSurvey


@dataclass(frozen=True, slots=True, eq=False)
class ImportPlan:
    """All that an import will write, and where."""

    survey: ImportSurvey
    target: Target
    layouts: VersionLayout
    shards: tuple[TargetShard, ...]
    warnings: tuple[str, ...]
    parts: PartsPlan | None = None
    """How other processes send parts, where they write to object storage."""
    bytes_read: int = 0
    """The bytes that were read for the plan: headers and ids."""

    @property
    def rows(self) -> int:
        """Return the rows of all tables."""
        return sum(shard.rows for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all shards."""
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def skew(self) -> float:
        """Return the size of the largest shard over the mean: 1.0 is balanced."""
        return max(shard.size_bytes for shard in self.shards) * len(self.shards) / max(self.size_bytes, 1)


def plan_import(survey: ImportSurvey, target: Target) -> ImportPlan:
    """Return the plan to write surveyed arrays to a target."""
    layouts = lay_out_shards(target.number, survey.variables, survey.tables, survey.to_ps)
    rows = sum((table.rows for table in survey.tables), np.zeros(survey.to_ps, np.int64))
    warnings = (*target.warnings, *layout_warnings(layouts, survey.variables, survey.tables))
    return ImportPlan(survey, target, layouts, target_shards(target, layouts, rows), warnings)


class _Counted(NamedTuple):
    """What a stretch of a table gives to each server: int64 [to_ps] rows, and bytes of ids."""

    table: str
    rows: bulk.I64
    id_bytes: bulk.I64


def moved_by(plan: ImportPlan) -> Moved:
    """Return what a plan moves, for the plan of its parts; the stretches are those that other processes counted."""
    arrays, spread = plan.survey.arrays, plan.survey.spread
    found = () if spread is None else zip(spread.stretches, spread.counted, strict=True)
    return Moved(
        plan.layouts,
        {table.name: table.row_bytes for table in arrays.tables},
        plan.survey.variables,
        [_Counted(arrays.tables[rows.table].name, own.rows, own.id_bytes) for rows, own in found],
    )
