"""The plan of a reshard: that of a move, from a version to a target."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edl_ckpt.core.base.notebook import Bytes, card, table
from edl_ckpt.core.base.words import counted, describe, escaped
from edl_ckpt.core.catalog.target import Target
from edl_ckpt.core.moving.plan import MovePlan, lay_out_survey
from edl_ckpt.core.operations.reshard.survey import Survey


@dataclass(frozen=True, slots=True, eq=False)
class ReshardPlan(MovePlan):
    """All that a reshard will write, and where."""

    survey: Survey

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
    survey = replace(survey, number=target.number) if renumber else survey
    return ReshardPlan(target, *lay_out_survey(survey, target))
