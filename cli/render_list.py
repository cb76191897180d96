"""A listing as a table, as JSON and as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli import text
from edl_ckpt.cli.render_metrics import BEST, best_paths, names_of, value
from edl_ckpt.core.format.model import Listing, State, Version

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
_METRICS = 5
"""Metrics shown as columns; `metrics show` has all."""


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
                "modes": dict(listing.modes),
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
        "metrics": dict(version.metrics),
        "tags": list(version.tags),
        "fingerprint": version.fingerprint or None,
        "note": version.note,
        "sealed": bool(version.fingerprint),
    }


def rows(listings: Sequence[Listing]) -> list[list[Any]]:
    """Return a header and one row for each version; metrics are the last columns."""
    names = names_of([v for listing in listings for v in listing.versions])
    header = ["location", "version", "state", "ps_num", "shards", "missing", "size_bytes", "modified", "path"]
    header += ["tags", "note", "fingerprint", *names]
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
            " ".join(v.tags),
            v.note,
            v.fingerprint,
            *(v.metrics.get(name) for name in names),
        ]
        for listing in listings
        for v in listing.versions
    ]
    return [header, *body]


def human(listings: Sequence[Listing], now: float, whole: Sequence[Listing] | None = None) -> Iterator[RenderableType]:
    """Yield a table for each location; `whole` is the same before anything was left out: its best are marked."""
    from rich.text import Text

    for listing, complete in zip(listings, whole or listings, strict=True):
        head = Text(text.shown(listing.location), "bold")
        total = sum(v.size_bytes for v in listing.versions)
        if not listing.versions:
            yield head.append("  no such version" if complete.versions else "  no checkpoint", "dim")
            continue
        plural = "s" if len(listing.versions) > 1 else ""
        summary = f"  {len(listing.versions)} version{plural}, {text.size(total)}, {listing.layout} layout"
        yield head.append(summary, "dim")
        yield _table(listing, complete, now)


def _table(listing: Listing, complete: Listing, now: float) -> RenderableType:
    """Return the versions as aligned lines: rich's own table takes half a second for a thousand of them."""
    from rich.text import Text

    largest = max(v.size_bytes for v in listing.versions)
    newest = max((v.version for v in complete.versions if v.state is State.COMPLETE), default=None)
    metrics = names_of(listing.versions)[:_METRICS]
    best = best_paths(complete, metrics)
    cells = [("version", "shards", "size", " " * _BAR, "age", "state", *map(text.shown, metrics), "")]
    for v in listing.versions:
        shards = f"{len(v.shards)}/{'?' if v.ps_num is None else v.ps_num}"
        bar = text.bar(v.size_bytes, largest, _BAR)
        age = text.age(now - v.modified) if v.modified else ""
        values = [value(v.metrics, name, best=best.get(name) == v.path).ljust(1) for name in metrics]
        row = (str(v.version), shards, text.size(v.size_bytes), bar, age, v.state.value, *values, note(v, newest))
        cells.append(row)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = {0, 1, 2, 4, *range(6, 6 + len(metrics))}
    lines = Text(end="")
    for version, row in zip((None, *listing.versions), cells, strict=True):
        padded = [c.rjust(w) if k in right else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))]
        state = STATE_STYLES[version.state] if version else "dim"
        found = ["green" if cell.endswith(BEST) else "" for cell in row[6:-1]]
        styles = ["", "", "", "blue", "", state, *found, "dim"] if version else ["dim"] * len(row)
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
    if version.tags:
        parts.append("tag " + text.shown(", ".join(version.tags)))
    if version.fingerprint or version.seal_fault:
        parts.append("sealed" if version.fingerprint else "not what was sealed")
    if version.missing:
        parts.append("lacks shard " + _some(list(map(str, version.missing))))
    if version.state is State.MIXED:
        parts.append("shards of ps_num " + " and ".join(map(str, sorted({s.ps_num for s in version.shards}))))
    if version.extra:
        parts.append("holds " + _some([text.shown(name) for name in version.extra]) + " too")
    if version.note:
        parts.append(f'"{text.shown(version.note)}"')
    return ", ".join(parts)


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def warnings(listing: Listing) -> Iterator[str]:
    """Yield what in a location disturbs ElasticDL's own scan, and what of our own state cannot be read."""
    yield from listing.problems
    for version in listing.versions:
        if version.seal_fault:
            yield f"{version.ref}: is not what was sealed: {version.seal_fault}"
    crash = [f.name for f in listing.foreign if f.elasticdl_version is None]
    if crash:
        yield f"{listing.location}: ElasticDL's scan for the latest version crashes on {_some(crash)}"
    for foreign in listing.foreign:
        if foreign.elasticdl_version is not None:
            number = foreign.elasticdl_version
            yield f"{listing.location}: ElasticDL takes {foreign.name!r} for version {number}; edl-ckpt does not"
