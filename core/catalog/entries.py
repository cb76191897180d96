"""The entries of a storage as versions: those of a location, as one flat listing has them.

Sources claim the versions of a location; all other entries are foreign.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from edl_ckpt.core.catalog.bounds import look
from edl_ckpt.core.catalog.interest import Interest
from edl_ckpt.core.catalog.ownership import with_owners
from edl_ckpt.core.catalog.record import with_record
from edl_ckpt.core.catalog.small_reads import SmallReads
from edl_ckpt.core.model.listings import ForeignEntry, Listing
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources import registry
from edl_ckpt.core.sources.elasticdl.loader import elasticdl_version
from edl_ckpt.core.sources.interface import FlatListing, Source
from edl_ckpt.core.state.paths import JOURNAL, STAGE_DIR, STATE_DIR, is_resumable
from edl_ckpt.core.storage.interface import Entry, Store, lists_marks


def grouped(store: Store, entries: list[Entry], fresh_after: float) -> Listing:
    """Return the versions among the entries of a location, without metadata; `fresh_after` as in `FlatListing`.

    Where built-in sources claim nothing, and there is something, the sources of other packages have a listing.
    """
    system = store.location.system
    listing = _grouped(store, entries, fresh_after, registry.chosen(system))
    listing = with_record(store, replace(listing, versions=with_owners(store, listing.versions)), entries)
    if listing.versions or not listing.foreign or not (others := registry.others()):
        return listing
    others = tuple(source for source in others if system in {"", *source.systems})
    known = Interest(store)
    wider = look(store, lambda inside: known(inside) or registry.looked_into(inside, others)).entries
    return _grouped(store, wider, fresh_after, others)


def look_at(store: Store, directory: str, fresh_after: float = math.inf) -> Version | None:
    """Return the version in one directory of a location, without its metadata; None when there is no such version."""
    listed = store.below(directory, Interest(store)) if lists_marks(store) else store.entries(directory.__eq__)
    inside = [entry for entry in listed if directory in {entry.relative, entry.parent}]
    return next(iter(grouped(store, inside, fresh_after).versions), None)


def _grouped(store: Store, entries: list[Entry], fresh_after: float, sources: Sequence[Source]) -> Listing:
    inside: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        inside[entry.parent].append(entry)
    has_state = any(entry.name == STATE_DIR for entry in inside[""])
    listing = FlatListing(store.location, inside, fresh_after, has_state)
    versions = registry.claimed(listing, SmallReads(store), sources)
    claimed = {version.path for version in versions} | {file.path for v in versions for file in v.files}
    others = (e for e in inside[""] if e.path not in claimed and e.name != STATE_DIR)
    foreign = sorted(
        (ForeignEntry(entry.name, elasticdl_version(entry.name), not entry.is_dir) for entry in others),
        key=lambda entry: entry.name,
    )
    return Listing(store.location, tuple(versions), tuple(foreign))


def has_journal(entries: Iterable[Entry]) -> bool:
    """Say whether there is a journal of a commit among the entries of a location; one of a copy does not count."""
    return not all(is_resumable(entry.parent) for entry in journals_among(entries))


def journals_among(state: Iterable[Entry]) -> list[Entry]:
    """Return the journals of commits and copies among the entries of a location."""
    return [entry for entry in state if entry.name == JOURNAL and entry.relative.startswith(f"{STAGE_DIR}/")]
