"""A planned or finished reshard, as text and as JSON."""

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
    from edl_ckpt.core.operations.reshard.execute import ReshardResult
    from edl_ckpt.core.operations.reshard.plan import ReshardPlan


def document(result: ReshardResult, *, dry_run: bool = False) -> dict[str, Any]:
    """Return `edl-ckpt/reshard/1`."""
    fingerprint = result.fingerprint or None
    return {"schema": "edl-ckpt/reshard/1", **as_dict(result), "fingerprint": fingerprint, "dry_run": dry_run}


def plan_document(
    plan: ReshardPlan, settings: ReshardSettings, cluster: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return `edl-ckpt/reshard/1` of a dry run: everything that a survey tells, and the cluster that would work."""
    state = {"needed": True, "dry_run": True, "in_place": plan.target.in_place}
    return planned_version("reshard", plan, settings, plan.ref, cluster, **state)


def plan_human(plan: ReshardPlan, settings: ReshardSettings, cluster: str = "") -> Lines:
    """Yield the shards that would be written, by threads or by the workers of a cluster."""
    where = "in place" if plan.target.in_place else f"in {text.escaped(plan.target.location.url)}"
    yield head(plan.ref, f"{plan.from_ps} -> {plan.to_ps} PS, {where}")
    workers = text.escaped(cluster) or text.count(settings.workers, "worker")
    yield from planned_lines(plan, settings, f"; {workers} with batches of {words.size(settings.batch_bytes)}")


def human(result: ReshardResult) -> Lines:
    """Yield the shards written, and their proof; one line when there was nothing to do."""
    if not result.needed:
        yield head(result.ref, f"has {text.count(result.to_ps, 'shard')} already: nothing to do")
        return
    yield head(result.ref, f"{result.from_ps} -> {result.to_ps} PS, in {text.escaped(result.output)}")
    yield shard_table(result.shards)
    rate = result.size_bytes / result.seconds if result.seconds else 0
    yield styled(
        f"{words.size(result.size_bytes)} in {result.seconds:.2f} s ({words.size(rate)}/s),"
        f" peak memory {words.size(result.peak_memory_bytes)}",
        "dim",
    )
    yield from proved_lines("new version", result.fingerprint)
