"""What commands have written, or would write, as text and as JSON: versions and exports.

The versions are those of a reshard, an import, an edit, a copy or a repair; a plan is what a dry run shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.render.shared_tables import shard_table
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import as_dict, document_of, failure, picked, rows_of
from edl_ckpt.cli.terminal.tables import Column, Lines, Table, head, styled
from edl_ckpt.core.base import words
from edl_ckpt.core.sources.systems import ELASTICDL, shards_of, title_of

if TYPE_CHECKING:
    from edl_ckpt.cli.options.cluster import Working
    from edl_ckpt.core.converting.changes import LeftOut
    from edl_ckpt.core.converting.items import ItemCounts
    from edl_ckpt.core.moving.plan import ShardPlan
    from edl_ckpt.core.moving.result import WriteResult
    from edl_ckpt.core.moving.settings import ReshardSettings
    from edl_ckpt.core.operations.copy.execute import CopyResult
    from edl_ckpt.core.operations.copy.plan import CopyPlan
    from edl_ckpt.core.operations.export import ExportedFile, ExportPlan, ExportResult
    from edl_ckpt.core.operations.export.interface import PlannedFile
    from edl_ckpt.core.operations.repair import RepairResult

_NAMED: Final = 3
"""So many values are named of those that were not compared."""
_FILES = 12
"""Files of an export that are shown."""


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
        "needed": True,
        "dry_run": True,
        "in_place": target.in_place,
        "layout": target.layout.name,
        "skew": plan.skew,
        "warnings": [*plan.warnings, *settings.warnings],
        "cluster": cluster_document(work),
        "parts": parts and {**as_dict(parts), "times_read": parts.times_read},
    }


def planned_items(left_out: int) -> dict[str, int]:
    """Return the counts of items of a dry run, which proves nothing."""
    return {"proved": 0, "carried": 0, "left_out": left_out}


def copy_document(result: CopyResult) -> dict[str, Any]:
    """Return `edl-ckpt/copy/1`."""
    failed = [failure(*each) for each in result.failed]
    return document_of("copy", result, "copied bytes_copied seconds failed dry_run", failed=failed, dry_run=False)


def planned_copy_document(plan: CopyPlan, work: Working | None = None) -> dict[str, Any]:
    """Return `edl-ckpt/copy/1` of a dry run, with the cluster that would work."""
    copied = [
        picked(entry.version, "ref to size_bytes fingerprint?", to=entry.to) | picked(entry, "skipped refused why")
        for entry in plan.entries
    ]
    nothing = {"bytes_copied": 0, "seconds": None, "dry_run": True}
    return {"schema": "edl-ckpt/copy/1", "copied": copied, **nothing, "cluster": cluster_document(work)}


def copy_rows(copied: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return a header and a row for each version of a document's `copied`."""
    return rows_of("ref to size_bytes fingerprint skipped refused why resumed_bytes forced", copied)


_VERB_STYLES: Final = {"skip": "dim", "refuse": "red", "copy": "green"}


def plan_copy_human(plan: CopyPlan, work: Working | None = None) -> Lines:
    """Yield the plan: which versions would be copied, which would not and why, and by which workers of a cluster."""
    for entry in plan.entries:
        verb = entry.verb
        line = styled(f"{verb:6}", _VERB_STYLES[verb])
        line.append(f"  {text.escaped(entry.version.ref)}  {words.size(entry.version.size_bytes)}")
        yield line.append(f"  {entry.why}" if entry.why else "", "dim")
    by = worked_by(work, " by ")
    yield styled(f"{words.size(plan.size_bytes)} to {text.escaped(plan.target.url)}{by}. Nothing was written.", "dim")


def copy_human(result: CopyResult) -> Lines:
    """Yield the copied versions and their proof."""
    for item in result.copied:
        line = styled("skipped " if item.skipped else "copied  ", "dim" if item.skipped else "green")
        line.append(f"{text.escaped(item.ref)} -> {text.escaped(item.to)}  {words.size(item.size_bytes)}")
        resumed = f"  ({words.size(item.resumed_bytes)} copied by an earlier run)" if item.resumed_bytes else ""
        yield line.append(resumed, "dim")
        yield styled(f"        {item.fingerprint}", "dim")
    rate = result.bytes_copied / result.seconds if result.seconds else 0
    copied = f"{words.size(result.bytes_copied)} in {result.seconds:.2f} s ({words.size(rate)}/s)"
    if result.bytes_copied or not result.failed:
        yield styled(copied if result.bytes_copied else "nothing to copy", "dim")
    if any(not item.skipped for item in result.copied):
        yield styled("proved and sealed: the copy has the checksums and the fingerprint of the source", "green")


def repair_document(result: RepairResult) -> dict[str, Any]:
    """Return `edl-ckpt/repair/1`."""
    keys = "shard path size_bytes reason kept?"
    files = [{**picked(one, keys), "from": one.source} for one in result.replaced]
    return document_of(
        "repair", result, "ref source replaced proof? forced fingerprint? seconds dry_run items", replaced=files
    )


def repair_human(result: RepairResult) -> Lines:
    """Yield each file with its reason, and what proves it."""
    for one in result.replaced:
        line = styled("would replace " if result.dry_run else "replaced ", "green")
        line.append(f"{text.escaped(one.path)}  {words.size(one.size_bytes)} from {text.escaped(one.source)}")
        yield line.append(f"  {text.escaped(one.reason)}", "dim")
        if one.kept:
            yield styled(f"  the damaged file is now {text.escaped(one.kept)}", "dim")
    if not result.replaced:
        yield f"{text.escaped(result.ref)}: nothing to repair"
    elif result.forced:
        yield styled(f"mixed, and not proved: {text.escaped(result.forced)}", "yellow")
    else:
        yield styled(f"proved: {result.proof}", "green")
    if result.fingerprint and not result.dry_run:
        yield styled(result.fingerprint)


