"""The data of a report, as JSON and in a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli import text
from edl_ckpt.cli.documents import as_dict
from edl_ckpt.cli.render_list import keys_of, timestamp

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.core.format.model import Version
    from edl_ckpt.core.operations.report.results import LocationReport, OpenedVersion


def document(report: LocationReport) -> dict[str, Any]:
    """Return `edl-ckpt/report/1`."""
    newest = report.newest
    return {
        "schema": "edl-ckpt/report/1",
        "location": report.location.url,
        "made": timestamp(report.made),
        "seed": report.seed,
        "layout": report.layout,
        "total_versions": report.total_versions,
        "complete_versions": report.complete_versions,
        "size_bytes": report.size_bytes,
        "versions": [keys_of(version) | _kept(report, version) for version in report.versions],
        "best": {name: version.ref for name, version in report.best.items()},
        "retention": _retention(report),
        "opened": [_opened(each) for each in report.opened],
        "newest": None if newest is None else as_dict(newest),
        "tensors": [as_dict(each.stats) | {"of_elements": each.of_elements} for each in report.tensors],
        "drift": as_dict(report.drift),
        "problems": list(report.problems),
        "left_out": list(report.left_out),
        "bytes_read": report.bytes_read,
        "unread": report.unread,
    }


def _kept(report: LocationReport, version: Version) -> dict[str, Any]:
    entry = report.retention.entries.get(version.path) if report.retention else None
    return {"action": entry.action.value if entry else None, "reasons": list(entry.reasons) if entry else []}


def _retention(report: LocationReport) -> dict[str, Any] | None:
    found = report.retention
    if found is None:
        return None
    return {
        "rules": list(found.rules),
        "stored": found.stored,
        "deletions": found.deletions,
        "deleted_bytes": found.deleted_bytes,
    }


def _opened(opened: OpenedVersion) -> dict[str, Any]:
    return {
        "ref": opened.version.ref,
        "ok": opened.ok,
        "fault": opened.fault or None,
        "parameters": opened.parameters,
        "tables": as_dict(opened.tables),
        "findings": as_dict(opened.findings),
    }


def human(report: LocationReport, place: str) -> Iterator[RenderableType]:
    """Yield where the page is, and what it is about."""
    from rich.text import Text

    versions = text.count(report.total_versions, "version")
    yield Text(text.escaped(place), "bold").append(f"  {versions} of {text.escaped(report.location.url)}", "dim")
