"""A reshard, planned and done, as words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli import text
from edl_ckpt.cli.render_inspect import new_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.core.operations.reshard.execute import ReshardResult
    from edl_ckpt.core.operations.reshard.plan import ReshardPlan, TargetShard


def document(result: ReshardResult) -> dict[str, Any]:
    """Return `edl-ckpt/reshard/1`."""
    return {"schema": "edl-ckpt/reshard/1", **asdict(result), "dry_run": False}


def plan_document(plan: ReshardPlan) -> dict[str, Any]:
    """Return `edl-ckpt/reshard/1` of a dry run: what is known before anything is written."""
    return {
        "schema": "edl-ckpt/reshard/1",
        "ref": plan.ref,
        "output": plan.output,
        "from_ps": plan.from_ps,
        "to_ps": plan.to_ps,
        "version": plan.version,
        "size_bytes": plan.size_bytes,
        "bytes_read": plan.bytes_read,
        "bytes_written": 0,
        "rows": plan.rows,
        "seconds": None,
        "peak_memory_bytes": None,
        "fingerprint": None,
        "shards": [asdict(t) for t in plan.targets],
        "dry_run": True,
        "in_place": plan.in_place,
        "layout": plan.layout,
        "skew": plan.skew,
        "warnings": list(plan.warnings),
    }


def plan_human(plan: ReshardPlan) -> Iterator[RenderableType]:
    """Yield what would be written."""
    from rich.text import Text

    where = "in place" if plan.in_place else f"to {text.shown(plan.output)}"
    head = Text(text.shown(plan.ref), "bold")
    yield head.append(f"  would go from {plan.from_ps} to {plan.to_ps} PS {where}", "dim")
    yield target_table(plan.targets)
    yield Text(
        f"{text.size(plan.size_bytes)}, {text.count(plan.rows)} rows, largest shard {plan.skew:.2f} x the mean;"
        f" {plan.workers} workers with batches of {text.size(plan.batch_bytes)}. Nothing was written.",
        "dim",
    )


def human(result: ReshardResult) -> Iterator[RenderableType]:
    """Yield what was written and how it is proved."""
    from rich.text import Text

    head = Text(text.shown(result.ref), "bold")
    yield head.append(f"  {result.from_ps} -> {result.to_ps} PS, in {text.shown(result.output)}", "dim")
    yield target_table(result.shards)
    rate = result.size_bytes / result.seconds if result.seconds else 0
    yield Text(
        f"{text.size(result.size_bytes)} in {result.seconds:.2f} s ({text.size(rate)}/s),"
        f" peak memory {text.size(result.peak_memory_bytes)}",
        "dim",
    )
    yield Text("proved: what was read back has the source's fingerprint", "green")
    yield Text(result.fingerprint)


def target_table(targets: Sequence[TargetShard]) -> RenderableType:
    """Return the shards that are, or are to be, written."""
    from rich.text import Text

    table = new_table("shard>", "size>", "", "rows>", "variables>")
    largest = max((t.size_bytes for t in targets), default=0)
    for target in targets:
        table.add_row(
            str(target.ps_id),
            text.size(target.size_bytes),
            Text(text.bar(target.size_bytes, largest, 20), "blue"),
            text.count(target.rows),
            text.count(target.variables),
        )
    return table
