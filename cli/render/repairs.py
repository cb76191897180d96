"""Repairs of a version, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import document_of, picked
from edl_ckpt.cli.terminal.tables import Lines, styled
from edl_ckpt.core.base import words

if TYPE_CHECKING:
    from edl_ckpt.core.operations.repair import RepairResult


def document(result: RepairResult) -> dict[str, Any]:
    """Return `edl-ckpt/repair/1`."""
    keys = "shard path size_bytes reason kept?"
    files = [{**picked(one, keys), "from": one.source} for one in result.replaced]
    return document_of(
        "repair", result, "ref source replaced proof? forced fingerprint? seconds dry_run items", replaced=files
    )


def human(result: RepairResult) -> Lines:
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
