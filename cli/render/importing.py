"""An import, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from edl_ckpt.cli.render.shared_tables import planned_lines, planned_version, proved_lines, shard_table
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import as_dict
from edl_ckpt.cli.terminal.lines import Lines, head, styled
from edl_ckpt.core.base import words

if TYPE_CHECKING:
    from edl_ckpt.core.commit.publish.part_plan import PartsPlan
    from edl_ckpt.core.moving.settings import ReshardSettings
    from edl_ckpt.core.operations.importing import ArraysPlan, ImportResult
    from edl_ckpt.core.operations.reshard.plan import ReshardPlan


def document(result: ImportResult) -> dict[str, Any]:
    """Return `edl-ckpt/import/1`, the keys of a reshard."""
    return {"schema": "edl-ckpt/import/1", **as_dict(result), "dry_run": False}


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned import, of arrays or of a checkpoint, and the cluster that would carry it out."""

    plan: ArraysPlan | ReshardPlan
    parts: PartsPlan | None
    bytes_read: int
    warnings: tuple[str, ...]
    cluster: Mapping[str, Any] | None

    @classmethod
    def of(cls, made: tuple[ArraysPlan | ReshardPlan, ReshardSettings], cluster: Mapping[str, Any] | None) -> Self:
        """Return what was planned."""
        plan, settings = made
        return cls(plan, settings.parts, plan.survey.bytes_read, (*plan.warnings, *settings.warnings), cluster)

    def document(self) -> dict[str, Any]:
        """Return `edl-ckpt/import/1` of a dry run."""
        target, schema = self.plan.target, "edl-ckpt/import/1"
        ref, read = f"{target.location}@{target.number}", self.bytes_read
        return planned_version(schema, self.plan, ref, read, self.warnings, self.parts, self.cluster, dry_run=True)

    def human(self, workers: str) -> Lines:
        """Yield the shards that would be written, by this machine or by the workers of a cluster."""
        target = self.plan.target
        yield head(f"{target.location}@{target.number}", f"would be imported for {len(self.plan.shards)} PS")
        yield from planned_lines(self.plan, self.parts, f"; by {text.escaped(workers)}" if workers else "")


def human(result: ImportResult) -> Lines:
    """Yield the shards written, and their proof."""
    yield head(result.ref, f"imported for {result.to_ps} PS")
    yield shard_table(result.shards)
    yield styled(f"{words.size(result.size_bytes)}, {text.count(result.rows, 'row')} in {result.seconds:.2f} s", "dim")
    yield from proved_lines("new version", result.fingerprint)
