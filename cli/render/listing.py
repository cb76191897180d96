"""The versions of a location as tables, as JSON and as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from edl_ckpt.cli.render.recorded import best_paths, metric_cells, names_of
from edl_ckpt.cli.render.shared_tables import first_rows
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.csv_rows import Several
from edl_ckpt.cli.terminal.documents import picked
from edl_ckpt.cli.terminal.tables import PIPE, Bar, Cell, Column, Lines, Table, head, styled
from edl_ckpt.core.base import words
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import DAMAGED, SUSPECT, State, Version
from edl_ckpt.core.sources.elasticdl.loader import listed_crashes, mistaken, takes_for_whole
from edl_ckpt.core.sources.systems import kinds_of, system_named, title_of

STATE_STYLES: Mapping[str, str] = {
    State.COMPLETE: "green",
    State.WRITING: "cyan",
    State.INCOMPLETE: "yellow",
    State.MIXED: "magenta",
    State.INVALID: "red",
    State.UNREADABLE: "red",
    DAMAGED: "red",
    SUSPECT: "yellow",
}

_SOME = 4
_METRICS = 5
"""The number of metrics shown as columns; `metrics show` shows all."""


def timestamp(seconds: float) -> str | None:
    """Return seconds since the epoch as ISO 8601 in UTC, None for an unknown time.

    >>> timestamp(1.5), timestamp(0.0)
    ('1970-01-01T00:00:01.500000+00:00', None)
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None


def document(listings: Sequence[Listing]) -> dict[str, Any]:
    """Return `edl-ckpt/list/1`."""
    return {"schema": "edl-ckpt/list/1", "locations": list(map(_location_object, listings))}


def _location_object(listing: Listing) -> dict[str, Any]:
    return picked(
        listing,
        "location layout versions modes interrupted_copies interrupted_moves foreign bound",
        interrupted_moves=[move._asdict() for move in listing.interrupted_moves],
        location=listing.location.url,
        versions=list(map(keys_of, listing.versions)),
        foreign=[picked(entry, "name elasticdl_version") for entry in listing.foreign],
    )


def _none(listing: Listing) -> str:
    if listing.bound:
        return f"no checkpoint among the first {listing.bound:,} names"
    return f"no checkpoint; {listing.entries}"


def keys_of(version: Version) -> dict[str, Any]:
    """Return a version as `list --json` has it."""
    own: dict[str, Any] = {"version": version.number, "shards": len(version.shards), "fault": version.why_unreadable}
    own |= {
        "state": version.shown_state,
        "verdict": _verdict(version),
        "name": version.name if version.is_named and not version.uuid else "",
        "modified": timestamp(version.modified),
        "sealed": bool(version.fingerprint),
        "system": version.layout.system,
        "suspect": list(version.doubts),
    }
    return picked(
        version,
        "version uuid? name? ref path state ps_num shards missing missing_count size_bytes modified metrics tags"
        " metadata fingerprint? note sealed verdict fault? mixture? system lacks suspect",
        **own,
    )


def _verdict(version: Version) -> dict[str, Any] | None:
    """Return what verify found for the files of a version, as far as it is remembered, else None."""
    found = version.verdict
    if found is None:
        return None
    return picked(found, "level ok at errors first", at=timestamp(found.at))


def records(listings: Sequence[Listing]) -> Iterator[dict[str, Any]]:
    """Yield a version after the other, with the keys of its document and `location`."""
    for listing in listings:
        yield from ({**keys_of(v), "location": listing.location.url} for v in listing.versions)


def rows(listings: Sequence[Listing]) -> list[list[Any]]:
    """Return a header and one row for each version; behind the metrics, which differ, `sealed` and others."""
    names = names_of([v for listing in listings for v in listing.versions])
    keys = "location version state ps_num shards missing size_bytes modified path tags note fingerprint uuid"
    first, last = keys.split(), ["sealed", "fault", "system", "lacks"]
    gaps = {"missing": " ", "tags": " ", "lacks": "; "}
    found = [v | {key: Several(v[key], gap) for key, gap in gaps.items()} for v in records(listings)]
    body = ([*map(v.get, first), *map(v["metrics"].get, names), *map(v.get, last)] for v in found)
    return [[*first, *names, *last], *body]


def human(
    listings: Sequence[Listing],
    now: float,
    whole: Sequence[Listing] | None = None,
    *,
    every: bool = True,
    is_sorted: bool = False,
) -> Lines:
    """Yield a table for each location.

    `whole` has the listings with all their versions: the best of those are marked. Of very many versions only the last
    are shown, or the first of those that `is_sorted` by a metric, unless `every` one is wanted.
    """
    for listing, complete in zip(listings, whole or listings, strict=True):
        where, total = listing.location.url, sum(v.size_bytes for v in listing.versions)
        if not listing.versions:
            yield head(where, "no matching version" if complete.versions else _none(complete))
            continue
        versions = text.count(len(listing.versions), "version")
        yield head(where, f"{versions}, {words.size(total)}, {kinds_of(listing.versions)}")
        shown, others = first_rows(listing.versions, "version", every=every, way=PIPE, last=not is_sorted)
        made = VersionCells(complete, names_of(listing.versions)[:_METRICS], listing.versions, now)
        yield Table(*made.columns, rows=map(made.row, shown))
        yield from others
        if more := names_of(listing.versions)[_METRICS:]:
            rest = words.abridged(map(text.escaped, more), _SOME)
            yield styled(f"other metrics, in `edl-ckpt metrics show`: {rest}", "dim")


