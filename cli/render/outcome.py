"""What renderers of written versions and of exports share: checksums, items, the proof, and the cluster that worked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import as_dict
from edl_ckpt.cli.terminal.tables import Lines, styled

if TYPE_CHECKING:
    from edl_ckpt.cli.options.cluster import Working
    from edl_ckpt.core.converting.items import ItemCounts
    from edl_ckpt.core.moving.result import WriteResult
    from edl_ckpt.core.operations.export import ExportResult

_NAMED: Final = 3
"""So many values are named of those that were not compared."""


def planned_items(left_out: int) -> dict[str, int]:
    """Return the counts of items of a dry run, which proves nothing."""
    return {"proved": 0, "carried": 0, "left_out": left_out}


def without_content(result: WriteResult | ExportResult) -> dict[str, Any]:
    """Return the fields of a result but for the digests of all names: --digests writes these to a file."""
    fields: dict[str, Any] = as_dict(replace(result, content=None))
    del fields["content"]
    return fields


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
