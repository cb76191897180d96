"""A listing as a table, as JSON and as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli import text
from edl_ckpt.core.model import Listing, State, Version

if TYPE_CHECKING:
    from rich.console import RenderableType

STATE_STYLES = {
    State.COMPLETE: "green",
    State.WRITING: "cyan",
    State.INCOMPLETE: "yellow",
    State.MIXED: "magenta",
    State.INVALID: "red",
}

_BAR = 10


def timestamp(seconds: float) -> str | None:
    """Return seconds since the epoch as ISO 8601 in UTC, None for an unknown time.

    >>> timestamp(1.5), timestamp(0.0)
    ('1970-01-01T00:00:01.500000+00:00', None)
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None


def document(listings: Sequence[Listing]) -> dict[str, Any]:
    """Return `edl-ckpt/list/1`."""
    return {
        "schema": "edl-ckpt/list/1",
        "locations": [
            {
                "location": listing.location,
                "layout": listing.layout,
                "versions": [_version(v) for v in listing.versions],
                "foreign": [{"name": f.name, "elasticdl_version": f.elasticdl_version} for f in listing.foreign],
            }
            for listing in listings
        ],
    }


def _version(version: Version) -> dict[str, Any]:
    return {
        "version": version.version,
        "ref": version.ref,
        "path": version.path,
        "state": version.state.value,
        "ps_num": version.ps_num,
        "shards": len(version.shards),
        "missing": list(version.missing),
        "size_bytes": version.size_bytes,
        "modified": timestamp(version.modified),
        "metrics": {},
        "tags": [],
        "fingerprint": None,
    }


def rows(listings: Sequence[Listing]) -> list[list[Any]]:
    """Return a header and one row for each version."""
    header = ["location", "version", "state", "ps_num", "shards", "missing", "size_bytes", "modified", "path"]
    body = [
        [
            listing.location,
            v.version,
            v.state.value,
            v.ps_num,
            len(v.shards),
            " ".join(map(str, v.missing)),
            v.size_bytes,
            timestamp(v.modified),
            v.path,
        ]
        for listing in listings
        for v in listing.versions
    ]
    return [header, *body]


def human(listings: Sequence[Listing], now: float) -> Iterator[RenderableType]:
    """Yield a table for each location."""
    from rich.text import Text

    for listing in listings:
        head = Text(text.shown(listing.location), "bold")
        total = sum(v.size_bytes for v in listing.versions)
        if not listing.versions:
            yield head.append("  no checkpoint", "dim")
            continue
        plural = "s" if len(listing.versions) > 1 else ""
        summary = f"  {len(listing.versions)} version{plural}, {text.size(total)}, {listing.layout} layout"
        yield head.append(summary, "dim")
        yield _table(listing, now)


def _table(listing: Listing, now: float) -> RenderableType:
    """Return the versions as aligned lines: rich's own table takes half a second for a thousand of them."""
    from rich.text import Text

    largest = max(v.size_bytes for v in listing.versions)
    newest = max((v.version for v in listing.versions if v.state is State.COMPLETE), default=None)
    cells = [("version", "shards", "size", " " * _BAR, "age", "state", "")]
    for v in listing.versions:
        shards = f"{len(v.shards)}/{'?' if v.ps_num is None else v.ps_num}"
        bar = text.bar(v.size_bytes, largest, _BAR)
        age = text.age(now - v.modified) if v.modified else ""
        cells.append((str(v.version), shards, text.size(v.size_bytes), bar, age, v.state.value, note(v, newest)))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = Text(end="")
    for version, row in zip((None, *listing.versions), cells, strict=True):
        padded = [
            c.rjust(w) if k in {0, 1, 2, 4} else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        state = STATE_STYLES[version.state] if version else "dim"
        styles = ["", "", "", "blue", "", state, "dim"] if version else ["dim"] * len(row)
        for cell, style in zip(padded, styles, strict=True):
            lines.append("  " + cell, style)
        lines.append("\n")
        if version is None:
            lines.append("  " + "─" * (sum(widths[:-1]) + 2 * len(widths) - 4) + "\n", "dim")
    return lines


def note(version: Version, newest: int | None) -> str:
    """Return what there is to say of a version beside its state."""
    parts = []
    if version.state is State.COMPLETE and version.version == newest:
        parts.append("latest")
    if version.missing:
        parts.append("lacks shard " + _some(list(map(str, version.missing))))
    if version.state is State.MIXED:
        parts.append("shards of ps_num " + " and ".join(map(str, sorted({s.ps_num for s in version.shards}))))
    if version.extra:
        parts.append("holds " + _some([text.shown(name) for name in version.extra]) + " too")
    return ", ".join(parts)


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def warnings(listing: Listing) -> Iterator[str]:
    """Yield what in a location disturbs ElasticDL's own scan."""
    crash = [f.name for f in listing.foreign if f.elasticdl_version is None]
    if crash:
        yield f"{listing.location}: ElasticDL's scan for the latest version crashes on {_some(crash)}"
    for foreign in listing.foreign:
        if foreign.elasticdl_version is not None:
            number = foreign.elasticdl_version
            yield f"{listing.location}: ElasticDL takes {foreign.name!r} for version {number}; edl-ckpt does not"
