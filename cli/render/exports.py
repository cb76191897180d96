"""Exports, planned and done, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.render.outcome import (
    cluster_document,
    compared_lines,
    item_lines,
    planned_items,
    proved_lines,
    without_content,
    worked_by,
)
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import as_dict
from edl_ckpt.cli.terminal.tables import Column, Lines, Table, head, styled
from edl_ckpt.core.base import words

if TYPE_CHECKING:
    from edl_ckpt.cli.options.cluster import Working
    from edl_ckpt.core.operations.export import ExportedFile, ExportPlan, ExportResult
    from edl_ckpt.core.operations.export.interface import PlannedFile

_SHOWN_FILES: Final = 12


def document(result: ExportResult) -> dict[str, Any]:
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


def planned_document(plan: ExportPlan, work: Working | None = None) -> dict[str, Any]:
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


def planned_human(plan: ExportPlan, work: Working | None = None) -> Lines:
    """Yield the files that would be written, by this machine or by the workers of a cluster."""
    yield head(plan.ref, f"would be exported as {plan.format}")
    yield from _files(plan.files)
    content = f"{_content(plan)}, {words.size(plan.value_bytes)} of values"
    yield styled(f"{content}{worked_by(work, '; by ')}. Nothing was written.", "dim")


def _files(found: Sequence[ExportedFile | PlannedFile]) -> Lines:
    rows: list[list[Any]] = []
    for file in found[:_SHOWN_FILES]:
        size = "" if file.size_bytes is None else words.size(file.size_bytes)
        rows.append([size, file.path])
    yield Table(Column("size", "number", title=""), Column("file", "name", worth=9, title=""), rows=rows)
    if len(found) > _SHOWN_FILES:
        yield styled(f"  and {text.count(len(found) - _SHOWN_FILES, 'more file')}", "dim")


def _content(export: ExportPlan | ExportResult) -> str:
    """Return how much an export has, in words."""
    counts = (("variable", export.variables), ("table", export.tables), ("row", export.rows))
    return ", ".join(text.count(number, noun) for noun, number in counts)


def human(result: ExportResult) -> Lines:
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
