"""The cards by which notebooks show versions and listings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from edl_ckpt.core.base.notebook import Bytes, card, html_of, table
from edl_ckpt.core.base.words import counted, size
from edl_ckpt.core.catalog.ranking import best_versions
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources.systems import kinds_of

_METRICS: Final = 4
"""Metrics of each version of a listing."""


@html_of.register(Version)
def version_card(version: Version) -> str:
    """Return what is known of a version."""
    shards = counted(len(version.shards), "shard")
    facts = (version.shown_state, shards, size(version.size_bytes), kinds_of([version]))
    sealed = "yes" if version.fingerprint else "no"
    rows = [
        ("path", version.path),
        ("missing", version.absent),
        ("fault", version.why_unreadable),
        ("sealed", "does not match" if version.seal_fault else sealed),
        ("tags", ", ".join(version.tags)),
        ("note", version.note),
        *((name, f"{value:.6g}") for name, value in version.metrics.items()),
    ]
    rows = [row for row in rows if row[1]]
    return card("Version", version.ref, facts, [table(("field", "value"), rows, len(rows), "metric")])


def _remarks(version: Version, listing: Listing, best: Mapping[str, str]) -> Iterator[str]:
    """Yield what tells a version of a listing from the others: the latest, the best, sealed, and what is wrong."""
    if version == listing.newest:
        yield "latest"
    if version.path in best:
        yield f"best {best[version.path]}"
    if version.fingerprint:
        yield "sealed"
    yield from filter(None, (version.why_unreadable or version.why_not_good or version.absent,))


@html_of.register(Listing)
def listing_card(listing: Listing) -> str:
    """Return the versions of a location, the newest first, and its problems."""
    named = dict.fromkeys(name for version in reversed(listing.versions) for name in version.metrics)
    metrics = list(named)[:_METRICS]
    best = {version.path: name for name, version in best_versions(listing, metrics).items()}

    def row(version: Version) -> Sequence[str | float | None]:
        shards = f"{len(version.shards)} of {version.ps_num}" if version.ps_num else str(len(version.shards))
        return (
            str(version.key),
            version.shown_state,
            shards,
            Bytes(version.size_bytes),
            *map(version.metrics.get, metrics),
            ", ".join(version.tags),
            ", ".join(_remarks(version, listing, best)),
        )

    rows = map(row, reversed(listing.versions))
    columns = ("version", "state", "shards", "size", *metrics, "tags", "remarks")
    facts = (counted(len(listing.versions), "version"), size(sum(v.size_bytes for v in listing.versions)))
    problems = ((problem,) for problem in listing.problems)
    tables = (
        table(columns, rows, len(listing.versions), "older version"),
        table(("problem",), problems, len(listing.problems), "problem"),
    )
    return card("Listing", listing.location.url, facts, tables)
