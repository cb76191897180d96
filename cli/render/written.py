"""A version that a reshard or an import would write or has written, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.render.shared_tables import proved_lines, shard_table
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import as_dict, document_of
from edl_ckpt.cli.terminal.tables import Lines, head, styled
from edl_ckpt.core.base import words
from edl_ckpt.core.sources.systems import shards_of, title_of

if TYPE_CHECKING:
    from edl_ckpt.core.catalog.target import WritePlan
    from edl_ckpt.core.moving.part_plan import ReshardSettings
    from edl_ckpt.core.moving.tasks import WriteResult
    from edl_ckpt.core.operations.convert import ConvertResult
    from edl_ckpt.core.operations.importing import ArraysPlan, ImportResult
    from edl_ckpt.core.operations.reshard.execute import ReshardPlan, ReshardResult


def written_document(name: str, result: WriteResult, *, dry_run: bool = False) -> dict[str, Any]:
    """Return `edl-ckpt/NAME/1` of a reshard or an import."""
    fingerprint = result.fingerprint or None
    return {"schema": f"edl-ckpt/{name}/1", **as_dict(result), "fingerprint": fingerprint, "dry_run": dry_run}


def reshard_human(result: ReshardResult) -> Lines:
    """Yield the shards written, and their proof; one line when there was nothing to do."""
    if not result.needed:
        yield head(result.ref, f"has {text.count(result.to_ps, 'shard')} already: nothing to do")
        return
    yield head(result.ref, f"{result.from_ps} -> {result.to_ps} PS, in {text.escaped(result.output)}")
    yield shard_table(result.shards)
    rate = result.size_bytes / result.seconds if result.seconds else 0
    speed = f"{words.size(result.size_bytes)} in {result.seconds:.2f} s ({words.size(rate)}/s)"
    yield styled(f"{speed}, peak memory {words.size(result.peak_memory_bytes)}", "dim")
    yield from proved_lines("new version", result.fingerprint)


def converted_document(result: ConvertResult, *, schema: str) -> dict[str, Any]:
    """Return the document of a conversion, by the name of its schema; of what was left out every name."""
    parts = [{"name": name, "fingerprint": part} for name, part in result.untouched.items()]
    unknown = dict.fromkeys(("seconds", "peak_memory_bytes", "fingerprint")) if not result.fingerprint else {}
    return {"schema": schema, **as_dict(result), "untouched": parts, "needed": True, **unknown}


def converted_human(result: ConvertResult) -> Lines:
    """Yield the shards of another system, what was left out by reason, and the proof."""
    shards = f"{shards_of(result.system, result.from_ps or 0)} -> {shards_of(result.system, result.to_ps)}"
    yield head(result.ref, f"{shards}, {title_of(result.system)}, in {text.escaped(result.output)}")
    if result.shards:
        yield shard_table(result.shards)
    reasons = dict.fromkeys(one.reason for one in result.dropped)
    for reason in reasons:
        own = [one for one in result.dropped if one.reason == reason]
        names = words.abridged((text.escaped(one.name) for one in own), 4)
        rows, size = sum(one.rows for one in own), sum(one.size_bytes for one in own)
        yield f"left out: {names}: {text.escaped(reason)} ({text.count(rows, 'row')}, {words.size(size)})"
    content = f"{words.size(result.size_bytes)}, {text.count(result.rows, 'row')}"
    if result.dry_run:
        yield styled(f"{content}. Nothing was written.", "dim")
        return
    yield styled(f"{content} in {result.seconds:.2f} s, peak memory {words.size(result.peak_memory_bytes)}", "dim")
    if result.overflowed:
        yield f"{text.count(result.overflowed, 'value')} became infinite: too large for the new type"
    yield styled("proved: the new files read back as intended", "green")
    yield result.fingerprint
    if result.untouched:
        yield styled(f"untouched, by fingerprint: {text.count(len(result.untouched), 'name')}", "dim")


def import_human(result: ImportResult) -> Lines:
    """Yield the shards written, and their proof."""
    yield head(result.ref, f"imported for {result.to_ps} PS")
    yield shard_table(result.shards)
    yield styled(f"{words.size(result.size_bytes)}, {text.count(result.rows, 'row')} in {result.seconds:.2f} s", "dim")
    yield from proved_lines("new version", result.fingerprint)


def plan_reshard_human(plan: ReshardPlan, settings: ReshardSettings, cluster: str = "") -> Lines:
    """Yield the shards that would be written, by threads or by the workers of a cluster."""
    where = "in place" if plan.target.in_place else f"in {text.escaped(plan.target.location.url)}"
    yield head(plan.ref, f"{plan.from_ps} -> {plan.to_ps} PS, {where}")
    workers = text.escaped(cluster) or text.count(settings.workers, "worker")
    yield from _planned_lines(plan, settings, f"; {workers} with batches of {words.size(settings.batch_bytes)}")


def plan_import_human(plan: ArraysPlan | ReshardPlan, settings: ReshardSettings, workers: str = "") -> Lines:
    """Yield the shards that would be written, by this machine or by the workers of a cluster."""
    yield head(_made(plan), f"would be imported for {len(plan.shards)} PS")
    yield from _planned_lines(plan, settings, f"; by {text.escaped(workers)}" if workers else "")


def _made(plan: ArraysPlan | ReshardPlan) -> str:
    """Return the reference of the version that would be made; that of a plan may be its source's."""
    return f"{plan.target.location}@{plan.target.number}"


def planned_document(
    name: str, plan: ArraysPlan | ReshardPlan, settings: ReshardSettings, cluster: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return `edl-ckpt/NAME/1` of a dry run: everything that its plan tells, and the cluster that would work."""
    more = {"needed": True, "dry_run": True, "in_place": plan.target.in_place}
    more = more if name == "reshard" else {"dry_run": True}
    target, parts = plan.target, settings.parts
    unknown = dict.fromkeys(("seconds", "peak_memory_bytes", "fingerprint", "forced"))
    return document_of(
        name,
        plan,
        "ref output from_ps to_ps version size_bytes bytes_read bytes_written rows seconds peak_memory_bytes"
        f" fingerprint shards forced {' '.join(more)} layout skew warnings cluster parts",
        ref=getattr(plan, "ref", "") if name == "reshard" else _made(plan),
        output=target.location.url,
        version=target.number,
        layout=target.layout.name,
        **{"bytes_read": plan.survey.bytes_read, "bytes_written": 0, **unknown, **more},
        warnings=[*plan.warnings, *settings.warnings],
        cluster=cluster,
        parts=parts and {**as_dict(parts), "times_read": parts.times_read},
    )


def _planned_lines(plan: WritePlan, settings: ReshardSettings, how: str) -> Lines:
    """Yield the shards that a dry run would write, in which parts, and `how` in words."""
    yield shard_table(plan.shards)
    if settings.parts is not None:
        yield styled(str(settings.parts), "dim")
    content = f"{words.size(plan.size_bytes)}, {text.count(plan.rows, 'row')}"
    yield styled(f"{content}, largest shard {plan.skew:.2f} x the mean{how}. Nothing was written.", "dim")
