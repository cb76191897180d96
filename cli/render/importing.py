"""An import, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.render.shared_tables import planned_lines, planned_version, proved_lines, shard_table
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import as_dict
from edl_ckpt.cli.terminal.lines import Lines, head, styled
from edl_ckpt.core.base import words

if TYPE_CHECKING:
    from edl_ckpt.core.moving.settings import ReshardSettings
    from edl_ckpt.core.operations.importing import ArraysPlan, ImportResult
    from edl_ckpt.core.operations.reshard.plan import ReshardPlan


def document(result: ImportResult) -> dict[str, Any]:
    """Return `edl-ckpt/import/1`, the keys of a reshard."""
    return {"schema": "edl-ckpt/import/1", **as_dict(result), "dry_run": False}


def plan_document(
    plan: ArraysPlan | ReshardPlan, settings: ReshardSettings, cluster: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return `edl-ckpt/import/1` of a dry run, and the cluster that would work."""
    return planned_version("import", plan, settings, _made(plan), cluster, dry_run=True)


def plan_human(plan: ArraysPlan | ReshardPlan, settings: ReshardSettings, workers: str = "") -> Lines:
    """Yield the shards that would be written, by this machine or by the workers of a cluster."""
    yield head(_made(plan), f"would be imported for {len(plan.shards)} PS")
    yield from planned_lines(plan, settings, f"; by {text.escaped(workers)}" if workers else "")


def _made(plan: ArraysPlan | ReshardPlan) -> str:
    """Return the reference of the version that would be made; that of a plan may be its source's."""
    return f"{plan.target.location}@{plan.target.number}"


def human(result: ImportResult) -> Lines:
    """Yield the shards written, and their proof."""
    yield head(result.ref, f"imported for {result.to_ps} PS")
    yield shard_table(result.shards)
    yield styled(f"{words.size(result.size_bytes)}, {text.count(result.rows, 'row')} in {result.seconds:.2f} s", "dim")
    yield from proved_lines("new version", result.fingerprint)