class VersionCells:
    """What is shown of each version, here and in the browser: columns, and the row of each version.

    `listing` has all versions, the best of which are marked; bars are drawn for the largest of `versions`.
    """

    def __init__(self, listing: Listing, metrics: Sequence[str], versions: Sequence[Version], now: float) -> None:
        self._newest, self._now, self._metrics = listing.newest, now, metrics
        self._is_mixed = len({version.layout.system for version in versions}) > 1
        self._best = best_paths(listing, metrics)
        self._largest = max((v.size_bytes for v in versions), default=0)
        self.columns = (
            Column("version", "number"),
            Column("uuid", worth=9),
            Column("system", worth=8),
            Column("shards", "number", worth=7),
            Column("size", "number", worth=6),
            Column("bar", "bar", title=""),
            Column("age", "number", worth=3),
            Column("state", worth=9),
            *(Column(name, "number", worth=4) for name in metrics),
            Column("remarks", "prose", worth=8, title=""),
        )

    def row(self, v: Version) -> list[Any]:
        """Return the cells of a version."""
        # A rank that had nothing to save is not missing.
        all_shards = len(v.shards) if v.state is State.COMPLETE else v.ps_num
        return [
            _shown(v),
            v.uuid,
            title_of(v.layout.system) if self._is_mixed else "",
            f"{len(v.shards)}/{'?' if all_shards is None else all_shards}",
            words.size(v.size_bytes),
            Bar(v.size_bytes, self._largest),
            text.age(self._now - v.modified) if v.modified else "",
            Cell(v.shown_state, STATE_STYLES[v.shown_state]),
            *metric_cells(v, self._metrics, self._best),
            Cell(remarks(v, self._newest), "dim"),
        ]


def _shown(version: Version) -> str:
    """Return the number of a version, or the name that tells it from others."""
    if version.is_named and not version.uuid:
        return text.escaped(version.name)
    return "?" if version.number is None else str(version.number)


def _seal_remark(version: Version) -> str:
    """Return what there is to say of a seal; '' for a version without one."""
    if version.fingerprint:
        return "sealed"
    if not version.seal_fault:
        return ""
    return "its seal cannot be read" if version.unread else "differs from its seal"


def remarks(version: Version, newest: Version | None) -> str:
    """Return the remarks about a version: tags, seal, missing shards, extra files, note; `newest` is `@latest`."""
    parts: list[str] = []
    if version == newest:
        parts.append("latest")
    if version.tags:
        parts.append("tag " + text.escaped(", ".join(version.tags)))
    if seal := _seal_remark(version):
        parts.append(seal)
    if why := version.why_unreadable or version.why_not_good:
        parts.append(text.escaped(why))
    if version.absent:
        parts.append(version.absent)
    if version.state is State.MIXED:
        counts = sorted({s.ps_num for s in version.shards})
        listed = " and ".join(map(str, counts)) if len(counts) <= _SOME else words.abridged(counts, _SOME)
        parts.append(f"has shards of ps_num {listed}")
    if version.mixture:
        parts.append("may have shards of several runs")
    if version.extra and not version.lacks:
        parts.append("has extra files: " + words.abridged(map(text.escaped, version.extra), _SOME))
    if version.note:
        parts.append(f'"{text.escaped(version.note)}"')
    return ", ".join(parts)


def warnings(listing: Listing) -> Iterator[str]:
    """Yield warnings: names that disturb ElasticDL's own scan, seals that do not match, unreadable metadata."""
    yield from listing.problems
    for number in listing.interrupted_copies:
        yield (
            f"{listing.location}: an interrupted copy of version {number} is waiting: the same copy resumes it;"
            f" to discard it: {words.command('recover', '--drop-copies', str(listing.location))}"
        )
    yield from (move.notice(listing.location) for move in listing.interrupted_moves)
    for version in listing.versions:
        if version.seal_warning:
            yield f"{version.ref}: {version.seal_warning}"
    systems = {version.layout.system for version in listing.versions}
    if not any(system_named(system).scans_locations for system in systems):
        return
    for version in filter(takes_for_whole, listing.versions):
        lacks = version.absent or "it has files that are no shards"
        counts = "ElasticDL may take it for whole, because it counts the files"
        yield f"{version.ref}: {counts}, and restore a part ({lacks})"
    crash = listed_crashes(listing)
    if crash:
        stops = words.abridged(crash, _SOME)
        yield f"{listing.location}: ElasticDL cannot start from this directory: it stops at {stops}"
    for name, number in mistaken(listing):
        yield f"{listing.location}: {name!r} is no checkpoint, but ElasticDL reads it as version {number}"
