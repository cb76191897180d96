"""The end of a wait as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edl_ckpt.core.operations.follow.wait import WaitResult


def document(result: WaitResult) -> dict[str, Any]:
    """Return `edl-ckpt/wait/1`."""
    version = result.version
    return {
        "schema": "edl-ckpt/wait/1",
        "ref": version.ref if version else None,
        "version": version.version if version else None,
        "state": result.outcome.value,
        "waited_seconds": round(result.waited_seconds, 3),
        "location": result.location.url,
        "path": version.path if version else None,
        "metrics": dict(version.metrics) if version else {},
        "why": result.why or None,
        "unfinished": [{"ref": u.version.ref, "version": u.version.version, "why": u.why} for u in result.unfinished],
    }
