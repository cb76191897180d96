"""The data of a report, as JSON and in a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.render.listing import keys_of, timestamp
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import as_dict, picked

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.core.model.versions import Version
    from edl_ckpt.core.operations.report.results import LocationReport, OpenedVersion


def document(report: LocationReport) -> dict[str, Any]:
    """Return `edl-ckpt/report/1`."""
    newest = report.newest
    return {
        "schema": "edl-ckpt/report/1",
        "location": report.location.url,
        "made": timestamp(report.made),
        **picked(report, "seed layout total_versions complete_versions size_bytes"),
        "versions": [keys_of(version) | _kept(report, version) for version in report.versions],
        "best": {name: version.ref for name, version in report.best.items()},
        "retention": _retention(report),
        "opened": [_opened(each) for each in report.opened],
        "newest": None if newest is None else as_dict(newest),
        "tensors": [as_dict(each.stats) | {"of_elements": each.of_elements} for each in report.tensors],
        **picked(report, "drift problems left_out bytes_read unread"),
    }


def _kept(report: LocationReport, version: Version) -> dict[str, Any]:
    entry = report.retention.entries.get(version.path) if report.retention else None
    return {"action": entry.action.value if entry else None, "reasons": list(entry.reasons) if entry else []}


def _retention(report: LocationReport) -> dict[str, Any] | None:
    return picked(report.retention, "rules stored deletions deleted_bytes") if report.retention else None


def _opened(opened: OpenedVersion) -> dict[str, Any]:
    keys = "ref ok fault parameters tables findings"
    return picked(opened, keys, ref=opened.version.ref, fault=opened.fault or None)


def human(report: LocationReport, place: str) -> Iterator[RenderableType]:
    """Yield where the page is, and what it is about."""
    from rich.text import Text

    versions = text.count(report.total_versions, "version")
    yield Text(text.escaped(place), "bold").append(f"  {versions} of {text.escaped(report.location.url)}", "dim")
