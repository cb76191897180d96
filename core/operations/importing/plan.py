"""The plan of an import: the shards of the new version and the offset of everything in them; nothing is read."""

from __future__ import annotations

from dataclasses import dataclass

from edl_ckpt.core.checkpoint.target import Target, WritePlan, lay_out
from edl_ckpt.core.commit.part_plan import Moved, PartsPlan
from edl_ckpt.core.moving.sparse import PieceCounts
from edl_ckpt.core.operations.importing.survey import ImportSurvey


@dataclass(frozen=True, slots=True, eq=False)
class ImportPlan(WritePlan):
    """All that an import will write, and where."""

    survey: ImportSurvey
    parts: PartsPlan | None = None
    """How other processes send parts, where they write to object storage."""

    @property
    def bytes_read(self) -> int:
        """Return the bytes of headers and ids that were read so far, and of values once they are imported."""
        return self.survey.arrays.bytes_read + self.survey.bytes_read


def plan_import(survey: ImportSurvey, target: Target) -> ImportPlan:
    """Return the plan to write surveyed arrays to a target."""
    layouts, shards, warnings = lay_out(target, target.number, survey.variables, survey.tables, survey.to_ps)
    return ImportPlan(target, layouts, shards, warnings, survey)


def moved_by(plan: ImportPlan) -> Moved:
    """Return what a plan moves, for the plan of its parts; the stretches are those that other processes counted."""
    arrays, spread = plan.survey.arrays, plan.survey.spread
    counted = () if spread is None else zip(spread.stretches, spread.counted, strict=True)
    return Moved(
        plan.layouts,
        {table.name: table.row_bytes for table in arrays.tables},
        plan.survey.variables,
        [PieceCounts(arrays.tables[rows.table].name, counts.rows, counts.id_bytes) for rows, counts in counted],
    )
