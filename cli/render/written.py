"""Versions that a reshard, an import or an edit has written, or would write, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.render.outcome import (
    cluster_document,
    compared_lines,
    item_lines,
    planned_items,
    proved_lines,
    without_content,
    worked_by,
)
from edl_ckpt.cli.render.shared_tables import shard_table
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import as_dict, picked
from edl_ckpt.cli.terminal.tables import Lines, head, styled
from edl_ckpt.core.base import words
from edl_ckpt.core.sources.systems import ELASTICDL, shards_of, title_of

if TYPE_CHECKING:
    from edl_ckpt.cli.options.cluster import Working
    from edl_ckpt.core.converting.changes import LeftOut
    from edl_ckpt.core.moving.plan import ShardPlan
    from edl_ckpt.core.moving.result import WriteResult
    from edl_ckpt.core.moving.settings import ReshardSettings


def written_document(name: str, result: WriteResult, *, dry_run: bool = False) -> dict[str, Any]:
    """Return `edl-ckpt/NAME/1` of a written version, whichever command has written it."""
    untouched = [{"name": key, "fingerprint": part} for key, part in result.untouched.items()]
    document = {
        "schema": f"edl-ckpt/{name}/1",
        **without_content(result),
        "source": result.source or None,
        "fingerprint": result.fingerprint or None,
        "dropped": as_dict(result.left_out),
        "untouched": untouched,
        "dry_run": dry_run or result.dry_run,
    }
    if result.dry_run:
        document |= dict.fromkeys(("seconds", "peak_memory_bytes"))
    return document


def written_human(result: WriteResult) -> Lines:
    """Yield the shards written, what was left out by reason, and the proof; one line when nothing was to do."""
    if not result.needed:
        yield head(result.ref, f"has {text.count(result.to_ps, 'shard')} already: nothing to do")
        return
    shards = shards_of(result.system, result.to_ps)
    if result.from_ps is not None:
        shards = f"{shards_of(result.system, result.from_ps)} -> {shards}"
    yield head(result.ref, f"{shards}, {title_of(result.system)}, in {text.escaped(result.output)}")
    if result.shards:
        yield shard_table(result.shards)
    yield from _left_out(result.left_out)
    content = f"{words.size(result.size_bytes)}, {text.count(result.rows, 'row')}"
    if result.dry_run:
        yield styled(f"{content}. Nothing was written.", "dim")
        return
    rate = result.size_bytes / result.seconds if result.seconds else 0
    speed = f"{content} in {result.seconds:.2f} s ({words.size(rate)}/s)"
    yield styled(f"{speed}, peak memory {words.size(result.peak_memory_bytes)}", "dim")
    if result.resumed_bytes:
        yield f"{words.size(result.resumed_bytes)} were moved by an earlier run"
    if result.overflowed:
        yield f"{text.count(result.overflowed, 'value')} became infinite: too large for the new type"
    yield from compared_lines(result)
    yield from item_lines(result.items)
    written = set(result.untouched)
    is_same = len(written) == result.items.proved and not any(not one.kind for one in result.left_out)
    if is_same or result.from_ps is None:
        yield from proved_lines("new version", result.fingerprint)
        return
    yield styled("proved: the new files were read back and compared with the source", "green")
    yield result.fingerprint
    if written:
        yield styled(f"unchanged, by fingerprint: {text.count(len(written), 'name')}", "dim")


def _left_out(left_out: Sequence[LeftOut]) -> Lines:
    """Yield a line for each reason why something was left out."""
    for reason in dict.fromkeys(one.reason for one in left_out):
        own = [one for one in left_out if one.reason == reason]
        names = words.abridged((text.escaped(one.name) for one in own), 4)
        rows, size = sum(one.rows for one in own), sum(one.size_bytes for one in own)
        yield f"left out: {names}: {text.escaped(reason)} ({text.count(rows, 'row')}, {words.size(size)})"


def planned_human(plan: ShardPlan, settings: ReshardSettings, work: Working | None = None) -> Lines:
    """Yield the shards that would be written, by threads or by the workers of a cluster."""
    shards = shards_of(ELASTICDL, plan.to_ps)
    if plan.from_ps is not None:
        shards = f"{shards_of(ELASTICDL, plan.from_ps)} -> {shards}"
    where = "in place" if plan.target.in_place else f"in {text.escaped(plan.target.location.url)}"
    yield head(_made(plan), f"would be {shards}, {title_of(ELASTICDL)}, {where}")
    yield shard_table(plan.shards)
    if settings.parts is not None:
        yield styled(str(settings.parts), "dim")
    yield from _left_out(plan.survey.left_out)
    content = f"{words.size(plan.size_bytes)}, {text.count(plan.rows, 'row')}"
    workers = worked_by(work) or text.count(settings.workers, "worker")
    how = f"; {workers} with batches of {words.size(settings.batch_bytes)}"
    yield styled(f"{content}, largest shard {plan.skew:.2f} x the mean{how}. Nothing was written.", "dim")


def _made(plan: ShardPlan) -> str:
    """Return the reference of the version that would be made."""
    return f"{plan.target.location}@{plan.target.number}"


def planned_document(
    name: str, plan: ShardPlan, settings: ReshardSettings, work: Working | None = None
) -> dict[str, Any]:
    """Return `edl-ckpt/NAME/1` of a dry run: everything that its plan tells, and the cluster that would work."""
    target, parts = plan.target, settings.parts
    left_out = as_dict(plan.survey.left_out)
    return {
        "schema": f"edl-ckpt/{name}/1",
        "ref": _made(plan),
        "source": plan.source_ref or None,
        "output": target.location.url,
        **picked(plan, "from_ps to_ps"),
        "version": target.number,
        "size_bytes": plan.size_bytes,
        "bytes_read": plan.survey.bytes_read,
        "bytes_written": 0,
        "rows": plan.rows,
        **dict.fromkeys(("seconds", "peak_memory_bytes", "fingerprint", "forced")),
        "shards": as_dict(plan.shards),
        "checksums": {"compared": 0, "not_compared": 0, "names": []},
        "items": planned_items(plan.items.left_out),
        "left_out": left_out,
        "dropped": left_out,
        "system": ELASTICDL,
        "untouched": [],
        "overflowed": 0,
        "resumed_bytes": 0,
        "needed": True,
        "dry_run": True,
        "in_place": target.in_place,
        "layout": target.layout.name,
        "skew": plan.skew,
        "warnings": [*plan.warnings, *settings.warnings],
        "cluster": cluster_document(work),
        "parts": parts and {**as_dict(parts), "times_read": parts.times_read},
    }