def without_content(result: WriteResult | ExportResult) -> dict[str, Any]:
    """Return the fields of a result but for the digests of all names: --digests writes these to a file."""
    fields: dict[str, Any] = as_dict(replace(result, content=None))
    del fields["content"]
    return fields


def export_document(result: ExportResult) -> dict[str, Any]:
    """Return `edl-ckpt/export/1`."""
    return {
        "schema": "edl-ckpt/export/1",
        **without_content(result),
        "source": result.source,
        "size_bytes": result.size_bytes,
        "bytes_written": result.bytes_written,
        "dropped": as_dict(result.dropped),
        "dry_run": False,
    }


def planned_export_document(plan: ExportPlan, work: Working | None = None) -> dict[str, Any]:
    """Return `edl-ckpt/export/1` of a dry run, and the cluster that would work."""
    sizes = [file.size_bytes for file in plan.files]
    known_sizes = [size for size in sizes if size is not None]
    return {
        "schema": "edl-ckpt/export/1",
        **as_dict(plan),
        **dict.fromkeys(("fingerprint", "seconds", "peak_memory_bytes", "forced")),
        "source": plan.ref,
        "size_bytes": sum(known_sizes) if len(known_sizes) == len(sizes) else None,
        "bytes_written": 0,
        "overflowed": 0,
        "proved": False,
        "dropped": as_dict(plan.left_out),
        "items": planned_items(len(plan.left_out)),
        "dry_run": True,
        "cluster": cluster_document(work),
    }


def plan_export_human(plan: ExportPlan, work: Working | None = None) -> Lines:
    """Yield the files that would be written, by this machine or by the workers of a cluster."""
    yield head(plan.ref, f"would be exported as {plan.format}")
    yield from _files(plan.files)
    content = f"{_content(plan)}, {words.size(plan.value_bytes)} of values"
    yield styled(f"{content}{worked_by(work, '; by ')}. Nothing was written.", "dim")


def _files(found: Sequence[ExportedFile | PlannedFile]) -> Lines:
    columns = Column("size", "number", title=""), Column("file", "name", worth=9, title="")
    sizes = ("" if file.size_bytes is None else words.size(file.size_bytes) for file in found)
    yield Table(*columns, rows=([size, file.path] for size, file in zip(sizes, found[:_FILES], strict=False)))
    if len(found) > _FILES:
        yield styled(f"  and {text.count(len(found) - _FILES, 'more file')}", "dim")


def _content(export: ExportPlan | ExportResult) -> str:
    return ", ".join(text.count(getattr(export, f"{noun}s"), noun) for noun in ("variable", "table", "row"))


def export_human(result: ExportResult) -> Lines:
    """Yield the files written, and the proof if there is one."""
    yield head(result.ref, f"exported as {result.format}")
    yield from _files(result.files)
    yield styled(f"{_content(result)} in {result.seconds:.2f} s", "dim")
    for table in result.errors:
        yield f"quantized {text.escaped(table.name)}: greatest error {table.greatest:.3g}, mean {table.mean:.3g}"
    if result.partial:
        yield styled("partial, so not proved: the version lacks what the warnings name", "yellow")
    yield from compared_lines(result)
    if not (result.proved and result.left_out):
        yield from item_lines(result.items)
    if result.proved and result.left_out:
        every = text.count(result.items.proved + len(result.left_out), "item")
        yield styled(f"proved: {result.items.proved} of {every} are as in the source", "green")
        names = words.abridged((text.escaped(one.name) for one in result.left_out), 8)
        yield f"not in this format: {names}"
    elif result.proved:
        yield from proved_lines("exported content", result.fingerprint)
    elif result.items.proved:  # under other names, or cast: there is no fingerprint to compare with
        yield styled("proved: the new files were read back and compared with the source", "green")


def item_lines(items: ItemCounts) -> Lines:
    """Yield what became of the items of the source, unless all of them are proved."""
    if items.carried or (items.left_out and items.proved):
        carried = f", {items.carried} carried as bytes" if items.carried else ""
        left_out = f", {items.left_out} left out" if items.left_out else ""
        yield styled(f"items: {items.proved} proved{carried}{left_out}", "dim")


def compared_lines(result: WriteResult | ExportResult) -> Lines:
    """Yield how many checksums of the source's files say nothing about what was written, if there are any."""
    if left := result.checksums.not_compared:
        names = ", ".join(text.escaped(name) for name in result.checksums.names[:_NAMED])
        more = " and others" if len(result.checksums.names) > _NAMED else ""
        values = f"{text.count(left, 'value')}: {names}{more}"
        sums = "its checksum" if left == 1 else "their checksums"
        yield styled(f"not read, so not compared with {sums}: {values}", "dim")


def proved_lines(what: str, fingerprint: str | None) -> Lines:
    """Yield the proof of what was written."""
    yield styled(f"proved: the {what} has the fingerprint of the source", "green")
    yield styled(fingerprint or "")


def cluster_document(work: Working | None) -> dict[str, Any] | None:
    """Return the cluster and its workers, for a document; None for threads."""
    executor = work and work["executor"]
    if executor is None:
        return None
    workers = [as_dict(worker) for worker in executor.listed()]
    return {"address": executor.address, "dashboard": executor.dashboard or None, "workers": workers}


def worked_by(work: Working | None, words_before: str = "") -> str:
    """Return the workers of a cluster in words, behind others; '' for threads."""
    executor = work and work["executor"]
    return "" if executor is None else words_before + text.escaped(executor.named())
