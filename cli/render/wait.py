"""The end of a wait as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.terminal.documents import document_of, picked

if TYPE_CHECKING:
    from edl_ckpt.core.operations.follow.watch import WaitResult


def document(result: WaitResult) -> dict[str, Any]:
    """Return `edl-ckpt/wait/1`."""
    none: dict[str, Any] = {"ref": None, "version": None, "path": None, "metrics": {}}
    return document_of(
        "wait",
        result,
        "ref version state waited_seconds location path metrics why? unfinished",
        **(picked(result.version, " ".join(none)) if result.version else none),
        state=result.outcome.value,
        waited_seconds=round(result.waited_seconds, 3),
        location=result.location.url,
        unfinished=[picked(u.version, "ref version why", why=u.why) for u in result.unfinished],
    )
