"""A copy, planned and done, as words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli import text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.core.operations.copy import CopyPlan, CopyResult


def document(result: CopyResult) -> dict[str, Any]:
    """Return `edl-ckpt/copy/1`."""
    return {
        "schema": "edl-ckpt/copy/1",
        "copied": [asdict(item) for item in result.copied],
        "bytes_copied": result.bytes_copied,
        "seconds": result.seconds,
        "failed": [{"ref": ref, "code": e.exit_code, "id": e.id, "message": str(e)} for ref, e in result.failed],
        "dry_run": False,
    }


def plan_document(plan: CopyPlan) -> dict[str, Any]:
    """Return `edl-ckpt/copy/1` of a dry run."""
    copied = [
        {
            "ref": entry.version.ref,
            "to": entry.to,
            "size_bytes": entry.version.size_bytes,
            "fingerprint": entry.version.fingerprint or None,
            "skipped": entry.skipped,
            "refused": entry.refused,
            "why": entry.why,
        }
        for entry in plan.entries
    ]
    return {"schema": "edl-ckpt/copy/1", "copied": copied, "bytes_copied": 0, "seconds": None, "dry_run": True}


def plan_human(plan: CopyPlan) -> Iterator[RenderableType]:
    """Yield what would be copied, and what not and why."""
    from rich.text import Text

    for entry in plan.entries:
        verb, style = ("skip", "dim") if entry.skipped else ("refuse", "red") if entry.refused else ("copy", "green")
        line = Text(f"{verb:6}", style)
        line.append(f"  {text.shown(entry.version.ref)}  {text.size(entry.version.size_bytes)}")
        yield line.append(f"  {entry.why}" if entry.why else "", "dim")
    yield Text(f"{text.size(plan.size_bytes)} to {text.shown(plan.target)}. Nothing was written.", "dim")


def human(result: CopyResult) -> Iterator[RenderableType]:
    """Yield what was copied and how it is proved."""
    from rich.text import Text

    for item in result.copied:
        line = Text("there  " if item.skipped else "copied ", "dim" if item.skipped else "green")
        line.append(f"{text.shown(item.ref)} -> {text.shown(item.to)}  {text.size(item.size_bytes)}")
        yield line.append(
            f"  ({text.size(item.resumed_bytes)} were there already)" if item.resumed_bytes else "", "dim"
        )
        yield Text(f"       {item.fingerprint}", "dim")
    rate = result.bytes_copied / result.seconds if result.seconds else 0
    moved = f"{text.size(result.bytes_copied)} in {result.seconds:.2f} s ({text.size(rate)}/s)"
    yield Text(moved if result.bytes_copied else "nothing was to be copied", "dim")
    if any(not item.skipped for item in result.copied):
        yield Text("proved and sealed: what arrived has the checksums and the fingerprint of what was read", "green")
