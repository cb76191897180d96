"""Copies of versions, planned and done, as text, as JSON and as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.render.outcome import (
    cluster_document,
    worked_by,
)
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import document_of, failure, picked, rows_of
from edl_ckpt.cli.terminal.tables import Lines, styled
from edl_ckpt.core.base import words

if TYPE_CHECKING:
    from edl_ckpt.cli.options.cluster import Working
    from edl_ckpt.core.operations.copy.execute import CopyResult
    from edl_ckpt.core.operations.copy.plan import CopyPlan


def document(result: CopyResult) -> dict[str, Any]:
    """Return `edl-ckpt/copy/1`."""
    failed = [failure(*each) for each in result.failed]
    return document_of("copy", result, "copied bytes_copied seconds failed dry_run", failed=failed, dry_run=False)


def planned_document(plan: CopyPlan, work: Working | None = None) -> dict[str, Any]:
    """Return `edl-ckpt/copy/1` of a dry run, with the cluster that would work."""
    copied = [
        picked(entry.version, "ref to size_bytes fingerprint?", to=entry.to) | picked(entry, "skipped refused why")
        for entry in plan.entries
    ]
    nothing = {"bytes_copied": 0, "seconds": None, "dry_run": True}
    return {"schema": "edl-ckpt/copy/1", "copied": copied, **nothing, "cluster": cluster_document(work)}


def rows(copied: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return a header and a row for each version of a document's `copied`."""
    return rows_of("ref to size_bytes fingerprint skipped refused why resumed_bytes forced", copied)


_VERB_STYLES: Final = {"skip": "dim", "refuse": "red", "copy": "green"}


def planned_human(plan: CopyPlan, work: Working | None = None) -> Lines:
    """Yield the plan: which versions would be copied, which would not and why, and by which workers of a cluster."""
    for entry in plan.entries:
        verb = entry.verb
        line = styled(f"{verb:6}", _VERB_STYLES[verb])
        line.append(f"  {text.escaped(entry.version.ref)}  {words.size(entry.version.size_bytes)}")
        yield line.append(f"  {entry.why}" if entry.why else "", "dim")
    by = worked_by(work, " by ")
    yield styled(f"{words.size(plan.size_bytes)} to {text.escaped(plan.target.url)}{by}. Nothing was written.", "dim")


def human(result: CopyResult) -> Lines:
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
