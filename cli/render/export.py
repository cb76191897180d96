"""An export, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.render.shared_tables import proved_lines
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import as_dict
from edl_ckpt.cli.terminal.tables import Column, Lines, Table, head, styled
from edl_ckpt.core.base import words

if TYPE_CHECKING:
    from edl_ckpt.core.operations.export import ExportedFile, ExportPlan, ExportResult
    from edl_ckpt.core.operations.export.interface import PlannedFile

_FILES = 12


def document(result: ExportResult) -> dict[str, Any]:
    """Return `edl-ckpt/export/1`."""
    return {"schema": "edl-ckpt/export/1", **as_dict(result), "dry_run": False}


def plan_document(plan: ExportPlan, cluster: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return `edl-ckpt/export/1` of a dry run, and the cluster that would work."""
    unknown = {"fingerprint": None, "seconds": None, "overflowed": 0, "proved": False, "forced": None}
    return {"schema": "edl-ckpt/export/1", **as_dict(plan), **unknown, "dry_run": True, "cluster": cluster}


def plan_human(plan: ExportPlan, workers: str = "") -> Lines:
    """Yield the files that would be written, by this machine or by the workers of a cluster."""
    yield head(plan.ref, f"would be exported as {plan.format}")
    yield from _files(plan.files)
    counts = ((plan.variables, "variable"), (plan.tables, "table"), (plan.rows, "row"))
    by = f"; by {text.escaped(workers)}" if workers else ""
    content = f"{', '.join(text.count(*count) for count in counts)}, {words.size(plan.value_bytes)} of values"
    yield styled(f"{content}{by}. Nothing was written.", "dim")


def _files(found: Sequence[ExportedFile | PlannedFile]) -> Lines:
    columns = Column("size", "number", title=""), Column("file", "name", worth=9, title="")
    sizes = ("" if file.size_bytes is None else words.size(file.size_bytes) for file in found)
    yield Table(*columns, rows=([size, file.path] for size, file in zip(sizes, found[:_FILES], strict=False)))
    if len(found) > _FILES:
        yield styled(f"  and {text.count(len(found) - _FILES, 'more file')}", "dim")


def human(result: ExportResult) -> Lines:
    """Yield the files written, and the proof if there is one."""
    yield head(result.ref, f"exported as {result.format}")
    yield from _files(result.files)
    counts = ((result.variables, "variable"), (result.tables, "table"), (result.rows, "row"))
    yield styled(f"{', '.join(text.count(*count) for count in counts)} in {result.seconds:.2f} s", "dim")
    for table in result.errors:
        yield f"quantized {text.escaped(table.name)}: greatest error {table.greatest:.3g}, mean {table.mean:.3g}"
    if result.partial:
        yield styled("partial, so not proved: the version lacks what the warnings name", "yellow")
    if result.proved:
        yield from proved_lines("exported content", result.fingerprint)
