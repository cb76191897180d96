"""The data of a report on a location as JSON, and where its page is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.render.listing import keys_of, timestamp
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import as_dict, document_of, picked
from edl_ckpt.cli.terminal.tables import Lines, head

if TYPE_CHECKING:
    from edl_ckpt.core.operations.report.survey import LocationReport


def document(report: LocationReport) -> dict[str, Any]:
    """Return `edl-ckpt/report/1`."""
    opened = "ref ok fault? parameters tables findings"
    entries = report.retention.entries if report.retention else {}
    kept = {path: {"action": e.action.value, "reasons": list(e.reasons)} for path, e in entries.items()}
    return document_of(
        "report",
        report,
        "location made seed layout total_versions complete_versions size_bytes versions best retention opened newest"
        " tensors drift problems left_out bytes_read unread",
        location=report.location.url,
        made=timestamp(report.made),
        versions=[keys_of(v) | {"action": None, "reasons": []} | kept.get(v.path, {}) for v in report.versions],
        best={name: version.ref for name, version in report.best.items()},
        retention=picked(report.retention, "rules stored deletions deleted_bytes") if report.retention else None,
        opened=[
            picked(each, opened, ref=each.version.ref, tables=[picked(t, "name rows size_bytes") for t in each.tables])
            for each in report.opened
        ],
        tensors=[as_dict(each.stats) | {"of_elements": each.of_elements} for each in report.tensors],
    )


def human(report: LocationReport, place: str) -> Lines:
    """Yield where the page is, and what it is about."""
    yield head(place, f"{text.count(report.total_versions, 'version')} of {text.escaped(report.location.url)}")
